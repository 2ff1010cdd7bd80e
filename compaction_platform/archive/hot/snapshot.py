"""The hot database: what a chain's tables hold at one moment.

A `HotSnapshot` is one transaction. Others (Spark tasks) can look at the very same rows by its name, as long as it is
open. It holds the tables' weakest lock: rows come and go, but no table or partition is dropped under a reader."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy
import psycopg
import pyarrow
from psycopg import sql

from compaction_platform.archive.chain.block_range import BlockRange
from compaction_platform.archive.chain.continuity import BlockLink
from compaction_platform.archive.chain.finality import Head
from compaction_platform.archive.cold.manifest import Digest
from compaction_platform.archive.config import ArchivedChain, ArchivedTable
from compaction_platform.archive.hot.columns import HotColumn, hot_columns
from compaction_platform.errors import CompactionError
from compaction_platform.settings import POSTGRES_URL_WANTED, Settings, is_postgres_url

ROW = "compaction_row"  # our name for a row in SQL; a column of this name would hide it
ROW_HASH = "compaction_row_hash"
ROW_UNFIT = "compaction_row_unfit"
OURS = {ROW, ROW_HASH, ROW_UNFIT}
CONNECTION = {"connect_timeout": 10, "application_name": "compaction_platform", "keepalives_idle": 30}
# A policy that would hide rows from us then raises an error; by default those rows are passed over in silence.
SEE_ALL_ROWS = "SET row_security = off"
ROW_SECURITY_CHECK = "check_enable_rls"  # the function of PostgreSQL that raises it
MILLISECONDS_BEGIN = 10**11  # a Unix time beyond is in milliseconds


class HotUnreachable(CompactionError):
    """The hot database does not answer, or refuses us."""


class HotRowsHidden(CompactionError):
    """Row-level security hides hot rows from our role."""


class HotTableUnfit(CompactionError):
    """A table or column that was declared is not there, or not of a kind that can be archived."""


def hot_url(archive: ArchivedChain, settings: Settings) -> str:
    """The address of the hot database, password and all: never show it."""
    return url_of(archive.hot_variable, settings)


def url_of(variable: str | None, settings: Settings) -> str:
    if variable is None:
        settings.require("hot_postgres_url", purpose="the hot database")
        assert settings.hot_postgres_url is not None  # noqa: S101 (for the type checker; require() has seen to it)
        return settings.hot_postgres_url.get_secret_value()
    url = os.environ.get(variable)
    if not url:
        raise HotUnreachable(f"the variable {variable}, which should hold the hot database's address, is not set.")
    if not is_postgres_url(url):  # a driver's own message about it would repeat it, password and all
        raise HotUnreachable(f"the variable {variable} is {POSTGRES_URL_WANTED}.")
    return url


@contextmanager
def connected(url: str) -> Iterator["psycopg.Connection[Any]"]:
    """A connection; what goes wrong is told without the address."""
    with explained():
        connection = psycopg.connect(url, autocommit=True, **CONNECTION)  # type: ignore[arg-type]
    try:
        with explained(connection.info.user):
            connection.execute(SEE_ALL_ROWS)
            connection.autocommit = False
            with connection:
                yield connection
    finally:
        connection.close()


@contextmanager
def explained(role: str = "") -> Iterator[None]:
    """Turn the driver's errors into ours."""
    try:
        yield
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedFunction) as error:
        raise HotTableUnfit(f"{error.diag.message_primary}. Compare the declaration with the database.") from error
    except psycopg.errors.InsufficientPrivilege as error:
        if error.diag.source_function == ROW_SECURITY_CHECK:  # the message itself may be in any language
            raise HotRowsHidden(
                f"row-level security may hide rows of a hot table from the role {role} "
                f"({error.diag.message_primary}). Archiving or purging without them would lose them, so PostgreSQL was "
                f"told to refuse (row_security = off). Nothing was changed by this step. ALTER ROLE {role} BYPASSRLS, "
                "or connect as a role to which no policy of the table applies; then run again."
            ) from error
        raise HotUnreachable(f"{error.diag.message_primary}: the hot database's user may not do this.") from error
    except psycopg.OperationalError as error:
        told = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        raise HotUnreachable(f"the hot database does not answer, or broke off: {told}") from error


