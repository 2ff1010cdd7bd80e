"""compact: a directory of small Parquet files becomes few large ones."""
