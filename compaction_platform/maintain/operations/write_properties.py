"""How a table is to be written, as table properties: kept as declared, so that writers make good files themselves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compaction_platform.maintain.config import WriteRules

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from compaction_platform.settings import Settings


def drift(table: "Table", rules: WriteRules) -> dict[str, tuple[str | None, str]]:
    """Properties that are not as declared: what is there, and what should be."""
    there: Mapping[str, str] = table.properties
    return {name: (there.get(name), value) for name, value in rules.properties().items() if there.get(name) != value}


def keep(table: "Table", rules: WriteRules) -> dict[str, tuple[str | None, str]]:
    """Set what has drifted; what it was."""
    found = drift(table, rules)
    if found:
        with table.transaction() as transaction:
            transaction.set_properties({name: value for name, (_, value) in found.items()})
    return found


@dataclass(frozen=True)
class WriteProperties:
    """The need of a declaration: for the set-up job."""

    table: str
    rules: WriteRules

    @property
    def description(self) -> str:
        return f"write properties of {self.table}"

    def ensure(self, settings: "Settings") -> bool | None:
        from compaction_platform.maintain.table_state import TableMissing, load_table

        try:
            return bool(keep(load_table(settings, self.table), self.rules))
        except TableMissing:
            return None  # it is made by its first writer; the first maintenance run sees to it
