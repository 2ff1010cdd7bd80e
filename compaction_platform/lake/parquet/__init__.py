"""The Parquet format: footers, page headers and schemas in plain Python; files written, sorted and proved by Arrow."""
