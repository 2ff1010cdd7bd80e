"""What readers see before and after: the same rows, or a finding."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow
import pyarrow.parquet

from compaction_platform_tests.torture import canonical
from compaction_platform_tests.torture.cases import Input, Prepared
from compaction_platform_tests.torture.readers import Reader, Seen

ROWS = "*"  # the column that stands for whole rows
SECOND = "duckdb"
REFERENCE = "pyarrow"  # it decodes for the project too: only the others are foreign
WITH_PREDICATES = ("duckdb", "polars", "datafusion")


@dataclass(frozen=True)
class Finding:
    kind: str
    detail: str
    is_failure: bool = True
    column: str | None = None  # only this one is refused


@dataclass(frozen=True)
class Judge:
    readers: Mapping[str, Reader]
    yardstick: Path  # a file of the same dataset that every reader reads rightly, as far as it can tell values apart

    # ------------------------------------------------------------ files

    def directory(self, prepared: Prepared, place: Path) -> Iterator[Finding]:
        """A directory after compaction: every input is there unchanged, or in exactly one output."""
        holders: dict[str, list[str]] = {}
        for output in sorted(place.glob("*.compacted-*.parquet")):
            try:
                names = inputs_of(output)
            except (OSError, KeyError, TypeError, ValueError, pyarrow.ArrowException) as error:
                yield Finding("unreadable output", f"{output.name}: {error}")
                continue
            for name in names:
                holders.setdefault(name, []).append(output.name)
            inputs = [prepared.by_name[name] for name in names]
            yield from self.compared(inputs, [output], is_ordered=prepared.case.is_ordered)
        for each in prepared.inputs:
            left, held = place / each.name, holders.get(each.name, [])
            if left.is_file() and left.read_bytes() != each.path.read_bytes():
                yield Finding("input changed", each.name)
            if left.is_file() + len(held) != 1:
                where = [*held, *([each.name] * left.is_file())]
                yield Finding("seen twice" if where else "lost", f"the rows of {each.name} are in {where}")
            if left.is_file() and each.is_sound:
                yield Finding("sound file left", each.name, is_failure=False)

    def table(self, prepared: Prepared, place: Path) -> Iterator[Finding]:
        """The data files of a table after maintenance: inputs as they were, and files that took the place of others."""
        after = {file.name: file for file in place.iterdir()}
        left = {each.name for each in prepared.inputs if each.name in after}
        for each in prepared.inputs:
            if each.name in left and after[each.name].read_bytes() != each.path.read_bytes():
                yield Finding("input changed", each.name)
        outputs = [file for name, file in sorted(after.items()) if name not in left]
        inputs = [each for each in prepared.inputs if each.name not in left]
        if inputs:
            yield from self.compared(inputs, outputs, is_ordered=False)

    # ------------------------------------------------------------ rows

    def compared(self, inputs: Sequence[Input], outputs: Sequence[Path], *, is_ordered: bool) -> Iterator[Finding]:
        reference = _read(self.readers[REFERENCE], inputs)
        seen_by_ours = _agreed(reference, _read(self.readers[SECOND], inputs)) if SECOND in self.readers else []
        for name, reader in self.readers.items():
            before = _read(reader, inputs)
            if any(seen.refused for seen, each in zip(before, inputs, strict=True) if each.is_sound):
                continue  # it cannot read the inputs
            misread = self._misread(reader, inputs, before, reference)
            if misread:
                yield Finding("misread before", f"{name} misreads {sorted(misread)} of sound inputs", is_failure=False)
                continue  # it is no witness
            if is_ordered:
                (output,) = outputs
                findings = _in_order(reader, inputs, before, reference, output)
                yield from (_excused(each, inputs, before, seen_by_ours) for each in findings)
            else:
                yield from self._in_any_order(reader, inputs, outputs)
            if name in WITH_PREDICATES:
                yield from self._predicates(reader, inputs, outputs)

    def _misread(
        self, reader: Reader, inputs: Sequence[Input], before: Sequence[Seen], reference: Sequence[Seen]
    ) -> set[str]:
        """Columns of sound inputs that this reader reads wrongly, though it can tell such values: its own defect."""
        told, rightly = reader.read_input(self.yardstick), self.readers[REFERENCE].read_input(self.yardstick)
        comparable = {name for name, digests in told.columns.items() if digests == rightly.columns.get(name)}
        return {
            name
            for seen, right, each in zip(before, reference, inputs, strict=True)
            for name, digests in seen.columns.items()
            if each.is_sound and name in comparable and digests != right.columns.get(name)
        }

    def _in_any_order(self, reader: Reader, inputs: Sequence[Input], outputs: Sequence[Path]) -> Iterator[Finding]:
        before = _read(reader, inputs, unordered=True)
        after = [reader.read(output, unordered=True) for output in outputs]
        for seen in after:
            if seen.refused is not None:
                yield Finding("refused", f"{reader.name} read the inputs, but not the output: {seen.refused[:300]}")
                return
        if any(seen.refused for seen in before):
            return  # what is in the damaged file cannot be told by this reader
        rows = [seen.rows for seen in before], [seen.rows for seen in after]
        columns = [name for name in _common(before, inputs) if name != ROWS]
        lost = [name for name in columns if any(name not in seen.columns for seen in after)]
        if lost:
            yield Finding(
                "refused", f"{reader.name} read columns {lost} of the inputs, but not now: {after[0].unsupported}"
            )
            return
        is_whole = not any(seen.unsupported for seen in (*before, *after))
        compared = [*columns, ROWS] if is_whole else columns
        differing = [name for name in compared if _total(before, name) != _total(after, name)]
        if differing or sum(rows[0]) != sum(rows[1]):
            is_sound = all(each.is_sound for each in inputs)
            reference = _read(self.readers[REFERENCE], inputs, unordered=True)
            agreed = all(_total(before, name) == _total(reference, name) for name in differing)
            detail = f"{reader.name}, in any order, columns {differing}; {rows[0]} rows, then {rows[1]}"
            yield Finding("rows differ" if is_sound else "damaged rows differ", detail, is_failure=is_sound or agreed)

    def _predicates(self, reader: Reader, inputs: Sequence[Input], outputs: Sequence[Path]) -> Iterator[Finding]:
        for output in outputs:
            for column, what in reader.wrong_predicates(output).items():
                of_its_own = any(column in reader.wrong_predicates(each.path) for each in inputs if each.is_sound)
                yield Finding("predicate", f"{reader.name}, column {column}: {what}", is_failure=not of_its_own)


def _in_order(
    reader: Reader, inputs: Sequence[Input], before: Sequence[Seen], reference: Sequence[Seen], output: Path
) -> Iterator[Finding]:
    cuts = [(other if seen.refused else seen).rows for seen, other in zip(before, reference, strict=True)]
    after = reader.read(output, cuts)
    if after.refused is not None:
        yield Finding("refused", f"{reader.name} read the inputs, but not the output: {after.refused[:300]}")
        return
    if after.rows != sum(cuts):
        yield Finding("rows differ", f"{reader.name} reads {after.rows} rows, before {cuts}")
    for column in _common(before, inputs):
        if column in after.columns:
            yield from _differences(reader.name, column, inputs, before, reference, after)
        else:
            why = after.unsupported.get(column, "there is no such column")[:300]
            detail = f"{reader.name} read column {column} of the inputs, but not now: {why}"
            yield Finding("refused", detail, column=column)
    sound = [seen for seen, each in zip(before, inputs, strict=True) if each.is_sound]
    known = {name for seen in sound for name in (*seen.columns, *seen.unsupported)}
    if sound and (added := {*after.columns, *after.unsupported} - known):
        yield Finding("columns added", f"{reader.name}: {sorted(added)}")


def _agreed(one: Sequence[Seen], other: Sequence[Seen]) -> list[frozenset[str]]:
    """Of each file the columns in which two readers see the same."""
    return [
        frozenset(name for name, digests in first.columns.items() if digests == second.columns.get(name))
        for first, second in zip(one, other, strict=True)
    ]


def _excused(
    finding: Finding, inputs: Sequence[Input], before: Sequence[Seen], seen_by_ours: Sequence[frozenset[str]]
) -> Finding:
    """Damage that is no error to the two decoders we have, and to which no checksum testifies, cannot be known: the
    reader refused the damaged file itself, pyarrow and DuckDB read the same in it. It is counted."""
    if finding.column is None or not seen_by_ours:
        return finding
    unknowable = [
        not each.is_sound and finding.column in agreed and finding.column not in seen.columns
        for each, seen, agreed in zip(inputs, before, seen_by_ours, strict=True)
    ]
    return replace(finding, kind="refused, as the damaged file was", is_failure=False) if any(unknowable) else finding


def _differences(
    name: str,
    column: str,
    inputs: Sequence[Input],
    before: Sequence[Seen],
    reference: Sequence[Seen],
    after: Seen,
) -> Iterator[Finding]:
    """Rows of one column, input by input. What readers disagree about in a damaged file is none of our making."""
    for number, each in enumerate(inputs):
        was = before[number].columns.get(column)
        if was is None or was == (after.columns[column][number],):
            continue
        if each.is_sound:
            yield Finding("rows differ", f"{name}, column {column}, rows of {each.name}")
        else:
            agreed = was == reference[number].columns.get(column)
            yield Finding("damaged rows differ", f"{name}, column {column} of {each.name}", is_failure=agreed)


def _read(reader: Reader, inputs: Sequence[Input], *, unordered: bool = False) -> list[Seen]:
    return [reader.read_input(each.path, is_sound=each.is_sound, unordered=unordered) for each in inputs]


def inputs_of(output: Path) -> list[str]:
    """Names of the files whose rows an output has, in their order: what it says in its own footer."""
    metadata = pyarrow.parquet.read_metadata(output).metadata or {}
    return [each["name"] for each in json.loads(metadata[b"compaction.inputs"])]


def _common(before: Sequence[Seen], inputs: Sequence[Input]) -> list[str]:
    """Columns that this reader can read in every sound input."""
    sound = [set(seen.columns) for seen, each in zip(before, inputs, strict=True) if each.is_sound]
    return sorted(set.intersection(*sound)) if sound else []


def _total(files: Sequence[Seen], column: str) -> str | None:
    """The sum over all files; None if one of them has no such column."""
    sums = [seen.columns[column][0] for seen in files if column in seen.columns]
    return canonical.added(sums) if len(sums) == len(files) else None
