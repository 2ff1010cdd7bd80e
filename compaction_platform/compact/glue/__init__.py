"""Compaction of tables in the Glue Data Catalog: partitions switch to their compacted files in one step."""
