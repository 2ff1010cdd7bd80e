"""The corpus: for each dataset and writer a directory of small Parquet files of one schema."""

import hashlib
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from compaction_platform_tests.torture import datasets
from compaction_platform_tests.torture.processes import ProcessFailed
from compaction_platform_tests.torture.readers import ANSWERS_WITHIN, Reader

DELTA = {
    pyarrow.int32(): "DELTA_BINARY_PACKED",
    pyarrow.int64(): "DELTA_BINARY_PACKED",
    pyarrow.string(): "DELTA_BYTE_ARRAY",
    pyarrow.binary(): "DELTA_LENGTH_BYTE_ARRAY",
    pyarrow.float64(): "BYTE_STREAM_SPLIT",
    pyarrow.float32(): "BYTE_STREAM_SPLIT",
    pyarrow.bool_(): "RLE",
}
PYARROW: dict[str, dict[str, Any]] = {
    "v1-snappy": {},
    "v1-none-plain": {"compression": "none", "use_dictionary": False},
    "v1-lz4-pages": {
        "compression": "lz4",
        "data_page_size": 400,
        "write_batch_size": 50,
        "dictionary_pagesize_limit": 1500,
        "write_page_index": True,
    },
    "v1-nostats": {"write_statistics": False, "store_schema": False},
    "v1-groups": {"row_group_size": 37, "write_page_checksum": True},
    "v2-zstd-index": {"data_page_version": "2.0", "compression": "zstd", "write_page_index": True},
    "v2-gzip-crc": {
        "data_page_version": "2.0",
        "compression": "gzip",
        "use_dictionary": False,
        "write_page_checksum": True,
        "write_page_index": True,
    },
    "v2-brotli-delta": {"data_page_version": "2.0", "compression": "brotli", "use_dictionary": False},
    "v2-none-delta": {"data_page_version": "2.0", "compression": "none", "use_dictionary": False},
    "int96": {"use_deprecated_int96_timestamps": True, "store_schema": False},
}
DUCKDB = {"v1": "CODEC snappy, PARQUET_VERSION V1", "v2": "CODEC zstd, PARQUET_VERSION V2, ROW_GROUP_SIZE 2048"}
POLARS: dict[str, dict[str, Any]] = {
    "zstd": {"compression": "zstd", "statistics": "full"},
    "pages": {"compression": "snappy", "data_page_size": 300},
}
CONVERTED: dict[str, dict[str, Any]] = {
    "v1": {"codec": "snappy"},
    "v2": {"codec": "zstd", "v2": True},
    "plain": {"codec": "none", "dictionary": False, "v2": True},
}
SPARK: dict[str, dict[str, Any]] = {
    "int96": {"codec": "snappy", "settings": {"spark.sql.parquet.outputTimestampType": "INT96"}},
    "micros": {"codec": "zstd", "settings": {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}},
}


@dataclass(frozen=True)
class Base:
    """Files of one dataset by one writer; `settings` is None where each file is written in another way."""

    dataset: str
    writer: str
    settings: str

    @property
    def name(self) -> str:
        return f"{self.dataset}/{self.writer}-{self.settings}"

    def files(self, corpus: Path) -> list[Path]:
        return sorted((corpus / self.name).glob("*.parquet"))

    def yardstick(self, corpus: Path) -> Path:
        """The most ordinary file of this dataset."""
        return corpus / self.dataset / "pyarrow-v1-snappy" / "1.parquet"


def _bases() -> Iterator[Base]:
    for dataset in datasets.DATASETS:
        if dataset == "large":
            for settings in ("v2-zstd-index", "v1-snappy"):
                yield Base(dataset, "pyarrow", settings)
            continue
        timed = dataset in ("plain", "times")
        for settings in (*PYARROW, "mixed"):
            if settings != "int96" or timed:
                yield Base(dataset, "pyarrow", settings)
        for writer, ways in (("duckdb", DUCKDB), ("polars", POLARS)):
            yield from (Base(dataset, writer, settings) for settings in ways)
        for writer in ("parquet_rs", "arrow_go", "parquet_go"):
            yield from (Base(dataset, writer, settings) for settings in ("v1", "v2"))
        if dataset in ("plain", "texts", "empty"):
            yield from (Base(dataset, "hyparquet", settings) for settings in ("v1", "plain"))
            yield Base(dataset, "fastparquet", "snappy")
        yield from (Base(dataset, "spark", settings) for settings in SPARK if settings == "micros" or timed)


BASES = tuple(_bases())


class CannotWrite(Exception):
    """This writer does not write such rows, or is not here."""


