"""Tables of tenants in the catalog: made, found, listed, dropped so that they can come back."""

import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import (
    BadRequestError,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.transforms import BucketTransform, Transform, TruncateTransform, parse_transform
from pyiceberg.types import BinaryType, DecimalType, IcebergType, ListType, MapType, NestedField, StructType

from compaction_platform.lake.iceberg.catalog import open_catalog
from compaction_platform.lake.iceberg.types import TypeUnsupported, arrow_type, parsed_type
from compaction_platform.lake.storage.object_store import ObjectStore
from compaction_platform.maintain.config import WriteRules
from compaction_platform.serve.http.auth import catalog_namespace
from compaction_platform.serve.http.errors import (
    InvalidSchema,
    LakeUnavailable,
    TableDropped,
    TableExists,
    TableNotFound,
)
from compaction_platform.serve.http.models import CreateTable, OnTable
from compaction_platform.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
PARTITION = re.compile(r"(?P<name>\w+)|(?P<transform>[a-z]+)\((?:(?P<number>\d{1,9})\s*,\s*)?(?P<column>\w+)\)")
EXAMPLES = "examples: country, year(at), month(at), day(at), hour(at), bucket(16, id), truncate(4, code)"
DEEPEST = 20
MOST_DIGITS = 38
BY_TIME = ("year", "month", "day", "hour")
# A caller's names begin with a letter.
DROPPED = re.compile(r"0dropped_(?P<at>\d+)_[0-9a-f]{8}_(?P<name>.+)")
FIRST_PARTITION_FIELD = 1000


@dataclass(frozen=True)
class TableRef:
    """A table of a tenant, as the catalog names it."""

    namespace: str
    name: str

    @classmethod
    def of(cls, request: OnTable) -> "TableRef":
        return cls(catalog_namespace(request.tenant_id, request.namespace), request.table)

    @property
    def identifier(self) -> tuple[str, str]:
        return self.namespace, self.name

    @property
    def called(self) -> str:
        return f"{self.namespace}.{self.name}"


@dataclass
class TenantTables:
    settings: Settings
    undo_for: timedelta = timedelta(hours=168)
    _here: threading.local = field(default_factory=threading.local)

    @property
    def catalog(self) -> "Catalog":
        """One for each thread: its connection is not made to be shared."""
        if not hasattr(self._here, "catalog"):
            with reachable():
                self._here.catalog = open_catalog(self.settings)
        found: Catalog = self._here.catalog
        return found

    def load(self, where: TableRef) -> "Table":
        with reachable():
            try:
                return self.catalog.load_table(where.identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                raise TableNotFound(f"there is no table {where.name} in this namespace.") from None

    def create(self, request: CreateTable) -> bool:
        """Whether it was made; False: it was there, with these columns."""
        where = TableRef.of(request)
        schema = schema_of(request)
        spec = partitions_of(request.partition_by, schema)
        with reachable():
            self._make_namespace(where.namespace)
            if self.catalog.table_exists(where.identifier):
                return self._is_the_same(where, schema, request.if_not_exists)
            try:
                made = self.catalog.create_table(
                    where.identifier, schema, partition_spec=spec, properties=WriteRules().properties()
                )
            except TableAlreadyExistsError:
                return self._is_the_same(where, schema, request.if_not_exists)
            except BadRequestError as error:
                raise InvalidSchema(f"the catalog does not take this: {str(error).splitlines()[0][:300]}") from None
        if _shape(made.schema()) != _shape(schema):  # some catalogs answer with the table that another one has made
            raise TableExists(f"table {where.name} was made with other columns by somebody else meanwhile.")
        return True

    def _make_namespace(self, namespace: str) -> None:
        try:
            if not self.catalog.namespace_exists(namespace):
                self.catalog.create_namespace(namespace)
        except NamespaceAlreadyExistsError:
            return

    def _is_the_same(self, where: TableRef, schema: Schema, if_not_exists: bool) -> bool:
        if if_not_exists and _shape(self.load(where).schema()) == _shape(schema):
            return False
        why = ", with other columns" if if_not_exists else ""
        raise TableExists(f"table {where.name} exists{why}. It was not changed.")

    def names(self, tenant: str, namespace: str) -> list[str]:
        with reachable():
            try:
                found = self.catalog.list_tables(catalog_namespace(tenant, namespace))
            except NoSuchNamespaceError:
                return []
        return sorted(each[-1] for each in found if not DROPPED.fullmatch(each[-1]))

    # ------------------------------------------------------------ dropped, and back

    def drop(self, where: TableRef) -> datetime:
        """Hide it; until when it can be restored."""
        self.load(where)
        now = self.now()
        self._forget_expired(where, now)
        hidden = f"0dropped_{round(now.timestamp())}_{secrets.token_hex(4)}_{where.name}"
        with reachable():
            try:
                self.catalog.rename_table(where.identifier, (where.namespace, hidden))
            except (NoSuchTableError, TableAlreadyExistsError):
                raise TableNotFound(f"table {where.name} was dropped by somebody else meanwhile.") from None
        return now + self.undo_for

    def restore(self, where: TableRef) -> None:
        """The one that was dropped last, if its time is not over."""
        now = self.now()
        waiting = [(at, hidden) for hidden, at in self._dropped(where).items() if now < at + self.undo_for]
        if not waiting:
            raise TableNotFound(f"no table {where.name} was dropped within the last {self.undo_for}.")
        _, hidden = max(waiting)
        with reachable():
            if self.catalog.table_exists(where.identifier):
                raise TableExists(f"a table {where.name} was made since. Drop it first, then restore the older one.")
            try:
                self.catalog.rename_table((where.namespace, hidden), where.identifier)
            except (NoSuchTableError, TableAlreadyExistsError):
                raise TableDropped(f"table {where.name} was restored or made by somebody else meanwhile.") from None

    def _dropped(self, where: TableRef) -> dict[str, datetime]:
        """By the names that they are hidden under: when they were dropped."""
        with reachable():
            try:
                names = [each[-1] for each in self.catalog.list_tables(where.namespace)]
            except NoSuchNamespaceError:
                return {}
        found = [match for name in names if (match := DROPPED.fullmatch(name)) and match["name"] == where.name]
        return {match[0]: datetime.fromtimestamp(int(match["at"]), UTC) for match in found}

    def _forget_expired(self, where: TableRef, now: datetime) -> None:
        """Earlier ones whose time is over go from the catalog when the name is dropped again."""
        for hidden, at in self._dropped(where).items():
            if now >= at + self.undo_for:
                with reachable():
                    self.catalog.drop_table((where.namespace, hidden))

    def now(self) -> datetime:
        """By the store's clock."""
        with reachable():
            return ObjectStore.at(self.settings.place("_compaction"), self.settings).now()


@contextmanager
def reachable() -> Iterator[None]:
    """Say it plainly if the catalog, or the store, does not answer."""
    try:
        yield
    except OSError as error:  # requests' own errors are of this kind, too
        raise LakeUnavailable("the lake does not answer. Look whether it was done, then try again.") from error
    except RESTError as error:
        raise LakeUnavailable("the catalog refuses. Look whether it was done, then try again.") from error


def _shape(schema: Schema) -> list[Any]:
    """Columns without the numbers that a catalog gives them."""
    fresh = assign_fresh_schema_ids(schema)
    return [(each.name, str(each.field_type), each.required) for each in fresh.fields]


def schema_of(request: CreateTable) -> Schema:
    fields = []
    seen: set[str] = set()
    for number, (name, column) in enumerate(request.schema_.fields.items(), start=1):
        if not COLUMN.fullmatch(name):
            raise InvalidSchema(
                f"{name[:100]!r} is not a usable name for a field: letters, digits and underscores, no digit first."
            )
        if name.lower() in seen:
            raise InvalidSchema(f"field {name} is there twice (upper and lower case are the same).")
        seen.add(name.lower())
        if column.type.count("<") > DEEPEST:
            raise InvalidSchema(f"field {name}: its type is nested too deeply.")
        try:
            kind = parsed_type(column.type)
            arrow_type(kind)
            _require_sound(kind)
        except (TypeUnsupported, ValueError) as error:
            raise InvalidSchema(f"field {name}: {str(error).splitlines()[0][:300]}") from None
        fields.append(NestedField(number, name, kind, required=column.required, doc=column.doc or None))
    return assign_fresh_schema_ids(Schema(*fields))


def _require_sound(kind: IcebergType) -> None:
    """Of what types are made of, too."""
    if isinstance(kind, DecimalType) and not 0 <= kind.scale <= kind.precision <= MOST_DIGITS:
        raise ValueError(f"{kind}: between 1 and {MOST_DIGITS} digits, no more of them after the point")
    if isinstance(kind, StructType):
        names = [field.name for field in kind.fields]
        if not names or any(not COLUMN.fullmatch(name) for name in names):
            raise ValueError("a struct has fields, and their names are letters, digits and underscores")
        if len({name.lower() for name in names}) != len(names):
            raise ValueError("a struct has a field twice")
        for field in kind.fields:
            _require_sound(field.field_type)
    if isinstance(kind, ListType):
        _require_sound(kind.element_type)
    if isinstance(kind, MapType):
        _require_sound(kind.key_type)
        _require_sound(kind.value_type)


def partitions_of(wanted: list[str], schema: Schema) -> PartitionSpec:
    fields = []
    for number, text in enumerate(wanted):
        match = PARTITION.fullmatch(text.strip())
        if match is None:
            raise InvalidSchema(f"partition_by: {text[:100]!r} is not understood; {EXAMPLES}.")
        column = match["name"] or match["column"]
        found = next((each for each in schema.fields if each.name == column), None)
        if found is None:
            raise InvalidSchema(f"partition_by: there is no field {column[:100]}.")
        transform = _transform(match["transform"], match["number"], text)
        is_cut_bytes = match["transform"] == "truncate" and isinstance(found.field_type, BinaryType)
        if not transform.can_transform(found.field_type) or is_cut_bytes:
            raise InvalidSchema(f"partition_by: {text[:100]} cannot be done with {found.field_type}.")
        name = column if match["name"] else f"{column}_{match['transform']}"
        fields.append(PartitionField(found.field_id, FIRST_PARTITION_FIELD + number, transform, name))
    if len({each.source_id for each in fields}) != len(fields):
        raise InvalidSchema("partition_by: a field is there twice; one partition for each.")
    columns = {each.name: each.field_id for each in schema.fields}
    for each in fields:
        if columns.get(each.name, each.source_id) != each.source_id:
            raise InvalidSchema(
                f"partition_by: it would be called {each.name}, which is another field; rename that one."
            )
    return PartitionSpec(*fields)


def _transform(name: str | None, number: str | None, text: str) -> Transform[Any, Any]:
    if name is None:
        return parse_transform("identity")
    if name in BY_TIME and number is None:
        return parse_transform(name)
    if name == "bucket" and number and int(number) > 0:
        return BucketTransform(int(number))
    if name == "truncate" and number and int(number) > 0:
        return TruncateTransform(int(number))
    raise InvalidSchema(f"partition_by: {text[:100]!r} is not understood; {EXAMPLES}.")
