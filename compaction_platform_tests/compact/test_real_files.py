"""Real corrupt, odd and evolved files: the same rows out as in, or the file stays and a note says why."""

import io
import shutil
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from compaction_platform.lake.parquet.stitch.errors import StitchUnsupported
from compaction_platform.lake.parquet.stitch.stitch_plan import footers_of, plan_stitch
from compaction_platform.lake.parquet.stitch.stitch_writer import write_stitched
from compaction_platform.lake.parquet.stitch.verify import verify_stitched
from compaction_platform.lake.verification.fingerprint import ordered_fingerprint
from compaction_platform_tests.compact.yard import Yard, rows

pytestmark = pytest.mark.unit

# Files that pyarrow cannot read, or whose rows it could not write again just as they are.
STAY = {"incorrect_map_schema.parquet", "int96_from_spark.parquet"}
READABLE = {"ARROW-GH-43605": 21_186, "nation.dict-malformed": 25}  # they only look corrupt: rows


def read(path: Path | io.BytesIO) -> pyarrow.Table:
    return pyarrow.parquet.ParquetFile(path, coerce_int96_timestamp_unit="us").read()


def test_corrupt_files_stay_and_the_others_are_compacted(yard: Yard, shared_data: Path) -> None:
    bad = sorted((shared_data / "corrupt_parquet").glob("*.parquet"))
    assert len(bad) == 7
    for path in bad:
        directory = Path(yard.uri) / path.stem
        directory.mkdir()
        shutil.copy(path, directory / "bad.parquet")
        for number in range(3):
            yard.put(f"{path.stem}/{number}.parquet", rows(number * 50))
    report = yard.compact()
    assert report.failed == {}
    content = yard.content(unreadable=[f"{path.stem}/bad.parquet" for path in bad])
    for path in bad:
        assert len(content[path.stem]) == 150
        assert path.stem not in READABLE or f"{path.stem}/bad.parquet" not in report.set_aside
        assert (Path(yard.uri) / path.stem / "bad.parquet").read_bytes() == path.read_bytes(), "it is of another table"


@pytest.mark.parametrize("copies", [3])
def test_odd_files_come_out_as_they_went_in(yard: Yard, shared_data: Path, copies: int) -> None:
    paths = sorted((shared_data / "odd_parquet").glob("*.parquet"))
    assert len(paths) == 24
    for path in paths:
        directory = Path(yard.uri) / path.stem
        directory.mkdir()
        for number in range(copies):
            shutil.copy(path, directory / f"{number}.parquet")
    report = yard.compact()
    stayed = {key.split("/")[0] for key in report.set_aside}
    for path in paths:
        files = sorted(file for file in (Path(yard.uri) / path.stem).iterdir() if file.is_file())
        if path.stem in stayed or any(path.stem in output for output in report.failed):
            assert [file.read_bytes() for file in files] == [path.read_bytes()] * copies, path.name
            continue
        (output,) = files
        once = read(path)
        found = read(output)
        assert found.num_rows == once.num_rows * copies, path.name
        for number in range(copies):
            part = found.slice(number * once.num_rows, once.num_rows)
            assert (
                ordered_fingerprint(part.to_batches(), found.schema).columns
                == ordered_fingerprint(once.to_batches(), once.schema).columns
            )
    assert {f"{name}.parquet" for name in stayed} == STAY
    assert report.failed == {}


def test_evolved_files_become_one_with_all_columns(yard: Yard, shared_data: Path) -> None:
    shutil.copytree(shared_data / "evolved_parquet" / "evo", yard.uri, dirs_exist_ok=True)
    yard.compact()
    (output,) = yard.outputs()
    found = sorted((row["name"], row["age"], row["email"]) for row in yard.content()[output.rpartition("/")[0]])
    assert found == [
        ("Alex", 36, None),
        ("Bob", 20, None),
        ("Fiona", 25, None),
        ("John", 56, "email@email.email"),
        ("Roger", 25, None),
        ("Steve", 36, None),
    ]


def test_a_hive_table_with_what_hadoop_leaves_beside_it(yard: Yard, shared_data: Path) -> None:
    shutil.copytree(shared_data / "evolved_parquet" / "split", yard.uri, dirs_exist_ok=True)
    report = yard.compact()
    assert report.files_compacted == 48
    content = yard.content()
    assert {directory: len(found) for directory, found in content.items()} == {
        "cat=fred/catnum=1": 334,
        "cat=fred/catnum=2": 333,
        "cat=fred/catnum=3": 333,
        "cat=freda/catnum=1": 333,
        "cat=freda/catnum=2": 334,
        "cat=freda/catnum=3": 333,
    }
    assert sum(row["num"] for found in content.values() for row in found) == 1_999_000
    assert yard.store.stat("_metadata") is None
    assert yard.store.stat("_SUCCESS") is not None


@pytest.mark.parametrize("folder", ["odd_parquet", "corrupt_parquet", "evolved_parquet/split"])
def test_odd_and_corrupt_files_are_stitched_rightly_or_not_at_all(shared_data: Path, folder: str) -> None:
    """Straight through the engine, however small they are."""
    paths = sorted((shared_data / folder).rglob("*.parquet"))
    assert len(paths) > 6
    done: list[str] = []
    for path in paths:
        data = path.read_bytes()
        try:
            plan = plan_stitch([data] * 3, footers_of([data] * 3), 1 << 30, fewest_rows=0)
            sink = io.BytesIO()
            made = write_stitched(plan, {}, sink)
            verify_stitched(plan, made.choices, sink.getvalue())
        except (StitchUnsupported, pyarrow.ArrowException, OSError, NotImplementedError):
            continue
        done.append(path.name)
        once = read(path)
        found = read(io.BytesIO(sink.getvalue()))
        assert found.num_rows == 3 * once.num_rows, path.name
        for number in range(3):
            part = found.slice(number * once.num_rows, once.num_rows)
            assert (
                ordered_fingerprint(part.to_batches(), found.schema).columns
                == ordered_fingerprint(once.to_batches(), once.schema).columns
            )
    assert not set(done) & {"datapage_v1-corrupt-checksum.parquet", "PARQUET-1481.parquet", "ARROW-GH-41317.parquet"}
    assert len(done) >= {"odd_parquet": 18, "corrupt_parquet": 1, "evolved_parquet/split": 40}[folder], done
