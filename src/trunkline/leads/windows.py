"""Calling windows: when a person may be called, by their local wall clock. Pure.

An instant is judged by the wall clock it falls on, never the other way round: a wall time may not exist (spring) or
exist twice (autumn), an instant always has one. The next opening is searched among the instants at which anything can
change: the bounds of spans, midnights, and clock changes.
"""

import re
from bisect import bisect, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Annotated, Literal, TypeAlias
from zoneinfo import ZoneInfo

import holidays
from pydantic import AfterValidator, Field, model_validator

from trunkline.leads.immutable import Frozen, ZoneName

Weekday: TypeAlias = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
WEEKDAYS: tuple[Weekday, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

NEAR_DAYS = 8
# A year and the longest run of closed days before it: without an opening in it the lead is never called.
FAR_DAYS = 400
_DAY = timedelta(days=1)
_WALL_TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d|24:00")


def _wall_time(text: str) -> str:
    if not _WALL_TIME.fullmatch(text):
        raise ValueError("write a time as HH:MM, from 00:00 to 24:00")
    return text


def _holiday_calendar(country: str) -> str:
    if country not in holidays.list_supported_countries():
        raise ValueError(f"no holidays are known of {country[:10]!r}: write a country code like US")
    return country


WallTime = Annotated[str, AfterValidator(_wall_time)]
Country = Annotated[str, AfterValidator(_holiday_calendar)]


class TimeSpan(Frozen):
    """From `start` until `end` on each of these days. It may end on the morning after."""

    days: tuple[Weekday, ...] = Field(WEEKDAYS, min_length=1, description="The days on which it begins.")
    start: WallTime = Field(examples=["09:00"], description="When it begins, as wall time.")
    end: WallTime = Field(examples=["18:00"], description="When it ends, as wall time.")

    @model_validator(mode="after")
    def _has_length(self) -> "TimeSpan":
        if self.start in (self.end, "24:00"):
            raise ValueError("start and end are the same: write 00:00 to 24:00 for a whole day")
        return self

    @property
    def wraps(self) -> bool:
        return self.end < self.start


class HolidayCalendar(Frozen):
    """The public holidays of a country, or of a part of it."""

    country: Country = Field(examples=["US"], description="The country whose public holidays count.")
    subdivision: str | None = Field(
        None,
        max_length=10,
        examples=["CA"],
        description="Its state or province, if that has holidays of its own.",
    )

    @model_validator(mode="after")
    def _has_subdivision(self) -> "HolidayCalendar":
        known = holidays.list_supported_countries()[self.country]
        if self.subdivision is not None and self.subdivision not in known:
            raise ValueError(f"no holidays are known of {self.subdivision!r} in {self.country}")
        return self


class Window(Frozen):
    """When calls are allowed."""

    spans: tuple[TimeSpan, ...] = Field(min_length=1, max_length=50, description="The hours of the week.")
    timezone: ZoneName | None = Field(None, description="Left out: the callee's time zone.")
    holidays: tuple[HolidayCalendar, ...] = Field(
        (), max_length=10, description="No calls on these public holidays."
    )
    closed_on: tuple[date, ...] = Field((), max_length=400, description="No calls on these days.")


@dataclass(frozen=True, slots=True)
class WindowRule:
    """A window and the time zones of one callee, in all of which it must be open."""

    window: Window
    zones: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Opening:
    """Calls may start from `opens_at` on and before `closes_at`, which is None if it stays open for over a week."""

    opens_at: datetime
    closes_at: datetime | None


def is_open(rules: Iterable[WindowRule], at: datetime) -> bool:
    """A rule without a zone is closed: the local time is unknown."""
    return all(
        rule.zones and all(_covers(rule.window, at.astimezone(ZoneInfo(zone))) for zone in rule.zones)
        for rule in rules
    )


def next_opening(rules: tuple[WindowRule, ...], at: datetime) -> Opening | None:
    """The opening at this time or the next one after it. None: it never opens.

    Cached, because thousands of leads share their rules, and the leads of an upload are due at a thousand times of the
    same days: an opening is the answer for every time from that of the search until it has closed.
    """
    at = at.astimezone(UTC)
    known = _searches.get(rules, ())
    place = bisect(known, at, key=_SINCE)
    search = known[place - 1] if place else None
    if search is None or not search.answers(at):
        search = _Search(at, _search(rules, at))
        if sum(map(len, _searches.values())) >= SEARCHES_MAX:
            _searches.clear()
        insort(_searches.setdefault(rules, []), search, key=_SINCE)
    opening = search.opening
    return opening and Opening(max(at, opening.opens_at), opening.closes_at)


@dataclass(frozen=True, slots=True)
class _Search:
    """The result of a search from `since` on."""

    since: datetime
    opening: Opening | None

    def answers(self, at: datetime) -> bool:
        """At `since` or later."""
        until = self.opening.closes_at if self.opening else None
        return at < (until or self.since + _DAY)


SEARCHES_MAX = 16_384
# By the times from which on they were searched. When there are too many, all are dropped.
_searches: dict[tuple[WindowRule, ...], list[_Search]] = {}
_SINCE = attrgetter("since")


def _search(rules: tuple[WindowRule, ...], at: datetime) -> Opening | None:
    opens_at = at if is_open(rules, at) else _first_open(rules, at)
    if opens_at is None:
        return None
    later = (bound for bound in _bounds(rules, opens_at.date(), NEAR_DAYS) if bound > opens_at)
    return Opening(opens_at, next((bound for bound in later if not is_open(rules, bound)), None))


def _first_open(rules: tuple[WindowRule, ...], at: datetime) -> datetime | None:
    """Searched with one zone for all with equal clocks: a country has forty names for ten clocks."""
    few = tuple(WindowRule(rule.window, _distinct_clocks(rule.zones, at.date())) for rule in rules)
    likely = (bound for bound in _bounds(few, at.date(), FAR_DAYS) if bound >= at and is_open(few, bound))
    return next((bound for bound in likely if is_open(rules, bound)), None)


@lru_cache(maxsize=4096)
def _distinct_clocks(zones: tuple[str, ...], day: date) -> tuple[str, ...]:
    """Zones whose clocks differ in some week of the coming year."""
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    weeks = [noon + timedelta(weeks=week) for week in range(FAR_DAYS // 7)]
    by_clock = {tuple(week.astimezone(ZoneInfo(zone)).utcoffset() for week in weeks): zone for zone in zones}
    return tuple(by_clock.values())


def _covers(window: Window, local: datetime) -> bool:
    """Wall times compare as text. The end is not included, or two windows could share one instant."""
    day, wall = local.date(), local.strftime("%H:%M:%S.%f")
    if _is_closed_on(window, day):
        return False
    before = day - _DAY
    for span in window.spans:
        begins_today = WEEKDAYS[day.weekday()] in span.days and span.start <= wall
        if begins_today and (span.wraps or wall < span.end):
            return True
        began_before = span.wraps and WEEKDAYS[before.weekday()] in span.days and wall < span.end
        if began_before and not _is_closed_on(window, before):
            return True
    return False


def _is_closed_on(window: Window, day: date) -> bool:
    return day in window.closed_on or any(_is_holiday(calendar, day) for calendar in window.holidays)


@lru_cache(maxsize=4096)
def _is_holiday(calendar: HolidayCalendar, day: date) -> bool:
    return day in _calendar(calendar)


@lru_cache(maxsize=256)
def _calendar(calendar: HolidayCalendar) -> holidays.HolidayBase:
    return holidays.country_holidays(calendar.country, subdiv=calendar.subdivision)


def _bounds(rules: tuple[WindowRule, ...], first: date, days: int) -> Iterator[datetime]:
    """Every instant at which a rule may open or close, in order, from the day before `first` on."""
    clocks = {(zone, wall) for rule in rules for zone in rule.zones for wall in _walls(rule.window)}
    zones = {zone for zone, _ in clocks}
    waiting: list[datetime] = []
    for offset in range(-1, days + 1):
        day = first + offset * _DAY
        changes = (_clock_changes(zone, day) for zone in zones)
        waiting = sorted({*waiting, *_instants(clocks, day), *chain.from_iterable(changes)})
        # No clock is more than 14 hours ahead of UTC, so no later day begins before this hour of this one.
        settled = bisect(waiting, datetime(day.year, day.month, day.day, 9, tzinfo=UTC))
        yield from waiting[:settled]
        waiting = waiting[settled:]


def _walls(window: Window) -> set[str]:
    return {"00:00", *chain.from_iterable((span.start, span.end) for span in window.spans)} - {"24:00"}


def _instants(clocks: Iterable[tuple[str, str]], day: date) -> Iterator[datetime]:
    for zone, wall in clocks:
        local = datetime.fromisoformat(f"{day.isoformat()}T{wall}").replace(tzinfo=ZoneInfo(zone))
        yield local.astimezone(UTC)
        yield local.replace(fold=1).astimezone(UTC)


@lru_cache(maxsize=4096)
def _clock_changes(zone: str, day: date) -> tuple[datetime, ...]:
    """The instant within this UTC day at which the zone's clock is changed, if it is."""
    clock = ZoneInfo(zone)
    low = datetime(day.year, day.month, day.day, tzinfo=UTC)
    high = low + _DAY
    before = low.astimezone(clock).utcoffset()
    if before == high.astimezone(clock).utcoffset():
        return ()
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) // 2
        if middle.astimezone(clock).utcoffset() == before:
            low = middle
        else:
            high = middle
    return (high.replace(microsecond=0),)
