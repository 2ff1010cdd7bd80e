"""Real corrupt, odd and evolved files in a Glue table: each reads, or fails to read, after a swap as it did before."""

import io
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from compaction_platform.lake.verification.fingerprint import ordered_fingerprint
from compaction_platform_tests.compact.glue.scene import Scene, clicks

pytestmark = pytest.mark.integration

COPIES = 3


def leaves(data: bytes) -> list[tuple[object, ...]]:
    """Names outside of lists, and types, of the columns that a footer tells."""
    schema = pyarrow.parquet.ParquetFile(io.BytesIO(data)).metadata.schema
    columns = [schema.column(number) for number in range(len(schema))]
    return [
        (
            column.path.split(".")[0],
            column.physical_type,
            column.length,
            max(0, column.precision),
            max(0, column.scale),
            column.max_definition_level,
            column.max_repetition_level,
        )
        for column in columns
    ]


def rows_of(data: bytes) -> str:
    file = pyarrow.parquet.ParquetFile(io.BytesIO(data), coerce_int96_timestamp_unit="us")
    return ordered_fingerprint(file.read()).digest


def test_odd_files_read_as_before(new_scene: Callable[..., Scene], shared_data: Path) -> None:
    scene = new_scene(keys=[("file", "string")])
    paths = sorted((shared_data / "odd_parquet").glob("*.parquet"))
    assert len(paths) == 24
    for path in paths:
        home = scene.partition(path.stem)
        for number in range(COPIES):
            scene.put(home, f"{number}.parquet", path.read_bytes())
    report = scene.compact()
    assert {each.outcome for each in report.results} == {"compacted", "left alone"}
    assert not report.problems
    joined = 0
    for path in paths:
        place = scene.place(path.stem)
        found = [scene.content(place, name) for name in scene.names(place)]
        if len(found) == COPIES:  # could not be joined
            assert found == [path.read_bytes()] * COPIES
            continue
        joined += 1
        (data,) = found
        assert leaves(data) == leaves(path.read_bytes())
        table = pyarrow.parquet.ParquetFile(io.BytesIO(path.read_bytes()), coerce_int96_timestamp_unit="us").read()
        assert rows_of(data) == ordered_fingerprint(pyarrow.concat_tables([table] * COPIES)).digest
    assert joined >= 15


def test_corrupt_files_are_carried_over_and_the_others_joined(
    new_scene: Callable[..., Scene], shared_data: Path
) -> None:
    scene = new_scene(keys=[("file", "string")])
    paths = sorted((shared_data / "corrupt_parquet").glob("*.parquet"))
    assert len(paths) == 7
    for path in paths:
        home = scene.partition(path.stem)
        scene.put(home, "bad.parquet", path.read_bytes())
        for number in range(3):
            scene.put(home, f"{number}.parquet", clicks(number * 20))
    assert {each.outcome for each in scene.compact().results} == {"compacted"}
    for path in paths:
        place = scene.place(path.stem)
        found = [scene.content(place, name) for name in scene.names(place)]
        assert len(found) == 2 and path.read_bytes() in found


def test_files_that_have_evolved_keep_their_columns(new_scene: Callable[..., Scene], shared_data: Path) -> None:
    scene = new_scene(keys=[("cat", "string"), ("catnum", "string")])
    expected: dict[tuple[str, str], int] = {}
    for path in sorted((shared_data / "evolved_parquet" / "split").rglob("*")):
        if path.is_file() and path.parent.name.startswith("catnum="):
            values = (path.parent.parent.name.removeprefix("cat="), path.parent.name.removeprefix("catnum="))
            if values not in expected:
                scene.partition(*values)
            data = path.read_bytes()
            scene.put(scene.place(*values), path.name, data)
            is_data = not path.name.startswith((".", "_"))
            expected[values] = expected.get(values, 0) + (
                pyarrow.parquet.read_metadata(path).num_rows if is_data else 0
            )
    evolved = scene.partition("evo", "0")
    for path in sorted((shared_data / "evolved_parquet" / "evo").rglob("*.parquet")):
        scene.put(evolved, path.name, path.read_bytes())
    report = scene.compact()
    assert {each.outcome for each in report.results} == {"compacted"}
    assert sum(expected.values()) == 2000
    for values, count in expected.items():
        place = scene.place(*values)
        (name,) = scene.names(place)
        assert pyarrow.parquet.read_metadata(io.BytesIO(scene.content(place, name))).num_rows == count
    place = scene.place("evo", "0")
    tables = [pyarrow.parquet.read_table(io.BytesIO(scene.content(place, name))) for name in scene.names(place)]
    assert sorted(table.num_rows for table in tables) == [1, 1, 4]  # one has email, one may be null
    people = sorted(row["name"] for table in tables for row in table.to_pylist())
    assert people == ["Alex", "Bob", "Fiona", "John", "Roger", "Steve"]