def table_of(dataset: ArchivedTable) -> sql.Identifier:
    return sql.Identifier(*dataset.table)


def of_range(dataset: ArchivedTable, chain_id: int, blocks: BlockRange, row: str = ROW) -> sql.Composed:
    """The rows of these blocks, as a condition. Numbers only: nothing in it comes from outside."""
    return sql.SQL("{row}.{chain} = {chain_id} AND {row}.{block} >= {start} AND {row}.{block} < {end}").format(
        row=sql.Identifier(row),
        chain=sql.Identifier(dataset.chain),
        block=sql.Identifier(dataset.block),
        chain_id=sql.Literal(chain_id),
        start=sql.Literal(blocks.start),
        end=sql.Literal(blocks.end),
    )


def select_rows(dataset: ArchivedTable, columns: Sequence[HotColumn], chain_id: int, blocks: BlockRange) -> str:
    """The query for all rows of these blocks, each with PostgreSQL's own hash of the whole row."""
    row = sql.Identifier(ROW)
    listed: list[sql.Composable] = []
    for column in columns:
        cast = sql.SQL(("::text[]" if column.is_array else "::text") if column.as_text else "")
        name = sql.Identifier(column.name)
        listed.append(sql.SQL("{row}.{name}{cast} AS {name}").format(row=row, name=name, cast=cast))
    hashed = sql.SQL("hash_record_extended({row}, 0) AS {name}").format(row=row, name=sql.Identifier(ROW_HASH))
    # Of an array of two dimensions, or one that does not begin at 1, the driver makes a plain list and says nothing.
    arrays = [
        sql.SQL("array_ndims({row}.{name}) > 1 OR array_lower({row}.{name}, 1) <> 1").format(
            row=row, name=sql.Identifier(column.name)
        )
        for column in columns
        if column.is_array
    ]
    if arrays:
        unfit = sql.SQL("({arrays}) AS {name}")
        listed.append(unfit.format(arrays=sql.SQL(" OR ").join(arrays), name=sql.Identifier(ROW_UNFIT)))
    query = sql.SQL("SELECT {columns} FROM {table} AS {row} WHERE {condition}").format(
        columns=sql.SQL(", ").join([*listed, hashed]),
        table=table_of(dataset),
        row=row,
        condition=of_range(dataset, chain_id, blocks),
    )
    return query.as_string(None)


def as_text(value: object) -> str:
    """A hash as text, whether the database keeps text or bytes."""
    if value is None:
        return ""
    return f"0x{bytes(value).hex()}" if isinstance(value, bytes | memoryview) else str(value)


def as_time(value: object) -> datetime:
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, str) and value.isdigit():  # a numeric without limits, in a cold file
        value = int(value)
    if isinstance(value, int | Decimal):
        return datetime.fromtimestamp(float(value) / (1000 if value >= MILLISECONDS_BEGIN else 1), UTC)
    raise HotTableUnfit(f"a block's time is {value!r}: a timestamp, or Unix seconds or milliseconds, are understood.")


