"""A reader in Python as a process of its own: one JSON request per line, one JSON answer per line.

Runs in the environment of the project, or in that of the extra readers, which has pyarrow, but not the project.
"""

import functools
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from compaction_platform_tests.torture import canonical, predicates
from compaction_platform_tests.torture.predicates import PushDown

HOPELESS = 3  # columns, all of them unreadable: then so are the others

Read = Callable[[str, list[str] | None], pyarrow.Table]


def by_pyarrow() -> tuple[Read, PushDown | None]:
    def read(path: str, columns: list[str] | None) -> pyarrow.Table:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            return file.read(columns)

    return read, None


def by_duckdb() -> tuple[Read, PushDown | None]:
    import duckdb

    connection = duckdb.connect(config={"threads": 1, "memory_limit": "2GB"})
    connection.execute("SET TimeZone = 'UTC'")

    def read(path: str, columns: list[str] | None) -> pyarrow.Table:
        return connection.execute(f"SELECT {_listed(columns)} FROM {_scan(path)}").to_arrow_table()

    def _scan(path: str) -> str:
        return f"read_parquet('{path}', hive_partitioning = false)"

    def ask(path: str, query: str, values: list[Any]) -> pyarrow.Table:
        return connection.execute(query.format(file=_scan(path)), values).to_arrow_table()

    return read, predicates.BySql(ask)


def by_polars() -> tuple[Read, PushDown | None]:
    os.environ["POLARS_MAX_THREADS"] = "1"
    import polars

    def read(path: str, columns: list[str] | None) -> pyarrow.Table:
        return polars.read_parquet(path, columns=columns, hive_partitioning=False).to_arrow()

    return read, predicates.ByPolars()


def by_datafusion() -> tuple[Read, PushDown | None]:
    import datafusion

    config = datafusion.SessionConfig({"datafusion.execution.parquet.pushdown_filters": "true"})
    config = config.with_target_partitions(1).with_information_schema(False)

    def table(path: str) -> datafusion.SessionContext:
        context = datafusion.SessionContext(config)
        context.register_parquet("file", path)
        return context

    def read(path: str, columns: list[str] | None) -> pyarrow.Table:
        return table(path).sql(f"SELECT {_listed(columns)} FROM file").to_arrow_table()

    def ask(path: str, query: str, values: list[Any]) -> pyarrow.Table:
        named = {f"v{number}": value for number, value in enumerate(values)}
        text = query.format(file="file")
        for name in named:
            text = text.replace("?", f"${name}", 1)
        return table(path).sql(text, param_values=named).to_arrow_table()

    return read, predicates.BySql(ask)


def by_chdb() -> tuple[Read, PushDown | None]:
    import chdb

    def read(path: str, columns: list[str] | None) -> pyarrow.Table:
        text = f"SELECT {_listed(columns, '`')} FROM file('{path}', Parquet) SETTINGS max_threads = 1"
        answer = chdb.query(f"{text}, output_format_arrow_string_as_string = 0", "Arrow")
        return pyarrow.ipc.open_file(pyarrow.py_buffer(answer.bytes())).read_all()

    return read, None


def by_spark() -> tuple[Read, PushDown | None]:
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.legacy.parquet.nanosAsLong", "true")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "0")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")

    @functools.lru_cache(1)
    def frame_of(path: str) -> Any:
        return session.read.parquet(path)

    def read(path: str, columns: list[str] | None) -> pyarrow.Table:
        frame = frame_of(path)
        return (frame if columns is None else frame.select([f"`{name}`" for name in columns])).toArrow()

    return read, None


READERS = {name.removeprefix("by_"): make for name, make in globals().items() if name.startswith("by_")}


def _listed(columns: list[str] | None, quote: str = '"') -> str:
    return "*" if columns is None else ", ".join(f"{quote}{name}{quote}" for name in columns)


def answer(request: dict[str, Any], read: Read, push_down: PushDown | None) -> dict[str, Any]:
    path = request["file"]
    if request["do"] == "predicates":
        return predicates.compared(path, read(path, None), push_down)
    if request["do"] == "write":
        return _write_by_spark(request)
    rows, columns, unsupported = columns_of(path, read)
    if request.get("unordered"):
        sums = {name: [canonical.sum_of_rows([column])] for name, column in columns.items()}
        sums["*"] = [canonical.sum_of_rows(list(columns.values()))]
        return {"rows": rows, "columns": sums, "unsupported": unsupported}
    digests = {name: canonical.digests(column, request.get("cuts")) for name, column in columns.items()}
    return {"rows": rows, "columns": digests, "unsupported": unsupported}


def columns_of(path: str, read: Read) -> tuple[int, dict[str, list[str]], dict[str, str]]:
    """Return the number of rows, the cells of each column, and why other columns cannot be read."""
    try:
        table = read(path, None)
        return table.num_rows, {name: canonical.cells(table[name]) for name in table.column_names}, {}
    except BaseException as error:  # noqa: BLE001 (column by column it may work)
        whole = error
    names = pyarrow.parquet.read_schema(path).names
    columns: dict[str, list[str]] = {}
    unsupported: dict[str, str] = {}
    for name in names:
        try:
            columns[name] = canonical.cells(read(path, [name])[name])
        except BaseException as error:  # noqa: BLE001 (a panic of polars is no Exception; the reason is the answer)
            unsupported[name] = _in_short(error)
        if len(unsupported) == HOPELESS and not columns:
            break
    if not columns:
        raise RuntimeError(_in_short(whole))
    return len(next(iter(columns.values()))), columns, unsupported


def _in_short(error: BaseException) -> str:
    """The last cause that Java tells, if it was Java."""
    causes = [line for line in str(error).splitlines() if line.startswith("Caused by: ")]
    return causes[-1][:300] if causes else f"{type(error).__name__}: {error}"[:300]


def _write_by_spark(request: dict[str, Any]) -> dict[str, Any]:
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    writer = session.read.parquet(request["file"]).coalesce(1).write.option("compression", request["codec"])
    for name, value in request.get("settings", {}).items():
        session.conf.set(name, value)
    writer.mode("overwrite").parquet(request["to"])
    return {}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    read, push_down = READERS[sys.argv[1]]()
    for line in sys.stdin:
        try:
            found = answer(json.loads(line), read, push_down)
        except BaseException as error:  # noqa: BLE001 (a panic of polars is no Exception; the reason is the answer)
            found = {"error": _in_short(error)}
        answers.write(json.dumps(found) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
