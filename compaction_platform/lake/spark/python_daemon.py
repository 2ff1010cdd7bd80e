"""The process Spark forks its Python workers from, with what every task needs already loaded."""

import gc
import os

# Arrow's allocator gives freed memory back to the kernel after 10 ms by default, and gets it anew, page by page, for
# the next batch: a sixth of the time of a task that decodes and encodes. A worker keeps it for ten seconds.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "10000")

import numpy
import obstore
import pyarrow
import pyarrow.compute
import pyarrow.parquet
import xxhash
from pyspark.daemon import manager

from compaction_platform.lake.iceberg import data_file_reader, data_file_writer
from compaction_platform.lake.parquet import fetch_footer
from compaction_platform.lake.parquet.stitch import verify
from compaction_platform.lake.spark import parallel_map
from compaction_platform.lake.storage import object_store
from compaction_platform.lake.verification import fingerprint

GARBAGE_AT_LEAST = 50_000  # values made and not freed, before the collector looks for some
PRELOADED = (numpy, obstore, pyarrow, pyarrow.compute, pyarrow.parquet, xxhash)
PRELOADED_OF_OURS = (data_file_reader, data_file_writer, fingerprint, fetch_footer, object_store, parallel_map, verify)

if __name__ == "__main__":
    # What is loaded stays, and tasks make many small values that go with the task. Otherwise the collector of each
    # worker looks at all of it again and again.
    gc.freeze()
    gc.set_threshold(GARBAGE_AT_LEAST)
    manager()  # type: ignore[no-untyped-call]
