"""Recurrence rules (RFC 5545), one occurrence at a time, and the series of instants that follows from one. Pure.

A rule names days and hours of the wall clock; a `Series` converts these to instants. Nothing here lists all
occurrences: a rule may have no end. The next one is found from the last one, as if the rule had begun there. That is
the same rule, because every occurrence lies in a period that the interval does not leave out, and has the day, month
and time that the rule would take from its start. So a step costs the same in the tenth year too.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from zoneinfo import ZoneInfo

from dateutil.rrule import rrule, rrulestr  # type: ignore[import-untyped]

COUNT_MAX = 10_000
INTERVAL_MAX = 1000
PER_DAY_MAX = 24
TEXT_MAX = 500

_FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY")
_PARTS = frozenset(
    {"FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYMONTH", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYDAY"}
    | {"BYHOUR", "BYMINUTE", "BYSETPOS"}
)
_UNTIL = re.compile(r"(\d{8})(?:T(\d{6})(Z?))?")
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class RecurrenceRule:
    """A rule without its end, and its end: at the latest `until`, at most `count` occurrences."""

    text: str
    count: int | None = None
    until: datetime | None = None

    def allows(self, wall: datetime, no: int) -> bool:
        """Whether the occurrence of that number, at that time, is before the rule's end."""
        return (self.count is None or no <= self.count) and (self.until is None or wall <= self.until)


@dataclass(frozen=True, slots=True)
class BadRule:
    error: str


def parse(text: str, start: datetime, zone: str) -> RecurrenceRule | BadRule:
    """`start` is a wall time in `zone`: the first that may be an occurrence."""
    parts = _split(text)
    if isinstance(parts, BadRule):
        return parts
    for check in (_frequency, _numbers):
        if (problem := check(parts)) is not None:
            return problem
    until = _until(parts.pop("UNTIL", None), zone)
    if isinstance(until, BadRule):
        return until
    count = int(parts.pop("COUNT", "0")) or None
    if until is not None and until < start:
        return BadRule("The rule ends before the reminder starts.")
    rule = RecurrenceRule(";".join(f"{name}={value}" for name, value in parts.items()), count, until)
    return _unusable(rule, start) or rule


def first(rule: RecurrenceRule, start: datetime) -> datetime | None:
    """The first occurrence at `start` or after it, whatever the rule's end."""
    first_wall: datetime | None = next(_walls(rule.text, start), None)
    return first_wall


def following(rule: RecurrenceRule, last: datetime) -> datetime | None:
    """The occurrence after the one at `last`, whatever the rule's end. None: the calendar is at its end."""
    return next((wall for wall in islice(_walls(rule.text, last), 2) if wall > last), None)


def _walls(text: str, start: datetime) -> Iterator[datetime]:
    return iter(_parsed(text, start))


@lru_cache(maxsize=1024)
def _parsed(text: str, start: datetime) -> rrule:
    return rrulestr(text, dtstart=start, cache=False)


def _split(text: str) -> dict[str, str] | BadRule:
    text = text.strip().upper().removeprefix("RRULE:")
    parts: dict[str, str] = {}
    for part in text.rstrip(";").split(";"):
        name, equals, value = part.partition("=")
        if not equals or not value or name in parts:
            return BadRule(f"{part[:40]!r} is no part of a rule. Write one like FREQ=WEEKLY;BYDAY=MO,TH.")
        if name not in _PARTS:
            return BadRule(
                f"{name[:40]!r} is not allowed here. The start and the time zone are fields of their own."
            )
        parts[name] = value
    if "COUNT" in parts and "UNTIL" in parts:
        return BadRule("A rule ends by COUNT or by UNTIL, not by both.")
    return parts


def _frequency(parts: dict[str, str]) -> BadRule | None:
    if parts.get("FREQ") not in _FREQUENCIES:
        return BadRule(
            f"FREQ must be one of {', '.join(_FREQUENCIES)}: calls every minute are not supported."
        )
    if parts["FREQ"] == "HOURLY" and "BYSETPOS" in parts:
        return BadRule("BYSETPOS chooses among the days of a period: an hour has none.")
    return None


def _numbers(parts: dict[str, str]) -> BadRule | None:
    for name, value_max in (("COUNT", COUNT_MAX), ("INTERVAL", INTERVAL_MAX)):
        value = parts.get(name, "1")
        if not (value.isascii() and value.isdecimal() and len(value) < 10 and 1 <= int(value) <= value_max):
            return BadRule(f"{name} must be a whole number from 1 to {value_max}.")
    return None


