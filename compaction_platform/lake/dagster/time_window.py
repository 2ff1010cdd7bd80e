"""The hours in which maintenance may run."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True)
class Window:
    """From a time of day to another, in UTC; over midnight where the end comes first. `days` are those it begins on."""

    start: time
    end: time
    days: tuple[str, ...] = DAYS

    @classmethod
    def parsed(cls, text: str) -> "Window":
        match = re.fullmatch(r"\s*([a-z,\s]*?)\s*(\d{1,2}:\d{2})\s*-\s*(\d{1,2}:\d{2})\s*", text)
        if not match:
            raise ValueError(f"{text!r} is not a window; examples: 22:00-06:00, sat,sun 00:00-23:59 (UTC)")
        days = tuple(day for day in re.split(r"[,\s]+", match[1]) if day)
        if unknown := set(days) - set(DAYS):
            raise ValueError(f"{text!r}: {', '.join(sorted(unknown))} is not a day; there are {', '.join(DAYS)}")
        try:
            start, end = (datetime.strptime(match[place], "%H:%M").time() for place in (2, 3))
        except ValueError:
            raise ValueError(f"{text!r}: there is no such time of day") from None
        if start == end:
            raise ValueError(f"{text!r}: it begins when it ends; leave the window out to allow all hours")
        return cls(start, end, days or DAYS)

    def contains(self, moment: datetime) -> bool:
        now = moment.astimezone(UTC)
        today, yesterday = DAYS[now.weekday()], DAYS[now.weekday() - 1]
        if self.start < self.end:
            return today in self.days and self.start <= now.time() < self.end
        return (today in self.days and now.time() >= self.start) or (yesterday in self.days and now.time() < self.end)

    def __str__(self) -> str:
        days = "" if self.days == DAYS else f"{','.join(self.days)} "
        return f"{days}{self.start:%H:%M}-{self.end:%H:%M} UTC"
