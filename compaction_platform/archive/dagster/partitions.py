import dagster as dg

from compaction_platform.archive.config import ArchivedChain


def partitions_of(archive: ArchivedChain) -> dg.DynamicPartitionsDefinition:
    """Ranges of blocks, `1000000-1010000`, the end not included. The sensor adds them."""
    return dg.DynamicPartitionsDefinition(name=f"blocks_{archive.chain}")
