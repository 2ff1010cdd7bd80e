"""The format of Parquet files around the values: footers and page headers, read and written. Nothing is decoded."""
