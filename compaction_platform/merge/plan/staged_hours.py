"""What is staged, hour by hour, and what is to be done about it. Pure: listings and times in, values out.

An hour's batch is known by the digest of its files (key, etag, size). Everything else about a batch follows
from these, so a listing is enough to tell whether an hour has been merged.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from itertools import pairwise

HOUR_FORMAT = "%Y-%m-%d-%H:%M"
HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One version of one file below the source's address."""

    key: str
    size: int
    etag: str
    arrived: datetime

    @property
    def hour(self) -> str:
        return hour_of(self.arrived)


@dataclass(frozen=True)
class Batch:
    """The files that arrived in one hour, by key."""

    hour: str
    files: tuple[StagedFile, ...]

    @cached_property
    def digest(self) -> str:
        lines = "".join(json.dumps([file.key, file.etag, file.size]) + "\n" for file in self.files)
        return hashlib.sha256(lines.encode()).hexdigest()[:32]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    def without(self, keys: Collection[str]) -> "Batch":
        return Batch(self.hour, tuple(file for file in self.files if file.key not in keys))


def hour_of(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d-%H:00")


def start_of(hour: str) -> datetime:
    return datetime.strptime(hour, HOUR_FORMAT).replace(tzinfo=UTC)


def is_data(key: str, glob: str) -> bool:
    """Whether this key is a staged file. Hidden names (`_…`, `.…`) never are, whatever the glob says."""
    return not any(part.startswith(("_", ".")) for part in key.split("/")) and bool(_pattern(glob).fullmatch(key))


@lru_cache
def _pattern(glob: str) -> re.Pattern[str]:
    """`*` and `?` stay inside one path segment, `**/` crosses any number of them."""
    parts = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pieces = re.split(r"(\*\*/|\*\*|\*|\?)", glob)
    return re.compile("".join(parts.get(piece, re.escape(piece)) for piece in pieces))


def batches(files: Iterable[StagedFile]) -> dict[str, Batch]:
    """One batch for each hour in which something arrived, oldest first."""
    hours: dict[str, list[StagedFile]] = {}
    for file in files:
        hours.setdefault(file.hour, []).append(file)
    return {hour: Batch(hour, tuple(sorted(hours[hour], key=lambda file: file.key))) for hour in sorted(hours)}


def is_closed(hour: str, now: datetime, grace: timedelta) -> bool:
    """Whether this hour is over, and the time in which stragglers of it may still show up as well."""
    return now >= start_of(hour) + HOUR + grace


@dataclass(frozen=True)
class HoursToRequest:
    """What a look at the staging area came to."""

    hours: tuple[str, ...] = ()
    still_open: int = 0
    too_early: int = 0
    left_for_later: int = 0


def hours_to_request(
    staged: Mapping[str, Batch],
    merged: Mapping[str, str],
    *,
    now: datetime,
    grace: timedelta,
    first_hour: str,
    limit: int,
) -> HoursToRequest:
    """Closed hours whose files are not the ones merged last, oldest first, at most `limit`."""
    new = [hour for hour, batch in staged.items() if merged.get(hour) != batch.digest]
    too_early = [hour for hour in new if hour < first_hour]
    still_open = [hour for hour in new if hour >= first_hour and not is_closed(hour, now, grace)]
    due = [hour for hour in new if hour >= first_hour and is_closed(hour, now, grace)]
    return HoursToRequest(tuple(due[:limit]), len(still_open), len(too_early), max(0, len(due) - limit))


def ranges(hours: Iterable[str], staged: Collection[str]) -> list[tuple[str, str]]:
    """These hours as few ranges (first, last), because a run takes one range.

    Hours in which nothing arrived may lie inside a range, up to a day of them; hours that need nothing may not.
    """
    found: list[tuple[str, str]] = []
    staged_in_order = sorted(staged)
    follower = dict(pairwise(staged_in_order))
    for hour in sorted(hours):
        near = found and start_of(hour) - start_of(found[-1][1]) <= timedelta(days=1)
        if near and follower.get(found[-1][1]) == hour:
            found[-1] = (found[-1][0], hour)
        else:
            found.append((hour, hour))
    return found


@dataclass(frozen=True, order=True)
class Span:
    """Moments from `start` up to, not including, `end`, in microseconds: data may lie outside the calendar."""

    start: int
    end: int


def spans(found: Iterable[Span], most: int) -> list[Span]:
    """As few spans as cover these. Neighbours become one.

    If there are more than `most`, the smallest gaps are closed: a merge then opens more of the table than it
    needs, but its condition stays short.
    """
    merged: list[Span] = []
    for span in sorted(set(found)):
        if merged and merged[-1].end >= span.start:
            merged[-1] = Span(merged[-1].start, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    if len(merged) <= most:
        return merged
    widest = sorted(range(1, len(merged)), key=lambda number: merged[number - 1].end - merged[number].start)
    edges = [0, *sorted(widest[: most - 1]), len(merged)]
    return [Span(merged[first].start, merged[last - 1].end) for first, last in pairwise(edges)]
