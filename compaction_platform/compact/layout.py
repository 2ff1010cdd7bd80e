"""Where the files of an hour or a day lie: `year={year}/month={month}/day={day}/hour={hour}` and the like."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

FIELD = re.compile(r"\{(\w*)(:d)?\}")
PARTS = {"year": "%Y", "month": "%m", "day": "%d", "hour": "%H", "date": "%Y-%m-%d"}

MOST_IN_RANGE = 150  # a digest of each is in the tags of a run, and a database has its limits

Unit = Literal["hour", "day"]
STEPS: dict[Unit, timedelta] = {"hour": timedelta(hours=1), "day": timedelta(days=1)}
KEY_FORMATS: dict[Unit, str] = {"hour": "%Y-%m-%d-%H:%M", "day": "%Y-%m-%d"}


@dataclass(frozen=True)
class Layout:
    """A template for directories. `{month:d}` is a number without leading zeros. Times are UTC."""

    template: str

    def __post_init__(self) -> None:
        names = [match[1] for match in FIELD.finditer(self.template)]
        if unknown := [name for name in names if name not in PARTS]:
            raise ValueError(f"{{{unknown[0]}}} is not known; there are {', '.join(f'{{{name}}}' for name in PARTS)}")
        if any(mark in FIELD.sub("", self.template) for mark in "{}"):
            raise ValueError(f"{self.template!r} has a brace that belongs to nothing")
        if any(part in ("", ".", "..") for part in self.template.split("/")):
            raise ValueError(f"{self.template!r} is not a path of directories")
        if not ("date" in names or {"year", "month", "day"} <= set(names)):
            raise ValueError(f"{self.template!r} does not name the day: {{date}}, or {{year}}, {{month}} and {{day}}")

    @property
    def unit(self) -> Unit:
        return "hour" if "hour" in (match[1] for match in FIELD.finditer(self.template)) else "day"

    @property
    def step(self) -> timedelta:
        return STEPS[self.unit]

    def prefix(self, partition: str) -> str:
        """The directory of a partition."""
        start = self.start(partition)

        def text(match: re.Match[str]) -> str:
            padded = start.strftime(PARTS[match[1]])
            return str(int(padded)) if match[2] and match[1] != "date" else padded

        return FIELD.sub(text, self.template)

    def partition(self, start: datetime) -> str:
        return start.strftime(KEY_FORMATS[self.unit])

    def start(self, partition: str) -> datetime:
        return datetime.strptime(partition, KEY_FORMATS[self.unit]).replace(tzinfo=UTC)

    def is_closed(self, partition: str, now: datetime, grace: timedelta) -> bool:
        """Whether it is over, and the time in which stragglers of it may still show up as well."""
        return now >= self.start(partition) + self.step + grace

    def closed(self, first: datetime, now: datetime, grace: timedelta) -> list[str]:
        """All partitions that are over, oldest first."""
        count = max(0, (now - grace - first) // self.step)
        return [self.partition(first + number * self.step) for number in range(count)]

    def ranges(self, partitions: list[str]) -> list[tuple[str, str]]:
        """These partitions as few ranges (first, last) without gaps, none of them too long for a run's tags."""
        found: list[tuple[str, str]] = []
        for each in sorted(partitions):
            near = found and self.start(each) - self.start(found[-1][1]) == self.step
            if near and self.start(each) - self.start(found[-1][0]) < MOST_IN_RANGE * self.step:
                found[-1] = (found[-1][0], each)
            else:
                found.append((each, each))
        return found
