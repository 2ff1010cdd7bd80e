"""The second Parquet decoder looks at a bin: at some of its inputs before they are joined, at the output before it is
published."""

from collections.abc import Sequence
from pathlib import Path

from compaction_platform.compact.rewrite.read_inputs import UNREADABLE, SourceFile, refuse_exhaustion
from compaction_platform.compact.rewrite.result import NOTHING_CHANGED
from compaction_platform.errors import VerificationFailed
from compaction_platform.lake.parquet.second_reader import (
    NotJudged,
    ReadersDisagree,
    RowRange,
    SecondReaderRefused,
    connected,
    require_agreement,
    seed_of,
)
from compaction_platform.lake.verification.extent import Extent


def refused_inputs(inputs: Sequence[SourceFile], extent: Extent, called: str, place: Path) -> dict[str, str]:
    """By key: why inputs must not be joined with others. Looks at all of them, or at one that the name of the output
    chooses."""
    if extent == "none" or not inputs:
        return {}
    seed = seed_of(called)
    chosen = inputs if extent == "all" else [inputs[seed % len(inputs)]]
    refused: dict[str, str] = {}
    path = place / "input.parquet"
    with connected(place) as connection:
        for each in chosen:
            path.write_bytes(memoryview(each.data))
            try:
                require_agreement(connection, path, each.opened, RowRange.chosen(each.metadata, extent, seed))
            except (SecondReaderRefused, ReadersDisagree) as reason:
                refused[each.file.key] = f"{reason}. Joined with others, it could make their rows unreadable."
            except NotJudged:
                continue
            except UNREADABLE as error:
                refuse_exhaustion(error)
                continue  # what Arrow does not read is found, and told, when it is joined
            finally:
                path.unlink()
    return refused


def require_output(path: Path, output: SourceFile, extent: Extent, called: str) -> None:
    """Raise VerificationFailed if the second reader refuses the output, or reads other values in it than Arrow."""
    rows = RowRange.chosen(output.metadata, extent, seed_of(called))
    if not rows.count:
        return
    with connected(path.parent) as connection:
        try:
            require_agreement(connection, path, output.opened, rows)
        except NotJudged:
            return
        except (SecondReaderRefused, ReadersDisagree) as reason:
            raise VerificationFailed(f"{called}: {reason}. {NOTHING_CHANGED}") from reason
