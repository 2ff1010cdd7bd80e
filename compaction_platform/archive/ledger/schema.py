"""The tables that keep the state of ranges. What must never be, the database itself does not let happen."""

from typing import LiteralString

TABLES: tuple[LiteralString, ...] = (
    "CREATE SCHEMA IF NOT EXISTS compaction",
    "CREATE SEQUENCE IF NOT EXISTS compaction.archive_fences",
    """
    CREATE TABLE IF NOT EXISTS compaction.archive_ranges (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        chain_id bigint NOT NULL,
        blocks int8range NOT NULL CHECK (lower_inc(blocks) AND NOT upper_inf(blocks)),
        CONSTRAINT ranges_do_not_overlap
            EXCLUDE USING gist (int8range(chain_id, chain_id, '[]') WITH &&, blocks WITH &&)
    )""",
    """
    CREATE TABLE IF NOT EXISTS compaction.archive_versions (
        range_id bigint NOT NULL REFERENCES compaction.archive_ranges ON DELETE CASCADE,
        version int NOT NULL CHECK (version > 0),
        state text NOT NULL DEFAULT 'planned' CHECK (state IN
            ('planned', 'claimed', 'staged', 'committed', 'purging', 'purged', 'superseded', 'failed')),
        fence bigint NOT NULL DEFAULT nextval('compaction.archive_fences'),
        owner text NOT NULL DEFAULT '',
        lease_until timestamptz NOT NULL DEFAULT '-infinity',
        because text,
        finality jsonb,
        manifests jsonb,
        invalid_because text,
        withheld_because text,
        error text,
        planned_at timestamptz NOT NULL DEFAULT now(),
        changed_at timestamptz NOT NULL DEFAULT now(),
        committed_at timestamptz,
        superseded_at timestamptz,
        forgotten_at timestamptz,
        PRIMARY KEY (range_id, version),
        CHECK (state IN ('planned', 'claimed', 'failed') OR manifests IS NOT NULL)
    )""",
    """
    CREATE UNIQUE INDEX IF NOT EXISTS one_attempt_at_a_time ON compaction.archive_versions (range_id)
        WHERE state IN ('planned', 'claimed', 'staged')""",
    """
    CREATE UNIQUE INDEX IF NOT EXISTS one_live_version ON compaction.archive_versions (range_id)
        WHERE state IN ('committed', 'purging', 'purged')""",
    """
    CREATE TABLE IF NOT EXISTS compaction.archive_purged_files (
        range_id bigint NOT NULL,
        version int NOT NULL,
        dataset text NOT NULL,
        file text NOT NULL,
        rows bigint NOT NULL,
        purged_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (range_id, version, dataset, file),
        FOREIGN KEY (range_id, version) REFERENCES compaction.archive_versions
    )""",
    """
    CREATE TABLE IF NOT EXISTS compaction.archive_heads (
        chain_id bigint PRIMARY KEY,
        number bigint NOT NULL,
        hash text NOT NULL,
        time timestamptz NOT NULL,
        finalized bigint,
        finalized_hash text,
        seen_at timestamptz NOT NULL DEFAULT now()
    )""",
    """
    CREATE TABLE IF NOT EXISTS compaction.archive_ledger (
        only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
        id uuid NOT NULL DEFAULT gen_random_uuid(),
        created_at timestamptz NOT NULL DEFAULT now()
    )""",
    "INSERT INTO compaction.archive_ledger DEFAULT VALUES ON CONFLICT DO NOTHING",
    """
    CREATE TABLE IF NOT EXISTS compaction.archive_roots (
        chain_id bigint PRIMARY KEY,
        number bigint NOT NULL DEFAULT 0,
        nonce text NOT NULL DEFAULT '',
        pending jsonb,
        taken_over_at timestamptz
    )""",
)
