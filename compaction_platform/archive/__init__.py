"""archive: finalized block ranges move from hot Postgres to cold Parquet, and are purged only after proof."""
