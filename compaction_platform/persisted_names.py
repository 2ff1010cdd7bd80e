"""Names that outlive a release: on disk, in footers, in catalogs, in databases, in Dagster's run storage.

A changed value makes files, tables and runs of earlier releases unreadable to this one, and the other way round.
`compaction_platform_tests/golden/` holds them, together with YAML fields, commands, settings and asset keys.
"""

# Footers of compacted files
FOOTER_INPUTS = b"compaction.inputs"
FOOTER_ROWS = b"compaction.rows"

# Directories and files below a compacted directory
COMPACTION_DIRECTORY = "_compaction"
SET_ASIDE_DIRECTORY = "_compaction/set_aside"
NOTHING_GAINED_DIRECTORY = "_compaction/nothing_gained"
DECIDED_DIRECTORY = "_compaction/decided"
TRASH_DIRECTORY = "_compaction/trash"

# Files beside the versions of a Glue partition
GLUE_MANIFEST = "_compaction.json"
GLUE_SWAPPED = "_swapped"
GLUE_NOTHING_GAINED = "_nothing_gained-"
GLUE_BEGUN = "_begun"
GLUE_ABANDONED = "_abandoned"

# Snapshot summaries of Iceberg tables
MERGED_BATCHES = "compaction.batches"
MERGE_RUN = "compaction.run-id"
MAINTENANCE_RUN = "compaction.run"
COMMIT_KIND = "compaction.kind"
COLD_RANGE = "compaction.range"
SERVE_REQUESTS = "serve.requests"

# Below an Iceberg table
QUARANTINE_DIRECTORY = "_compaction/quarantine"
COMPACTED_FILE_PREFIX = "compacted-"

# Below the root of cold ranges
LEDGER_LOG_DIRECTORY = "_ledger"
RANGE_MANIFEST = "_manifest.json"
RANGE_SUCCESS = "_SUCCESS"

# Tags of Dagster runs
SUBJECT_TAG = "compaction/table"
DIGESTS_TAG = "compaction/digests"

# Metrics
METRICS_SCOPE = "compaction_platform"
