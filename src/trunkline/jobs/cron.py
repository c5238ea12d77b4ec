"""When a recurring job is due: `every 3600` (seconds, counted from 1970) or `cron 30 9 * * mon-fri`, in a time zone.

A local time that a clock change skips ticks when it would have been on the old clock, an hour later on the new one. A
local time that a clock change repeats ticks once; with `*` for the hour it ticks both times, since each hour is meant.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo

from trunkline.jobs.registry import InvalidJob

_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_PART = re.compile(r"(?P<first>\*|\w+)(?:-(?P<last>\w+))?(?:/(?P<step>\d+))?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# 29 February on a given weekday comes every 28 years, and every 40 around 2100.
_DAYS_MAX = 41 * 366


class CronRule(Protocol):
    def after(self, moment: datetime) -> datetime:
        """The first tick later than `moment`, in UTC."""
        ...


@dataclass(frozen=True, slots=True)
class Every:
    interval_s: float

    def after(self, moment: datetime) -> datetime:
        interval = timedelta(seconds=self.interval_s)
        return _EPOCH + ((moment - _EPOCH) // interval + 1) * interval


@dataclass(frozen=True, slots=True)
class Cron:
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    # If both day fields are restricted, a match of one is enough, as in every cron.
    either_day: bool
    zone: ZoneInfo

    def after(self, moment: datetime) -> datetime:
        first = moment.astimezone(self.zone).date()
        for offset in range(_DAYS_MAX):
            day = first + timedelta(days=offset)
            if self._is_day(day):
                later = [tick for tick in self._ticks(day) if tick > moment]
                if later:
                    return min(later)
        raise InvalidJob("This cron rule never comes true")

    def _is_day(self, day: date) -> bool:
        by_date = day.day in self.days
        by_weekday = day.isoweekday() % 7 in self.weekdays
        return day.month in self.months and (
            by_date or by_weekday if self.either_day else by_date and by_weekday
        )

    def _ticks(self, day: date) -> Iterator[datetime]:
        folds = (0, 1) if len(self.hours) == 24 else (0,)
        for hour in self.hours:
            for minute in self.minutes:
                for fold in folds:
                    yield datetime.combine(day, time(hour, minute, fold=fold), self.zone).astimezone(UTC)


def parse_rule(text: str, timezone: str = "UTC") -> CronRule:
    kind, _, rest = text.partition(" ")
    try:
        if kind == "every" and float(rest) > 0:
            return Every(float(rest))
        if kind == "cron":
            return _parse_cron(rest, ZoneInfo(timezone))
    except (ValueError, KeyError, OSError) as error:
        raise InvalidJob(f"{text!r} in {timezone!r} is no rule: {error}") from error
    raise InvalidJob(f"{text!r} is no rule; allowed: `every <seconds>` or `cron <five fields>`")


def _parse_cron(text: str, zone: ZoneInfo) -> Cron:
    fields = _MACROS.get(text, text).split()
    if len(fields) != 5:
        raise ValueError("a cron rule has five fields: minute, hour, day, month, weekday")
    minute, hour, day, month, weekday = fields
    return Cron(
        minutes=_values(minute, 0, 59),
        hours=_values(hour, 0, 23),
        days=_values(day, 1, 31),
        months=_values(month, 1, 12, _MONTHS, 1),
        weekdays=frozenset(value % 7 for value in _values(weekday, 0, 7, _DAYS, 0)),
        either_day=not day.startswith("*") and not weekday.startswith("*"),
        zone=zone,
    )


def _values(
    field: str, low: int, high: int, names: Sequence[str] = (), first_name: int = 0
) -> frozenset[int]:
    values: set[int] = set()
    for part in field.lower().split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is not understood")
        step = int(match["step"] or 1)
        if match["first"] == "*":
            start, end = low, high
        else:
            start = _number(match["first"], names, first_name)
            open_end = high if match["step"] else start
            end = _number(match["last"], names, first_name) if match["last"] else open_end
        if not low <= start <= end <= high or step < 1:
            raise ValueError(f"{part!r} is outside of {low} to {high}")
        values.update(range(start, end + 1, step))
    return frozenset(values)


def _number(word: str, names: Sequence[str], first_name: int) -> int:
    return names.index(word) + first_name if word in names else int(word)
