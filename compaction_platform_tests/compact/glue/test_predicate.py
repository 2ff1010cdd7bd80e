"""A partition predicate is understood or refused; what goes to Glue is said anew."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction_platform.compact.glue.names import PartitionNameInvalid, partition_name, partition_values
from compaction_platform.compact.glue.plan.predicate import PredicateInvalid, checked_grammar, checked_predicate

pytestmark = pytest.mark.unit

KEYS = {"year": "string", "month": "string", "day": "int", "price": "decimal(10,2)", "at": "date", "odd": "binary"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("year='2023' AND month='05'", "((year = '2023') AND (month = '05'))"),
        ("YEAR = '2023' or not (month <> '05')", "((year = '2023') OR (NOT (month <> '05')))"),
        ("year='1' or month='2' and day=3", "((year = '1') OR ((month = '2') AND (day = 3)))"),
        ("(year='1' or month='2') and day=3", "(((year = '1') OR (month = '2')) AND (day = 3))"),
        ("month IN ('05','06')", "(month IN ('05', '06'))"),
        ("month not in ('05')", "(month NOT IN ('05'))"),
        ("day between 1 and 7 and year='2023'", "((day BETWEEN 1 AND 7) AND (year = '2023'))"),
        ("year like '20%'", "(year LIKE '20%')"),
        ("year is not null", "(year IS NOT NULL)"),
        ("\"month\" != '05'", "(month <> '05')"),
        ("day = '5'", "(day = 5)"),
        ("day >= -5", "(day >= -5)"),
        ("price < 12.50", "(price < 12.50)"),
        ("at >= '2023-05-01'", "(at >= '2023-05-01')"),
        ("year = 'it''s -- /* ; )'", "(year = 'it''s -- /* ; )')"),
    ],
)
def test_a_filter_is_understood(text: str, said: str) -> None:
    assert checked_predicate(text, KEYS) == said
    assert checked_grammar(text) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("country = 'de'", "country is not a partition key; there are year, month"),
        ("upper(year) = 'X'", "is a function"),
        ("year = now()", "a value"),
        ("year = month", "a value"),
        ("1 = 1", "a partition key is wanted"),
        ("year", "a comparison"),
        ("year = '2023' extra", "AND, OR or the end"),
        ("year = '2023'; DROP TABLE clicks", "cannot be part of a filter"),
        ("year = '2023' -- all", "cannot be part of a filter"),
        ("year = '2023", "cannot be part of a filter"),
        ("year IN ()", "a value"),
        ("year IN (SELECT 1)", "a value"),
        ("(year = '2023'", ") is wanted"),
        ("month = 5", "write '5' in quotes"),
        ("day = 'x'", "is no number"),
        ("day = 'NaN'", "is no number"),
        ("day LIKE '5'", "LIKE is for text"),
        ("odd = '1'", "Glue cannot filter by that"),
        ("year = 1e5", "cannot be part of a filter"),
        ("(" * 200 + "year='1'" + ")" * 200, "nested too deeply"),
        ("year IN (" + ", ".join(f"'{number}'" for number in range(1000)) + ")", "longer than"),
    ],
)
def test_what_is_no_filter_is_refused(text: str, why: str) -> None:
    with pytest.raises(PredicateInvalid) as refused:
        checked_predicate(text, KEYS)
    assert why in str(refused.value)


@given(st.text(max_size=80))
def test_whatever_is_written_is_understood_or_refused(text: str) -> None:
    try:
        said = checked_predicate(text, KEYS)
    except PredicateInvalid:
        return
    assert checked_predicate(said, KEYS) == said


values = st.text(st.characters(blacklist_categories=["Cs"]), max_size=30)


@given(st.lists(values, min_size=2, max_size=2))
def test_names_are_read_back_without_loss(some: list[str]) -> None:
    name = partition_name(["year", "month"], some)
    assert partition_values(["year", "month"], name) == tuple(some)
    assert "..." not in name and name.isprintable() and not set(name) & set(",[]\\{}")
    assert name.count("/") == 1


@given(st.lists(values, min_size=4, max_size=4))
def test_different_partitions_have_different_names(some: list[str]) -> None:
    one, two = some[:2], some[2:]
    assert (one == two) == (partition_name(["a", "b"], one) == partition_name(["a", "b"], two))


@pytest.mark.parametrize("name", ["", "year=2023", "month=05/year=2023", "year=2023/month=05/day=1", "year=ü/month=1"])
def test_what_names_no_partition_is_refused(name: str) -> None:
    with pytest.raises(PartitionNameInvalid, match="year=…/month=…"):
        partition_values(["year", "month"], name)