def write(base: Base, corpus: Path, readers: Mapping[str, Reader]) -> None:
    """Write the files of a base, unless they are there. Raises CannotWrite."""
    place = corpus / base.name
    refusal = place.with_suffix(".refused")
    if refusal.is_file():
        raise CannotWrite(refusal.read_text())
    if place.is_dir():
        return
    unfinished = place.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        for number in range(datasets.FILES):
            _write_file(base, number, unfinished / f"{number}.parquet", readers)
    except CannotWrite as reason:
        shutil.rmtree(unfinished)
        if not isinstance(reason, NotHere):
            refusal.write_text(str(reason))
        raise
    unfinished.rename(place)


class NotHere(CannotWrite):
    """The writer is not installed, or did not start."""


def _write_file(base: Base, number: int, path: Path, readers: Mapping[str, Reader]) -> None:
    table = datasets.table(base.dataset, number)
    if base.dataset == "required":
        table = table.cast(pyarrow.schema([column.with_nullable(False) for column in table.schema]))
    if base.writer in ("parquet_rs", "arrow_go", "parquet_go", "hyparquet", "spark"):
        _convert(base, table, path, readers)
        return
    write_it: Callable[[pyarrow.Table, str, int, Path], None] = {
        "pyarrow": _by_pyarrow,
        "duckdb": _by_duckdb,
        "polars": _by_polars,
        "fastparquet": _by_fastparquet,
    }[base.writer]
    try:
        write_it(table, base.settings, number, path)
    except Exception as error:
        raise CannotWrite(f"{type(error).__name__}: {error}") from error


def _by_pyarrow(table: pyarrow.Table, settings: str, number: int, path: Path) -> None:
    if settings == "mixed":
        settings = ("v1-snappy", "v2-none-delta", "v1-none-plain")[number]
    options = dict(PYARROW[settings])
    if settings.endswith("delta"):
        options["column_encoding"] = {c.name: DELTA[c.type] for c in table.schema if c.type in DELTA}
    pyarrow.parquet.write_table(table, path, **options)


def _by_duckdb(table: pyarrow.Table, settings: str, _: int, path: Path) -> None:
    import duckdb

    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", table)
        connection.execute(f"COPY rows TO '{path}' (FORMAT parquet, {DUCKDB[settings]})")


def _by_polars(table: pyarrow.Table, settings: str, _: int, path: Path) -> None:
    import polars

    frame = polars.from_arrow(table)
    assert isinstance(frame, polars.DataFrame)
    frame.write_parquet(path, **POLARS[settings])


def _by_fastparquet(table: pyarrow.Table, settings: str, number: int, path: Path) -> None:
    import fastparquet

    names = [name for name in ("id", "word", "text", "flag", "few", "same", "unique") if name in table.column_names]
    frame = table.select(names).to_pandas(types_mapper={pyarrow.bool_(): _nullable_boolean()}.get)
    fastparquet.write(str(path), frame, compression=settings.upper(), row_group_offsets=1000)


def _nullable_boolean() -> Any:
    import pandas

    return pandas.BooleanDtype()


def _convert(base: Base, table: pyarrow.Table, path: Path, readers: Mapping[str, Reader]) -> None:
    """A foreign library reads the rows from a file by pyarrow, and writes them in its own way."""
    if base.writer not in readers:
        raise NotHere(f"{base.writer} is not here")
    source = path.with_suffix(".source")
    pyarrow.parquet.write_table(table, source, store_schema=False)
    request = {"do": "write", "file": str(source), "to": str(path)}
    request |= SPARK[base.settings] if base.writer == "spark" else CONVERTED[base.settings]
    try:
        answer = readers[base.writer].process.ask(request, ANSWERS_WITHIN)
    except ProcessFailed as failed:
        raise NotHere(f"{base.writer}: {failed}") from failed
    if "error" in answer:
        raise CannotWrite(answer["error"])
    source.unlink()
    if path.is_dir():  # Spark writes a directory
        (part,) = path.glob("part-*.parquet")
        directory = path.rename(path.with_suffix(".spark"))
        (directory / part.name).rename(path)
        shutil.rmtree(directory)


def version() -> str:
    """Changes whenever other files would be written."""
    sources = [Path(__file__), Path(datasets.__file__)]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]


def chosen(generator: random.Random) -> Base:
    """A base for a seed: the same one whichever writers are here. Large files are rare."""
    base = generator.choice(BASES)
    return base if base.dataset != "large" or generator.random() < 0.5 else BASES[0]
