"""What every verb stands on, in layers: storage, verification, parquet, iceberg, spark, dagster."""
