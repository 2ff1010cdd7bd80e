"""The process Spark forks its Python workers from, with what every task needs already loaded."""

import numpy
import obstore
import pyarrow
import pyarrow.compute
import pyarrow.parquet
import xxhash
from pyspark.daemon import manager

PRELOADED = (numpy, obstore, pyarrow, pyarrow.compute, pyarrow.parquet, xxhash)

if __name__ == "__main__":
    manager()  # type: ignore[no-untyped-call]
