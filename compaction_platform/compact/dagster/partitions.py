import dagster as dg

from compaction_platform.compact.config import CompactedDataset
from compaction_platform.compact.layout import KEY_FORMATS


def partitions_of(dataset: CompactedDataset) -> dg.TimeWindowPartitionsDefinition | None:
    """Hours or days of the data, in UTC, as its directories name them."""
    if dataset.layout is None:
        return None
    unit = dataset.layout.unit
    kind = dg.HourlyPartitionsDefinition if unit == "hour" else dg.DailyPartitionsDefinition
    return kind(start_date=dataset.layout.partition(dataset.first), timezone="UTC", fmt=KEY_FORMATS[unit])
