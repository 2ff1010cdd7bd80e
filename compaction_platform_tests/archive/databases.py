"""A scene's chain in a second database: synced again, or as a backup has it."""

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg import sql
from pydantic import SecretStr

from compaction_platform.archive.jobs.rebuild_ledger import RebuildRun
from compaction_platform.archive.ledger.ledger import Ledger
from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform_tests.archive.scene import NAMES, Scene

LEDGER = (
    "archive_purged_files",
    "archive_versions",
    "archive_ranges",
    "archive_heads",
    "archive_roots",
    "archive_ledger",
)


@contextmanager
def another_database(scene: Scene, name: str) -> Iterator[str]:
    """An empty database beside the scene's."""
    url = f"{scene.url.rsplit('/', 1)[0]}/{name}"
    with scene.connect() as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield url
    finally:
        with scene.connect() as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


class Elsewhere(Scene):
    """The chain of another scene in another database, archived to the same place."""

    def __init__(self, scene: Scene, url: str) -> None:
        self.__dict__.update(scene.__dict__)
        self.url, self.said = url, []
        self.settings = scene.settings.model_copy(update={"hot_postgres_url": SecretStr(url)})
        self.ledger = Ledger(url, self.chain_id)
        self.ledger.create_tables()
        self.make_tables()


def carry_over(source: Scene, target: Scene) -> None:
    """The hot rows and the ledger of a scene, as a backup would have them."""
    with source.connect() as here, target.connect() as there:
        for table in LEDGER:
            there.execute(f"TRUNCATE compaction.{table} CASCADE")
        for name in NAMES:
            there.execute(f"TRUNCATE {target.schema}.{name}")
        pairs = [("compaction", table) for table in reversed(LEDGER)] + [(source.schema, name) for name in NAMES]
        for schema, table in pairs:
            name = sql.Identifier(schema, table)
            with (
                here.cursor() as reading,
                there.cursor() as writing,
                reading.copy(sql.SQL("COPY {} TO STDOUT (FORMAT binary)").format(name)) as out,
                writing.copy(sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(name)) as into,
            ):
                for part in out:
                    into.write(part)
        for sequence in ("archive_fences", "archive_ranges_id_seq"):
            last = here.execute(sql.SQL("SELECT last_value FROM {}").format(sql.Identifier("compaction", sequence)))
            there.execute("SELECT setval(%s, %s)", (f"compaction.{sequence}", *last.fetchone()))


def rebuilding(scene: Scene) -> RebuildRun:
    return RebuildRun(scene.archive, scene.settings, lambda: ParallelMap(None, 2), scene.said.append, owner="a person")
