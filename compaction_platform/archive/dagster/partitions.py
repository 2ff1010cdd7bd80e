import dagster as dg

from compaction_platform.archive.config import Archive


def partitions_of(archive: Archive) -> dg.DynamicPartitionsDefinition:
    """Ranges of blocks, `1000000-1010000`, the end not included. The sensor adds them."""
    return dg.DynamicPartitionsDefinition(name=f"blocks_{archive.chain}")
