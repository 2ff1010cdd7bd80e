"""Ranges entered into the ledger from what their cold files and hot rows say."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.cold.manifest import RangeManifest
from compaction_platform.archive.ledger.ledger import Ledger, RangesOverlap
from compaction_platform.archive.ledger.range_version import LIVE, WORKING


@dataclass(frozen=True)
class RangeState:
    """The state of a range, told by its hot rows."""

    state: str  # committed, purging or purged
    purged: Collection[tuple[str, str]]  # dataset and file
    withheld_because: str | None = None
    invalid_because: str | None = None


def raise_fences(ledger: Ledger, highest: int) -> None:
    """No fence that is given out from now on is one that an attempt in the store has."""
    with ledger.connected() as connection:
        connection.execute(
            "SELECT setval('compaction.archive_fences', greatest(%s, nextval('compaction.archive_fences')))", (highest,)
        )


def enter_range(
    ledger: Ledger,
    blocks: BlockRange,
    live: Mapping[str, RangeManifest] | None,
    state: RangeState | None,
    candidates: Sequence[Mapping[str, RangeManifest]],
) -> None:
    """In one transaction: end all work on the range, and make `live` its version. Without it, the candidates are
    entered as superseded ones, so that their files have an owner."""
    with ledger.connected() as connection:
        range_id = _range(connection, ledger, blocks)
        connection.execute(
            "UPDATE compaction.archive_versions SET state = 'failed', fence = nextval('compaction.archive_fences'), "
            "error = 'given up: the ledger was made from the cold files', lease_until = '-infinity', "
            "changed_at = now() WHERE range_id = %s AND state = ANY(%s)",
            (range_id, list(WORKING)),
        )
        number = _number(live) if live is not None else 0
        connection.execute(
            "UPDATE compaction.archive_versions SET state = 'superseded', superseded_at = now(), changed_at = now(), "
            "fence = nextval('compaction.archive_fences') WHERE range_id = %s AND version <> %s AND state = ANY(%s)",
            (range_id, number, list(LIVE)),
        )
        for manifests in candidates if live is None else ():
            _enter(connection, range_id, _number(manifests), manifests, RangeState("superseded", ()))
        if live is not None and state is not None:
            _enter(connection, range_id, number, live, state)


def _number(manifests: Mapping[str, RangeManifest]) -> int:
    return max(manifest.dataset_version for manifest in manifests.values())


def _range(connection: Any, ledger: Ledger, blocks: BlockRange) -> int:
    place = (ledger.chain_id, blocks.start, blocks.end)
    try:
        with connection.transaction():
            connection.execute(
                "INSERT INTO compaction.archive_ranges (chain_id, blocks) SELECT %s, int8range(%s, %s) "
                "WHERE NOT EXISTS (SELECT 1 FROM compaction.archive_ranges "
                "WHERE chain_id = %s AND blocks = int8range(%s, %s))",
                (*place, *place),
            )
    except psycopg.errors.ExclusionViolation:
        raise RangesOverlap(
            f"blocks {blocks.key} (end not included) of chain {ledger.chain_id} are in the cold files, and overlap "
            "other ranges that the ledger has. They were not entered."
        ) from None
    found = connection.execute(
        "SELECT id FROM compaction.archive_ranges WHERE chain_id = %s AND blocks = int8range(%s, %s) FOR UPDATE", place
    ).fetchone()
    return int(found[0])


def _enter(
    connection: Any, range_id: int, number: int, manifests: Mapping[str, RangeManifest], state: RangeState
) -> None:
    finality = next(iter(manifests.values())).finality.model_dump_json()
    told = json.dumps({name: each.model_dump(mode="json") for name, each in manifests.items()})
    connection.execute(
        """
        INSERT INTO compaction.archive_versions AS v (range_id, version, state, because, finality, manifests,
            invalid_because, withheld_because, committed_at, superseded_at)
        VALUES (%(range)s, %(version)s, %(state)s, 'entered from the cold files', %(finality)s::jsonb,
            %(manifests)s::jsonb, %(invalid)s, %(withheld)s, now(),
            CASE WHEN %(state)s = 'superseded' THEN now() END)
        ON CONFLICT (range_id, version) DO UPDATE SET state = excluded.state, finality = excluded.finality,
            manifests = excluded.manifests, invalid_because = coalesce(excluded.invalid_because, v.invalid_because),
            withheld_because = coalesce(excluded.withheld_because, v.withheld_because), error = NULL, owner = '',
            fence = nextval('compaction.archive_fences'), lease_until = '-infinity', changed_at = now(),
            committed_at = coalesce(v.committed_at, now()), superseded_at = excluded.superseded_at""",
        {
            "range": range_id,
            "version": number,
            "state": state.state,
            "finality": finality,
            "manifests": told,
            "invalid": state.invalid_because,
            "withheld": state.withheld_because,
        },
    )
    connection.execute(
        "DELETE FROM compaction.archive_purged_files WHERE range_id = %s AND version = %s", (range_id, number)
    )
    for name, file in sorted(state.purged):
        rows = next(each.rows for each in manifests[name].files if each.name == file)
        connection.execute(
            "INSERT INTO compaction.archive_purged_files (range_id, version, dataset, file, rows) "
            "VALUES (%s, %s, %s, %s, %s)",
            (range_id, number, name, file, rows),
        )
