"""An archive of the classes that Spark and Iceberg load, for the JVMs of tests: it halves the CPU time until they work.

Java maps the archive instead of reading and parsing some twenty thousand classes. It holds classes of the pinned jars
and nothing else. Where it does not fit (another Java, other jars, another path), Java goes without it, in silence; its
name has all of that in it, so that `python -m compaction_platform_tests.java_classes` then makes another one.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from compaction_platform.embedded_lake.embedded import EmbeddedLake
from compaction_platform.embedded_lake.jars import jars_directory
from compaction_platform.embedded_lake.java import find_java
from compaction_platform.lake.spark.session import spark_session

# A Spark of a test does not live long: code that is compiled as well as can be is not used often enough to be worth it.
# Nor need the classes of pinned jars be verified each time.
QUICKLY = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
IN_SILENCE = "-Xlog:cds=off -Xlog:cds+dynamic=off"
SECONDS_TO_WRITE = 180

WORK = """
CREATE NAMESPACE lake.classes
CREATE TABLE lake.classes.t (id bigint, day date, at timestamp, word string, n struct<a: int>) USING iceberg
    PARTITIONED BY (day) TBLPROPERTIES ('write.delete.mode'='merge-on-read', 'write.merge.mode'='merge-on-read')
INSERT INTO lake.classes.t SELECT id, date_add(DATE '2026-01-01', CAST(id % 2 AS int)), TIMESTAMP '2026-01-01 00:00:00',
    CAST(id AS string), named_struct('a', 1) FROM range(40)
INSERT INTO lake.classes.t SELECT id + 100, day, at, word, n FROM lake.classes.t
ALTER TABLE lake.classes.t CREATE BRANCH other
MERGE INTO lake.classes.t.branch_other t USING (SELECT id + 20 AS id, day, at, 'new' AS word, n FROM lake.classes.t) s
    ON t.id = s.id WHEN MATCHED AND t.word <> s.word THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *
CALL lake.system.fast_forward('classes.t', 'main', 'other')
DELETE FROM lake.classes.t WHERE id % 7 = 0
SELECT day, count(*), bit_xor(xxhash64(*)), row_number() OVER (ORDER BY day) FROM lake.classes.t GROUP BY day
SELECT a.id FROM lake.classes.t a LEFT ANTI JOIN lake.classes.t b ON a.id = b.id + 1 ORDER BY a.id
SELECT * FROM lake.classes.t.files
CALL lake.system.rewrite_data_files(table => 'classes.t', options => map('rewrite-all', 'true'))
CALL lake.system.rewrite_manifests('classes.t')
CALL lake.system.expire_snapshots(table => 'classes.t', retain_last => 1, older_than => TIMESTAMP '2100-01-01 00:00:00')
CALL lake.system.remove_orphan_files(table => 'classes.t', dry_run => true, prefix_listing => true)
DROP TABLE lake.classes.t
"""


def options() -> str:
    """For JAVA_TOOL_OPTIONS."""
    archive = archive_file()
    return f"{QUICKLY} {IN_SILENCE} -XX:SharedArchiveFile={archive}" if archive.exists() else QUICKLY


def archive_file() -> Path:
    java = str(find_java())
    version = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr.splitlines()[-2:]
    jars = sorted((jar.name, jar.stat().st_size) for jar in jars_directory().glob("*.jar"))
    fits = repr((java, version, str(jars_directory()), jars, QUICKLY))
    return Path(sys.prefix) / f"java-classes-{hashlib.sha256(fits.encode()).hexdigest()[:16]}.jsa"


def make(archive: Path) -> None:
    """Let Spark and Iceberg do once what tests do. Java writes the archive when it ends."""
    with tempfile.TemporaryDirectory(prefix="java-classes-", dir=archive.parent) as place:
        made = Path(place) / "classes.jsa"
        os.environ["JAVA_TOOL_OPTIONS"] = QUICKLY
        os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={made} {IN_SILENCE}"
        with EmbeddedLake(Path(place) / "lake") as lake:
            with spark_session(lake.settings()) as session:
                work(session)
            spark = next(running for running in lake.running if running.server.name == "spark")
            spark.ask_to_stop()
            spark.popen.wait(SECONDS_TO_WRITE)
        for outdated in archive.parent.glob("java-classes-*.jsa"):
            outdated.unlink()
        made.replace(archive)


def work(session: Any) -> None:
    for statement in WORK.replace("\n    ", " ").strip().splitlines():
        session.sql(statement).collect()
    session.range(10).mapInArrow(lambda batches: batches, "id long").collect()
    session.createDataFrame([(1, "a")], "id int, word string").collect()


if __name__ == "__main__":
    wanted = archive_file()
    if not wanted.exists():
        make(wanted)
