import secrets

import pyarrow
import pyarrow.parquet
import pytest
from compaction_platform.new_verb.config import NewVerbConfig
from compaction_platform.new_verb.job import NewVerbJob

from compaction_platform.lake.spark.parallel_map import ParallelMap
from compaction_platform.settings import Settings

pytestmark = pytest.mark.integration


def test_a_second_run_reads_only_what_has_come(settings: Settings) -> None:
    uri = f"{settings.lake_uri}/new_verb-{secrets.token_hex(4)}"
    job = NewVerbJob(NewVerbConfig("events", uri), settings, lambda: ParallelMap(None, 2))

    def put(name: str, rows: int) -> None:
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.table({"id": list(range(rows))}), sink)
        job.store.write(name, sink.getvalue())

    put("a.parquet", 3)
    job.store.write("bad.parquet", b"not Parquet")
    report = job.run()
    assert report.rows == {"a.parquet": 3} and set(report.failed) == {"bad.parquet"}
    put("b.parquet", 5)
    assert job.run().rows == {"b.parquet": 5}
