"""Find text that is not valid UTF-8. Arrow does not look when it reads; other readers refuse the whole file."""

from collections.abc import Sequence

import pyarrow


def invalid_text(rows: pyarrow.RecordBatch | pyarrow.Table) -> str | None:
    """The first column with text, at any depth, that is not valid UTF-8; None if there is none."""
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if not _has_text(field.type):
            continue
        chunks = column.chunks if isinstance(column, pyarrow.ChunkedArray) else [column]
        if not all(map(_is_valid, chunks)):
            return str(field.name)
    return None


def _has_text(kind: pyarrow.DataType) -> bool:
    return _is_text(kind) or any(_has_text(each) for each in _inner_types(kind))


def _is_text(kind: pyarrow.DataType) -> bool:
    return bool(
        pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind) or pyarrow.types.is_string_view(kind)
    )


def _inner_types(kind: pyarrow.DataType) -> Sequence[pyarrow.DataType]:
    if isinstance(kind, pyarrow.BaseExtensionType):
        return [kind.storage_type]
    if pyarrow.types.is_dictionary(kind) or pyarrow.types.is_run_end_encoded(kind):
        return [kind.value_type]
    return [kind.field(number).type for number in range(kind.num_fields)] if pyarrow.types.is_nested(kind) else []


def _is_valid(array: pyarrow.Array) -> bool:
    if _is_text(array.type):
        try:
            array.validate(full=True)
        except pyarrow.ArrowInvalid:
            return False
        return True
    return all(_is_valid(inner) for inner in _inner_arrays(array) if _has_text(inner.type))


def _inner_arrays(array: pyarrow.Array) -> Sequence[pyarrow.Array]:
    kind = array.type
    if isinstance(kind, pyarrow.BaseExtensionType):
        return [array.storage]
    if pyarrow.types.is_dictionary(kind):
        return [array.dictionary]
    if pyarrow.types.is_run_end_encoded(kind):
        return [array.values]
    if pyarrow.types.is_struct(kind):
        return [array.field(number) for number in range(kind.num_fields)]
    if pyarrow.types.is_map(kind):
        return [array.keys, array.items]
    return [array.flatten()]
