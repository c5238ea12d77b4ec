"""Occurrences across the changes of every zone's clock."""

# ruff: noqa: DTZ001 (wall times have no zone)

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.reminders import recurrence
from trunkline.reminders.recurrence import RecurrenceRule, Series, instant

ZONES = sorted(available_timezones())
YEARS = (datetime(2025, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))


@cache
def changes(zone: str) -> tuple[datetime, ...]:
    """The instants of two years at which a clock there is changed, to the minute."""
    clock, found, at = ZoneInfo(zone), [], YEARS[0]
    while at < YEARS[1]:
        after = at + timedelta(days=1)
        if at.astimezone(clock).utcoffset() != after.astimezone(clock).utcoffset():
            low, high = at, after
            while high - low > timedelta(minutes=1):
                middle = low + (high - low) / 2
                same = middle.astimezone(clock).utcoffset() == at.astimezone(clock).utcoffset()
                low, high = (middle, high) if same else (low, middle)
            found.append(high.replace(second=0, microsecond=0))
        at = after
    return tuple(found)


def exists(wall: datetime, zone: str) -> bool:
    """Whether a clock there ever shows this time."""
    return instant(wall, zone).astimezone(ZoneInfo(zone)).replace(tzinfo=None) == wall


def daily(start: datetime, zone: str, text: str = "FREQ=DAILY") -> Series:
    rule = recurrence.parse(text, start, zone)
    assert isinstance(rule, RecurrenceRule)
    return Series(start, zone, rule)


@pytest.mark.parametrize("zone", ZONES)
def test_around_every_clock_change_a_daily_series_occurs_once_a_day_at_its_time(zone: str) -> None:
    """At every half hour within two hours of the change, on the days around it."""
    for change in changes(zone):
        local = change.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        for half in range(-4, 5):
            wall = local.replace(minute=0) + timedelta(minutes=30 * half)
            places = list(islice(daily(wall - timedelta(days=2), zone).places(), 5))
            assert [place.wall for place in places] == [wall + timedelta(days=day) for day in range(-2, 3)]
            assert all(before.at < after.at for before, after in pairwise(places))
            for place in places:
                shown = place.at.astimezone(ZoneInfo(zone))
                if exists(place.wall, zone):
                    assert shown.replace(tzinfo=None) == place.wall
                    assert shown.fold == 0, "of two, the first"
                else:
                    assert shown.replace(tzinfo=None) > place.wall, "put forward, like the clock"


@given(
    st.sampled_from([zone for zone in ZONES if changes(zone)]),
    st.sampled_from(["FREQ=HOURLY", "FREQ=DAILY;BYHOUR=0,1,2,3;BYMINUTE=0,30", "FREQ=HOURLY;INTERVAL=3"]),
    st.data(),
)
def test_a_series_grows_in_time_and_skips_no_existing_wall_time(
    zone: str, text: str, data: st.DataObject
) -> None:
    change = data.draw(st.sampled_from(changes(zone)))
    start = (change - timedelta(hours=6)).astimezone(ZoneInfo(zone)).replace(tzinfo=None, minute=0)
    series = daily(start, zone, text)
    places = list(islice(series.places(), 16))
    assert all(before.at < after.at for before, after in pairwise(places))
    assert series.rule is not None
    wall: datetime | None = recurrence.first(series.rule, start)
    rung = {place.at for place in places}
    while wall is not None and wall <= places[-1].wall:
        assert instant(wall, zone) in rung or not exists(wall, zone) or instant(wall, zone) < places[-1].at
        wall = recurrence.following(series.rule, wall)


def test_a_wall_time_skipped_by_the_clock_occurs_as_long_after_the_change() -> None:
    assert instant(datetime(2026, 3, 8, 2, 30), "America/New_York") == datetime(2026, 3, 8, 7, 30, tzinfo=UTC)


def test_a_wall_time_that_exists_twice_occurs_the_first_time() -> None:
    assert instant(datetime(2026, 11, 1, 1, 30), "America/New_York") == datetime(
        2026, 11, 1, 5, 30, tzinfo=UTC
    )


def test_two_wall_times_of_one_instant_occur_once() -> None:
    series = daily(datetime(2026, 3, 8, 1), "America/New_York", "FREQ=HOURLY")
    walls = [place.wall.hour for place in islice(series.places(), 4)]
    assert walls == [1, 2, 4, 5], "02:00 is rung at 03:00, so 03:00 has rung"


def test_first_from_returns_the_first_occurrence_at_or_after_a_moment() -> None:
    series = daily(datetime(2026, 1, 1, 9), "Asia/Kolkata", "FREQ=DAILY;COUNT=10")
    place = series.first_from(datetime(2026, 1, 3, 4, tzinfo=UTC))
    assert place is not None
    assert (place.wall, place.no) == (datetime(2026, 1, 4, 9), 4)
    assert [each.no for each in series.upcoming(place, 100)] == [4, 5, 6, 7, 8, 9, 10]
    assert series.first_from(datetime(2027, 1, 1, tzinfo=UTC)) is None