@dataclass(frozen=True)
class HotSnapshot:
    """One moment of a chain's hot tables."""

    archive: ArchivedChain
    url: str = field(repr=False)
    connection: "psycopg.Connection[Any]" = field(repr=False)
    name: str
    server: int  # the major version
    now: datetime  # by the database's clock

    def columns(self, datasets: Sequence[ArchivedTable]) -> dict[str, tuple[HotColumn, ...]]:
        """The columns of these tables, by dataset; refused if one of them cannot be archived."""
        import adbc_driver_postgresql.dbapi

        found = self.connection.execute("SELECT typname FROM pg_type GROUP BY 1 HAVING bool_and(typtype = 'e')")
        enums = {name for (name,) in found}
        columns = {}
        # One connection for all: the driver learns every type of the database when it connects.
        with adbc_driver_postgresql.dbapi.connect(self.url) as connection, connection.cursor() as cursor:
            cursor.execute(SEE_ALL_ROWS)
            for dataset in datasets:
                self._require_a_table(dataset)
                cursor.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(table_of(dataset)).as_string(None))
                schema = cursor.fetch_arrow_table().schema
                if taken := OURS & set(schema.names):
                    raise HotTableUnfit(f"{'.'.join(dataset.table)} has a column {', '.join(taken)}: a name of ours.")
                columns[dataset.name] = hot_columns(".".join(dataset.table), schema, enums)
                self._require(dataset, {column.name: column for column in columns[dataset.name]})
        return columns

    def _require_a_table(self, dataset: ArchivedTable) -> None:
        """Not a view; and no tables inherit from it, whose own columns nobody would see."""
        found = self.connection.execute(
            "SELECT relkind, relkind = 'r' AND relhassubclass FROM pg_class WHERE oid = %s::regclass",
            (table_of(dataset).as_string(None),),
        ).fetchone()
        if found is None or found[0] not in ("r", "p") or found[1]:
            raise HotTableUnfit(
                f"{'.'.join(dataset.table)} is not a plain or partitioned table, or other tables inherit from it."
            )
        # If row-level security hides rows, this connection explains it; the Arrow driver's would not.
        self.connection.execute(sql.SQL("SELECT FROM {} LIMIT 0").format(table_of(dataset)))

    def _require(self, dataset: ArchivedTable, columns: Mapping[str, HotColumn]) -> None:
        named = [dataset.chain, dataset.block, *dataset.key, dataset.hash, dataset.parent_hash, dataset.time]
        if missing := [name for name in named if name is not None and name not in columns]:
            raise HotTableUnfit(f"{'.'.join(dataset.table)} has no column {', '.join(missing)}, which was declared.")
        for name in (dataset.chain, dataset.block):
            if columns[name].source_type not in ("int2", "int4", "int8"):
                raise HotTableUnfit(
                    f"{'.'.join(dataset.table)}.{name} is {columns[name].source_type}; an integer is wanted there."
                )

    def rows_per_block(self, dataset: ArchivedTable, blocks: BlockRange) -> dict[int, int]:
        """How many rows each block has, in the order of blocks."""
        query = sql.SQL(
            "SELECT {row}.{block}, count(*) FROM {table} AS {row} WHERE {condition} GROUP BY 1 ORDER BY 1"
        ).format(
            row=sql.Identifier(ROW),
            block=sql.Identifier(dataset.block),
            table=table_of(dataset),
            condition=of_range(dataset, self.archive.chain_id, blocks),
        )
        return dict(self.connection.execute(query).fetchall())

    def rows_in(self, dataset: ArchivedTable, ranges: Sequence[BlockRange]) -> dict[BlockRange, int]:
        """Return the number of rows of each range that has any, by one query."""
        query = sql.SQL(
            "SELECT wanted.first, wanted.behind, count(*) FROM unnest(%s::bigint[], %s::bigint[]) "
            "AS wanted (first, behind) JOIN {table} AS {row} ON {row}.{chain} = %s "
            "AND {row}.{block} >= wanted.first AND {row}.{block} < wanted.behind GROUP BY 1, 2"
        ).format(
            table=table_of(dataset),
            row=sql.Identifier(ROW),
            chain=sql.Identifier(dataset.chain),
            block=sql.Identifier(dataset.block),
        )
        edges = [blocks.start for blocks in ranges], [blocks.end for blocks in ranges]
        found = self.connection.execute(query, (*edges, self.archive.chain_id)).fetchall()
        return {BlockRange(start, end): count for start, end, count in found}

    def digest(self, dataset: ArchivedTable, blocks: BlockRange) -> Digest:
        return digest_of(self.connection, dataset, self.archive.chain_id, blocks)

    def links(self, blocks: BlockRange) -> list[BlockLink]:
        """The blocks' own places in the chain, in order."""
        return [BlockLink(number, as_text(own), as_text(parent)) for number, own, parent in self._links(blocks)]

    def neighbour(self, blocks: BlockRange, side: str) -> BlockLink | None:
        """The nearest hot block before or behind a range. Without gaps, only the very next one."""
        allowed = self.archive.gaps_allowed
        if side == "before":
            if blocks.start == 0:
                return None
            near = BlockRange(0 if allowed else blocks.start - 1, blocks.start)
        else:
            near = BlockRange(blocks.end, 2**63 - 1 if allowed else blocks.end + 1)
        found = self._links(near, nearest=side)
        return BlockLink(found[0][0], as_text(found[0][1]), as_text(found[0][2])) if found else None

    def hash_at(self, number: int) -> str | None:
        found = self._links(BlockRange(number, number + 1))
        return as_text(found[0][1]) if found else None

    def _links(self, blocks: BlockRange, nearest: str | None = None) -> list[Any]:
        dataset = self.archive.blocks
        order = {"before": " DESC LIMIT 1", "behind": " LIMIT 1", None: ""}[nearest]
        query = sql.SQL(
            "SELECT {row}.{block}, {row}.{hash}, {row}.{parent} FROM {table} AS {row} WHERE {condition} "
            "ORDER BY {row}.{block}{order}"
        ).format(
            row=sql.Identifier(ROW),
            block=sql.Identifier(dataset.block),
            hash=sql.Identifier(str(dataset.hash)),
            parent=sql.Identifier(str(dataset.parent_hash)),
            table=table_of(dataset),
            condition=of_range(dataset, self.archive.chain_id, blocks),
            order=sql.SQL(order),
        )
        return self.connection.execute(query).fetchall()

    def block_hashes(self, blocks: BlockRange) -> tuple[Any, pyarrow.Array]:
        """Numbers and hashes of blocks, in order, for comparing rows with."""
        links = self._links(blocks)
        hashes = [bytes(own) if isinstance(own, memoryview) else own for _, own, _ in links]
        return numpy.array([number for number, _, _ in links], numpy.int64), pyarrow.array(hashes)

    def told_counts(self, column: str, blocks: BlockRange) -> dict[int, int | None]:
        """What each block says in this column."""
        dataset = self.archive.blocks
        query = sql.SQL("SELECT {row}.{block}, {row}.{column} FROM {table} AS {row} WHERE {condition}").format(
            row=sql.Identifier(ROW),
            block=sql.Identifier(dataset.block),
            column=sql.Identifier(column),
            table=table_of(dataset),
            condition=of_range(dataset, self.archive.chain_id, blocks),
        )
        return {number: None if count is None else int(count) for number, count in self.connection.execute(query)}

    def edge(self, last: bool) -> Head | None:
        """The first or the last block of the chain that is hot."""
        dataset = self.archive.blocks
        query = sql.SQL(
            "SELECT {block}, {hash}, {time} FROM {table} WHERE {chain} = {chain_id} ORDER BY {block} {order} LIMIT 1"
        ).format(
            block=sql.Identifier(dataset.block),
            hash=sql.Identifier(str(dataset.hash)),
            time=sql.Identifier(str(dataset.time)),
            table=table_of(dataset),
            chain=sql.Identifier(dataset.chain),
            chain_id=sql.Literal(self.archive.chain_id),
            order=sql.SQL("DESC" if last else "ASC"),
        )
        found = self.connection.execute(query).fetchone()
        return Head(found[0], as_text(found[1]), as_time(found[2])) if found else None


