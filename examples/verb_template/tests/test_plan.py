import pytest
from compaction_platform.new_verb.plan.inventory_plan import FileToRead, plan_inventory

pytestmark = pytest.mark.unit


def test_what_is_new_or_was_replaced_is_read() -> None:
    files = [FileToRead("a.parquet", 1, "1"), FileToRead("b.parquet", 1, "2"), FileToRead("notes.txt", 1, "3")]
    plan = plan_inventory(files, known={"a.parquet": "1", "b.parquet": "old"})
    assert [file.key for file in plan.to_read] == ["b.parquet"]
    assert plan.skipped == {"a.parquet": "in the inventory already", "notes.txt": "not Parquet, by its name"}
