"""The checks without a run, as in CI: what nobody reported is found, also in ranges that are not among the newest."""

import json
from datetime import timedelta

import pytest

from compaction_platform.archive.cold import audit
from compaction_platform.archive.dagster.checks import CHECKED_ALONE, check_specs, results_alone
from compaction_platform.archive.ledger.ledger import Ledger
from compaction_platform_tests.archive.databases import Elsewhere, another_database, rebuilding
from compaction_platform_tests.archive.scene import NAMES, Scene

pytestmark = pytest.mark.integration

RANGES = CHECKED_ALONE + 2


@pytest.fixture
def chain(scene: Scene) -> Scene:
    """More ranges than are always read; the oldest is purged."""
    scene.grow(30, 10 * RANGES + 10)
    for start in range(0, 10 * RANGES, 10):
        scene.archived(start, start + 10)
    scene.purge(0, 10)
    return scene


def failed(scene: Scene) -> dict[str, str]:
    """All problems in one text, by check and dataset."""
    wanted = [spec.key for spec in check_specs(scene.archive)]
    results = list(results_alone(scene.run(), wanted))
    assert len(results) == len(wanted)
    texts = {}
    for result in results:
        if not result.passed:
            table = result.metadata["problems"].value
            problems = [str(record.data["problem"]) for record in table.records]  # type: ignore[union-attr]
            texts[f"{result.check_name} {result.asset_key.path[-1]}"] = "\n".join(problems)  # type: ignore[union-attr]
    return texts


def the_range(scene: Scene, key: str) -> str:
    start, end = key.split("-")
    return (
        f"(SELECT id FROM compaction.archive_ranges WHERE chain_id = {scene.chain_id} "
        f"AND blocks = int8range({start}, {end}))"
    )


def lose(scene: Scene, ranges: str) -> None:
    for table in ("archive_purged_files", "archive_versions"):
        scene.execute(f"DELETE FROM compaction.{table} WHERE range_id IN {ranges}")


def test_damage_that_no_run_reported_fails_the_checks(chain: Scene) -> None:
    """Each part of the damage is in another file, mark, row or state; each must be told."""
    assert failed(chain) == {}
    own = {(name, key): chain.visible(name)[number] for name in NAMES for number, key in enumerate(("0-10", "10-20"))}

    bytes_of_another = bytes(chain.store.read(own["logs", "0-10"]))
    half = len(bytes_of_another) // 2
    chain.store.write(own["logs", "0-10"], bytes_of_another[:half] + bytes_of_another[half:][::-1])
    chain.execute(f"INSERT INTO TABLES.logs VALUES ({chain.chain_id}, 4, 0, 'late')")
    chain.execute(
        f"UPDATE compaction.archive_versions SET state = 'purged' WHERE range_id = {the_range(chain, '20-30')}"
    )
    chain.store.write(f"{chain.chain_id}/logs/range=90-100/part-00000.parquet", b"x")

    chain.store.delete([own["transactions", "0-10"], f"{chain.chain_id}/transactions/range=30-40/_SUCCESS"])
    chain.execute(
        "UPDATE compaction.archive_versions SET manifests = jsonb_set(manifests, '{transactions,attempt}', '0') "
        f"WHERE range_id = {the_range(chain, '10-20')}"
    )

    key = f"{chain.chain_id}/blocks/range=0-10/_manifest.json"
    manifest = json.loads(bytes(chain.store.read(key)))
    chain.store.write(key, json.dumps(manifest | {"last_hash": "0xother"}).encode())
    chain.store.write(own["blocks", "10-20"].replace("part-", "part-copy-of-"), b"x")
    lose(chain, the_range(chain, "40-50"))

    found = failed(chain)
    for name, told in {
        "logs": (
            f"{own['logs', '0-10']} is not the file that was committed: its sha256 is not",
            "0-10 (end not included) is purged, and 1 rows of logs are hot",
            "20-30 (end not included) is purged, and 11 rows of logs are hot",
            "range=90-100 is there, and the ledger has no such committed range",
        ),
        "transactions": (
            f"{own['transactions', '0-10']} is gone",
            "transactions/range=10-20 is not marked as version 1 of the ledger",
            "transactions/range=30-40 is not marked as version 1 of the ledger",
            "20-30 (end not included) is purged, and 13 rows of transactions are hot",
        ),
        "blocks": (
            "blocks/range=0-10 is not marked as version 1 of the ledger",
            "part-copy-of-",
            "range=40-50 is there, and the ledger has no such committed range",
        ),
    }.items():
        for problem in told:
            assert problem in found[f"cold_equals_source {name}"]


def test_cold_files_without_a_ledger_fail_the_check(scene: Scene) -> None:
    scene.archived(0, 10)
    lose(scene, the_range(scene, "0-10"))
    assert "range=0-10 is there, and the ledger has no such" in failed(scene)["cold_equals_source logs"]


def test_cold_files_that_another_ledger_took_over_fail_the_check(scene: Scene) -> None:
    scene.archived(0, 10)
    with another_database(scene, f"heir_{scene.chain_id}") as url:
        heir = Elsewhere(scene, url)
        heir.grow(0, 30)
        rebuilding(heir).adopt()
        assert failed(heir) == {}
    assert "Two databases cannot archive one chain to one `uri`" in failed(scene)["cold_equals_source logs"]


def test_older_ranges_are_read_in_turn_within_a_budget(chain: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = chain.ledger.versions(states=("committed", "purged"))
    newest = versions[-CHECKED_ALONE:]
    size = max(version.manifests["logs"].size for version in versions)
    monkeypatch.setattr(audit, "BYTES_READ_ALONE", size)
    seen, today = set(), chain.ledger.now()
    for day in range(RANGES):
        monkeypatch.setattr(Ledger, "now", lambda _, day=day: today + timedelta(days=day))
        chosen = audit.chosen_for_reading(versions, newest, "logs", chain.ledger)
        assert chosen[:CHECKED_ALONE] == list(newest)
        assert len(chosen) <= CHECKED_ALONE + 1
        seen |= {version.blocks for version in chosen}
    assert seen == {version.blocks for version in versions}
