"""The harness of `make torture` works, and notices what it is there to notice: one base, readers in Python only."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from compaction_platform_tests.torture import cases, writers
from compaction_platform_tests.torture.campaign import Bench, Setup
from compaction_platform_tests.torture.cases import Case, Input, Prepared
from compaction_platform_tests.torture.judge import Judge
from compaction_platform_tests.torture.processes import Answering, Died, Hung
from compaction_platform_tests.torture.writers import Base

pytestmark = pytest.mark.unit

READERS = ("pyarrow", "duckdb", "polars")
BASE = Base("plain", "pyarrow", "v1-snappy")
SOUND = Case(BASE, "default")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    place = tmp_path_factory.mktemp("torture")
    setup = Setup(place, place / "corpus", place / "work", READERS, sys.executable)
    writers.write(BASE, setup.corpus, {})
    with Bench(setup, "smoke") as bench:
        yield bench


@pytest.fixture
def prepared(bench: Bench, tmp_path: Path) -> Prepared:
    return SOUND.prepare(bench.setup.corpus, tmp_path)


@pytest.fixture
def judge(bench: Bench) -> Judge:
    return Judge(bench.readers, BASE.yardstick(bench.setup.corpus))


def output_of(inputs: list[Input], place: Path, change: bool = False, **options: object) -> Path:
    """What a compaction would make of these files; with `change` one value is another."""
    table = pyarrow.concat_tables(pyarrow.parquet.read_table(each.path) for each in inputs)
    if change:
        words = table["word"].to_pylist()
        words[700] = "changed"
        table = table.set_column(table.column_names.index("word"), "word", pyarrow.array(words))
    names = json.dumps([{"name": each.name} for each in inputs])
    path = place / "0.compacted-128mb-0.parquet"
    pyarrow.parquet.write_table(table.replace_schema_metadata({"compaction.inputs": names}), path, **options)
    return path


def test_sound_files_are_compacted_and_every_reader_sees_the_same_rows(bench: Bench) -> None:
    for way in ("default", "sorted"):
        result = bench.run(Case(BASE, way))
        assert result.findings == ()
        assert result.engines == ("sort" if way == "sorted" else "stitch",)


@pytest.mark.parametrize("seed", [23, 50])
def test_a_damaged_file_is_set_aside_and_the_others_are_compacted(bench: Bench, seed: int) -> None:
    result = bench.run(Case(BASE, "default", seed))
    assert (result.failures, result.set_aside, result.engines) == ([], 1, ("stitch",)), result.damage


def test_a_seed_is_always_the_same_damage(bench: Bench, tmp_path: Path) -> None:
    assert cases.of_seed(123) == cases.of_seed(123)
    case = Case(BASE, "default", 123)
    once, again = (case.prepare(bench.setup.corpus, tmp_path / name) for name in ("once", "again"))
    damaged = [next(each.path for each in made.inputs if not each.is_sound) for made in (once, again)]
    assert damaged[0].read_bytes() == damaged[1].read_bytes()
    assert once.damage == again.damage


def test_a_changed_value_is_noticed_by_every_reader(prepared: Prepared, judge: Judge, tmp_path: Path) -> None:
    output_of(prepared.inputs, tmp_path)
    assert list(judge.directory(prepared, tmp_path)) == []
    output_of(prepared.inputs, tmp_path, change=True)
    found = list(judge.directory(prepared, tmp_path))
    assert {finding.kind for finding in found} == {"rows differ"}
    assert [finding.detail for finding in found] == [f"{name}, column word, rows of 1.parquet" for name in READERS]


def test_a_lost_row_is_noticed_in_any_order(prepared: Prepared, judge: Judge, tmp_path: Path) -> None:
    output = output_of(prepared.inputs[:2], tmp_path)
    findings = [
        list(judge.compared(inputs, [output], is_ordered=False)) for inputs in (prepared.inputs[1::-1], prepared.inputs)
    ]
    assert findings[0] == []
    assert [finding.kind for finding in findings[1]] == ["rows differ"] * len(READERS)


def test_a_file_that_is_gone_or_twice_there_is_noticed(prepared: Prepared, judge: Judge, tmp_path: Path) -> None:
    output_of(prepared.inputs[:2], tmp_path)
    (tmp_path / "1.parquet").write_bytes(prepared.inputs[1].path.read_bytes())
    found = {finding.kind: finding.detail for finding in judge.directory(prepared, tmp_path) if finding.is_failure}
    assert found.keys() == {"lost", "seen twice"}
    assert "2.parquet" in found["lost"]
    assert "1.parquet" in found["seen twice"]


def test_a_bound_that_lies_is_noticed_by_the_readers_that_trust_it(
    prepared: Prepared, judge: Judge, tmp_path: Path
) -> None:
    output = output_of(prepared.inputs, tmp_path, compression="none")
    data = output.read_bytes()
    least, other = ((day % (1 << 32)).to_bytes(4, "little") for day in (_least_day(output), 59_999))
    at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    output.write_bytes(data[:at] + data[at:].replace(least, other))
    found = list(judge.directory(prepared, tmp_path))
    assert {finding.kind for finding in found} == {"predicate"}
    assert all("column day" in finding.detail for finding in found)


def _least_day(file: Path) -> int:
    return min(
        day for day in pyarrow.parquet.read_table(file)["day"].cast(pyarrow.int32()).to_pylist() if day is not None
    )


def test_a_process_that_dies_or_hangs_is_told_and_started_again(tmp_path: Path) -> None:
    program = "import json, os, time\nwhile True: print(json.dumps(eval(json.loads(input())['do'])), flush=True)"
    with Answering([sys.executable, "-c", program], tmp_path / "log") as process:
        with pytest.raises(Died, match="exit code 7"):
            process.ask({"do": "os._exit(7)"}, 10)
        with pytest.raises(Hung):
            process.ask({"do": "time.sleep(100)"}, 0.5)
        assert process.ask({"do": "{'a': 1}"}, 10) == {"a": 1}
