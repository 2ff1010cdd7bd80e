"""Staging Parquet files (Bronze) become one Iceberg table (Silver), one row for each key."""
