"""A partition filter as a person writes it: parsed, checked against the table, and applied to metadata. It never
becomes SQL."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import bind, expression_evaluator, extract_field_ids, inclusive_projection
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from compaction_platform.errors import CompactionError
from compaction_platform.maintain.plan.delete_index import is_known

EXAMPLES = "Examples: country = 'de'; event_time >= '2026-01-01T00:00:00+00:00' and event_time < '2026-02-01T…'."


class FilterInvalid(CompactionError):
    """The partition filter cannot be meant like this. Nothing was done."""


@dataclass(frozen=True)
class PartitionFilter:
    expression: BooleanExpression
    specs: Mapping[int, PartitionSpec]
    schema: Schema

    @classmethod
    def parsed(cls, text: str | None, metadata: TableMetadata) -> "PartitionFilter":
        schema, specs = metadata.schema(), metadata.specs()
        if not text or not text.strip():
            return cls(AlwaysTrue(), specs, schema)
        expression = parsed(text)
        try:
            bound = bind(schema, expression, case_sensitive=True)
        except Exception as error:  # noqa: BLE001 (PyIceberg has many; each is about this text)
            raise FilterInvalid(
                f"partition_filter {text!r}: {_first_line(error)} The table's columns: "
                f"{', '.join(schema.column_names)}. {EXAMPLES} Nothing was done."
            ) from None
        known = [spec for spec in specs.values() if is_known(spec, schema)]
        partitioned = {field.source_id for spec in known for field in spec.fields}
        if unknown := extract_field_ids(bound) - partitioned:
            names = ", ".join(sorted(str(schema.find_column_name(each)) for each in unknown))
            by = ", ".join(sorted(str(schema.find_column_name(each)) for each in partitioned))
            raise FilterInvalid(
                f"partition_filter {text!r}: the table is not partitioned by {names}. "
                f"{f'It is partitioned by {by}.' if by else 'It is not partitioned at all.'} Nothing was done."
            )
        return cls(expression, specs, schema)

    def matcher(self) -> Callable[[DataFile], bool]:
        """Whether a partition may hold rows the filter is about."""
        if isinstance(self.expression, AlwaysTrue):
            return lambda file: True
        evaluators = {
            number: self._evaluator(spec) for number, spec in self.specs.items() if is_known(spec, self.schema)
        }
        return lambda file: file.spec_id not in evaluators or bool(evaluators[file.spec_id](file.partition))

    def _evaluator(self, spec: PartitionSpec) -> Callable[[Any], bool]:
        projected = inclusive_projection(self.schema, spec, case_sensitive=True)(self.expression)
        return expression_evaluator(Schema(*spec.partition_type(self.schema).fields), projected, case_sensitive=True)


def parsed(text: str) -> BooleanExpression:
    try:
        return parse(text)
    except Exception as error:  # noqa: BLE001 (PyIceberg has many; each is about this text)
        raise FilterInvalid(
            f"partition_filter {text!r} is not a filter: {_first_line(error)} {EXAMPLES} Nothing was done."
        ) from None


def _first_line(error: BaseException) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if text.endswith(".") else f"{text}."