def _until(text: str | None, zone: str) -> datetime | BadRule | None:
    """As wall time. A date alone means the end of that day."""
    if text is None:
        return None
    match = _UNTIL.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)
        moment = datetime.strptime(f"{match[1]}{match[2] or '235959'}+0000", "%Y%m%d%H%M%S%z")
        if match[3]:
            moment = moment.astimezone(ZoneInfo(zone))
    except (ValueError, OverflowError):
        return BadRule("UNTIL must be a date or a time like 20301231 or 20301231T090000Z.")
    return moment.replace(tzinfo=None)


def _unusable(rule: RecurrenceRule, start: datetime) -> BadRule | None:
    try:
        if next(_walls(rule.text, _in_the_last_years(start)), None) is None:
            return BadRule("No day fits this rule: it would never ring.")
        some = list(islice(_walls(rule.text, start), PER_DAY_MAX + 1))
    except (ValueError, TypeError, OverflowError) as error:
        return BadRule(f"The rule cannot be read: {str(error)[:200] or 'something in it is no number'}.")
    if len(some) > PER_DAY_MAX and some[-1] - some[0] < _DAY:
        return BadRule(f"The rule rings more than {PER_DAY_MAX} times a day.")
    if rule.until is not None and (not some or some[0] > rule.until):
        return BadRule("The rule ends before its first occurrence.")
    return None


def _in_the_last_years(start: datetime) -> datetime:
    """The same day in a year from 9944 to 9971.

    The search for a rule that no day fits ends with the calendar, in the year 9999: from today three million days. From
    there it is at most 56 years. Within 1901 to 2099, and 8000 years later, weekdays and leap years repeat every 28
    years, so what never happens there never happens here.
    """
    return start.replace(year=9944 + (start.year - 2000) % 28)


def instant(wall: datetime, zone: str) -> datetime:
    """In UTC."""
    return wall.replace(tzinfo=ZoneInfo(zone), fold=0).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class OccurrenceTime:
    """An occurrence: its wall time, its instant, its number in the rule."""

    wall: datetime
    at: datetime
    no: int


@dataclass(frozen=True, slots=True)
class Series:
    """A wall time that does not exist, because clocks are put forward over it, rings as long after the change as it is
    after the gap began: 02:30 becomes 03:30. One that exists twice, because clocks are put back, rings the first time
    only. Both follow RFC 5545.

    Instants only grow. Where clocks are put forward, two wall times may be one instant, or swap (02:30 rings at 03:30,
    after 03:00): an occurrence that does not come after the one before it is left out.
    """

    starts_at: datetime
    zone: str
    rule: RecurrenceRule | None

    def places(self) -> Iterator[OccurrenceTime]:
        """All of them, one after the other."""
        place = self._first()
        while place is not None:
            yield place
            place = self.after(place)

    def after(self, place: OccurrenceTime, last_at: datetime | None = None) -> OccurrenceTime | None:
        """The occurrence after this one. `last_at` is the instant that it must come after."""
        later_than = max(place.at, last_at or place.at)
        if self.rule is None:
            return None
        wall, no = following(self.rule, place.wall), place.no + 1
        while wall is not None and self.rule.allows(wall, no):
            if (at := instant(wall, self.zone)) > later_than:
                return OccurrenceTime(wall, at, no)
            wall, no = following(self.rule, wall), no + 1
        return None

    def first_from(self, moment: datetime, since: OccurrenceTime | None = None) -> OccurrenceTime | None:
        """The first occurrence that is not before `moment`, searched from `since` on."""
        place = since or self._first()
        while place is not None and place.at < moment:
            place = self.after(place)
        return place

    def upcoming(self, since: OccurrenceTime, limit: int) -> list[OccurrenceTime]:
        upcoming = [since]
        while len(upcoming) < limit and (place := self.after(upcoming[-1])) is not None:
            upcoming.append(place)
        return upcoming

    def _first(self) -> OccurrenceTime | None:
        wall = first(self.rule, self.starts_at) if self.rule else self.starts_at
        if wall is None or (self.rule and not self.rule.allows(wall, 1)):
            return None
        return OccurrenceTime(wall, instant(wall, self.zone), 1)
