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

from compaction_platform.lake import data_file_rows, data_files, fingerprint, footers, objects, spread
from compaction_platform.lake.stitch import proof

PRELOADED = (numpy, obstore, pyarrow, pyarrow.compute, pyarrow.parquet, xxhash)
PRELOADED_OF_OURS = (data_file_rows, data_files, fingerprint, footers, objects, spread, proof)

if __name__ == "__main__":
    # What is loaded stays. Otherwise the collector of each worker looks at all of it again and again.
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]