@contextmanager
def hot_snapshot(archive: ArchivedChain, url: str) -> Iterator[HotSnapshot]:
    with connected(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        # Locks first: the snapshot, taken with the first query, must not be older than they are.
        tables = sql.SQL(", ").join(table_of(dataset) for dataset in archive.datasets)
        connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(tables))
        connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        found = connection.execute(
            "SELECT pg_export_snapshot(), current_setting('server_version_num')::int / 10000, now()"
        ).fetchone()
        assert found is not None  # noqa: S101 (for the type checker: there is always one row)
        yield HotSnapshot(archive, url, connection, *found)


def digest_of(
    connection: "psycopg.Connection[Any]",
    dataset: ArchivedTable,
    chain_id: int,
    blocks: BlockRange,
    columns: Sequence[str] | None = None,
) -> Digest:
    """Of whole rows, or of these columns, which gives the same where they are all there are."""
    row = sql.Identifier(ROW)
    named = sql.SQL(", ").join(sql.SQL("{}.{}").format(row, sql.Identifier(name)) for name in columns or ())
    query = sql.SQL(
        "SELECT count(*), coalesce(sum(hash_record_extended({hashed}, 0)::numeric), 0) FROM {table} AS {row} "
        "WHERE {condition}"
    ).format(
        hashed=row if columns is None else sql.SQL("ROW({})").format(named),
        table=table_of(dataset),
        row=row,
        condition=of_range(dataset, chain_id, blocks),
    )
    rows, total = connection.execute(query).fetchone() or (0, 0)
    return Digest(rows=rows, sum=str(total))
