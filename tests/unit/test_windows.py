"""Calling windows against the clock on the wall: wraps, weekdays, holidays, changes of the clock, several zones."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from trunkline.leads import windows
from trunkline.leads.windows import (
    WEEKDAYS,
    HolidayCalendar,
    Opening,
    TimeSpan,
    Window,
    WindowRule,
    is_open,
    next_opening,
)
from trunkline.leads.zones import region_of, zones_of

BERLIN, NEW_YORK, KOLKATA = "Europe/Berlin", "America/New_York", "Asia/Kolkata"
OFFICE = Window(spans=(TimeSpan(days=("mon", "tue", "wed", "thu", "fri"), start="09:00", end="18:00"),))
MINUTE = timedelta(minutes=1)


def local(text: str, zone: str = BERLIN, fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC)


def rules(*windows: Window, zones: tuple[str, ...] = (BERLIN,)) -> tuple[WindowRule, ...]:
    return tuple(WindowRule(window, zones) for window in windows)


def opens(window: Window, at: datetime, *zones: str) -> datetime:
    opening = next_opening(rules(window, zones=zones or (BERLIN,)), at)
    assert opening is not None
    return opening.opens_at


def test_inside_a_window_the_opening_is_now_until_it_closes() -> None:
    now = local("2025-06-03T10:00")
    assert next_opening(rules(OFFICE), now) == Opening(now, local("2025-06-03T18:00"))


@pytest.mark.parametrize(
    ("at", "opens_at"),
    [
        ("2025-06-03T08:59", "2025-06-03T09:00"),
        ("2025-06-03T17:59:59.999999", "2025-06-03T17:59:59.999999"),
        ("2025-06-03T18:00", "2025-06-04T09:00"),
        ("2025-06-06T19:00", "2025-06-09T09:00"),
        ("2025-06-08T12:00", "2025-06-09T09:00"),
    ],
)
def test_the_next_opening_follows_days_and_hours_and_excludes_the_end(at: str, opens_at: str) -> None:
    assert opens(OFFICE, local(at)) == local(opens_at)


def test_a_span_that_wraps_midnight_belongs_to_the_day_on_which_it_begins() -> None:
    night = Window(spans=(TimeSpan(days=("fri",), start="22:00", end="02:00"),))
    assert is_open(rules(night), local("2025-06-07T01:59"))
    assert not is_open(rules(night), local("2025-06-06T01:59"))
    assert not is_open(rules(night), local("2025-06-07T22:30"))
    assert opens(night, local("2025-06-07T02:01")) == local("2025-06-13T22:00")


def test_a_window_is_closed_on_a_holiday_and_in_the_night_that_begins_on_it() -> None:
    unity = HolidayCalendar(country="DE")  # 3 October
    night = Window(spans=(TimeSpan(start="20:00", end="02:00"),), holidays=(unity,))
    assert is_open(rules(night), local("2025-10-02T23:59"))
    assert not is_open(rules(night), local("2025-10-03T01:00"))
    assert not is_open(rules(night), local("2025-10-03T21:00"))
    assert not is_open(rules(night), local("2025-10-04T01:00"))
    assert opens(night, local("2025-10-03T00:00")) == local("2025-10-04T20:00")


def test_a_part_of_a_country_has_holidays_of_its_own() -> None:
    epiphany = local("2025-01-06T10:00")
    everywhere = OFFICE.model_copy(update={"holidays": (HolidayCalendar(country="DE"),)})
    bavaria = OFFICE.model_copy(update={"holidays": (HolidayCalendar(country="DE", subdivision="BY"),)})
    assert is_open(rules(everywhere), epiphany)
    assert not is_open(rules(bavaria), epiphany)


def test_a_day_can_be_closed_by_name() -> None:
    closed = OFFICE.model_copy(update={"closed_on": (date(2025, 6, 3),)})
    assert opens(closed, local("2025-06-03T10:00")) == local("2025-06-04T09:00")


def test_a_window_start_skipped_by_the_clock_opens_after_the_gap() -> None:
    """In Berlin 02:00 became 03:00 on 30 March 2025."""
    early = Window(spans=(TimeSpan(days=("sun",), start="02:30", end="04:00"),))
    assert opens(early, local("2025-03-30T01:00")) == local("2025-03-30T03:00")


def test_a_window_within_the_skipped_hour_does_not_open_that_day() -> None:
    gone = Window(spans=(TimeSpan(days=("sun",), start="02:10", end="02:50"),))
    assert opens(gone, local("2025-03-29T12:00")) == local("2025-04-06T02:10")


def test_a_window_in_the_repeated_hour_opens_twice() -> None:
    """In Berlin 03:00 became 02:00 on 26 October 2025."""
    twice = Window(spans=(TimeSpan(days=("sun",), start="02:10", end="02:20"),))
    assert opens(twice, local("2025-10-26T02:00")) == local("2025-10-26T02:10")
    assert opens(twice, local("2025-10-26T02:30")) == local("2025-10-26T02:10", fold=1)


@pytest.mark.parametrize(("day", "utc"), [("2025-01-15", "14:00"), ("2025-07-15", "13:00")])
def test_the_same_wall_time_is_another_instant_in_summer(day: str, utc: str) -> None:
    assert opens(OFFICE, local(f"{day}T01:00", NEW_YORK), NEW_YORK) == datetime.fromisoformat(
        f"{day}T{utc}+00:00"
    )


def test_a_window_with_several_zones_must_be_open_in_all_of_them() -> None:
    both = rules(OFFICE, zones=(BERLIN, KOLKATA))
    opening = next_opening(both, local("2025-06-03T00:00"))
    assert opening == Opening(local("2025-06-03T09:00"), local("2025-06-03T18:00", KOLKATA))


def test_windows_of_several_layers_must_all_be_open() -> None:
    evening = Window(spans=(TimeSpan(start="17:00", end="20:00"),))
    opening = next_opening(rules(OFFICE, evening), local("2025-06-03T00:00"))
    assert opening == Opening(local("2025-06-03T17:00"), local("2025-06-03T18:00"))


@pytest.mark.parametrize(
    "never",
    [
        rules(OFFICE, Window(spans=(TimeSpan(start="18:00", end="20:00"),))),
        rules(OFFICE, Window(spans=(TimeSpan(days=("sat", "sun"), start="00:00", end="24:00"),))),
        rules(OFFICE, zones=(NEW_YORK, "Asia/Singapore")),
        rules(OFFICE, zones=()),
    ],
    ids=["other hours", "other days", "opposite sides of the world", "no zone known"],
)
def test_a_window_that_never_opens_has_no_next_opening(never: tuple[WindowRule, ...]) -> None:
    assert next_opening(never, local("2025-06-03T00:00")) is None
    assert next_opening(never, local("2025-06-03T12:00")) is None


def test_an_opening_a_year_away_is_found() -> None:
    open_days = {date(2026, 5, 29)}
    closed = tuple(day for n in range(395) if (day := date(2025, 6, 1) + timedelta(days=n)) not in open_days)
    rare = OFFICE.model_copy(update={"closed_on": closed})
    assert opens(rare, local("2025-06-03T10:00")) == local("2026-05-29T09:00")


def test_a_window_that_is_always_open_does_not_close() -> None:
    always = Window(spans=(TimeSpan(start="00:00", end="24:00"),))
    assert next_opening(rules(always), local("2025-06-03T10:00")) == Opening(local("2025-06-03T10:00"), None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": "9:00", "end": "18:00"},
        {"start": "09:00", "end": "25:00"},
        {"start": "09:00", "end": "09:00"},
        {"start": "24:00", "end": "09:00"},
        {"start": "09:00", "end": "18:00", "days": []},
        {"start": "09:00", "end": "18:00", "days": ["Monday"]},
    ],
)
def test_an_invalid_time_span_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TimeSpan.model_validate(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"timezone": "Berlin"},
        {"holidays": [{"country": "XX"}]},
        {"holidays": [{"country": "DE", "subdivision": "CA"}]},
        {"spans": []},
        {"hours": []},
    ],
)
def test_an_invalid_window_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Window.model_validate({"spans": [{"start": "09:00", "end": "18:00"}]} | wrong)


wall_minutes = st.integers(0, 24 * 60 - 1).map(lambda m: f"{m // 60:02d}:{m % 60:02d}")
spans = st.builds(
    lambda days, start, end: TimeSpan(days=tuple(days), start=start, end=end if end != start else "24:00"),
    st.lists(st.sampled_from(WEEKDAYS), min_size=1, unique=True),
    wall_minutes,
    wall_minutes,
)
some_windows = st.builds(
    lambda chosen, closed: Window(spans=tuple(chosen), closed_on=tuple(closed)),
    st.lists(spans, min_size=1, max_size=3),
    st.lists(st.dates(date(2025, 3, 28), date(2025, 4, 1)), max_size=2),
)
some_rules = st.lists(
    st.builds(
        WindowRule,
        some_windows,
        st.lists(st.sampled_from([BERLIN, NEW_YORK, KOLKATA]), min_size=1, max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=2,
).map(tuple)
# Around the days on which clocks are changed: New York on 9 March and 2 November, Berlin on 30 March and 26 October.
moments = st.one_of(
    st.integers(0, 40 * 24 * 60).map(lambda m: datetime(2025, 3, 1, tzinfo=UTC) + m * MINUTE),
    st.integers(0, 20 * 24 * 60).map(lambda m: datetime(2025, 10, 20, tzinfo=UTC) + m * MINUTE),
)


@settings(max_examples=150, deadline=None)
@given(some_rules, moments)
def test_the_next_opening_equals_that_found_minute_by_minute(
    some: tuple[WindowRule, ...], at: datetime
) -> None:
    horizon = 9 * 24 * 60
    tried = next((at + n * MINUTE for n in range(horizon) if is_open(some, at + n * MINUTE)), None)
    found = next_opening(some, at)
    if tried is None:
        assert found is None or found.opens_at >= at + horizon * MINUTE
    else:
        assert found is not None
        assert found.opens_at == tried


@settings(max_examples=60, deadline=None)
@given(some_rules, moments, st.integers(0, 3 * 24 * 60))
def test_a_cached_next_opening_is_still_right_later(
    some: tuple[WindowRule, ...], at: datetime, later: int
) -> None:
    """Openings are remembered. Asking earlier must not change the answer to a later question."""
    next_opening(some, at)
    remembered = next_opening(some, at + later * MINUTE)
    afresh = next_opening(
        tuple(WindowRule(rule.window.model_copy(), rule.zones) for rule in some[::-1]), at + later * MINUTE
    )
    assert (remembered and remembered.opens_at) == (afresh and afresh.opens_at)
    if remembered:
        assert is_open(some, remembered.opens_at)
        assert remembered.closes_at is None or not is_open(some, remembered.closes_at)


MONDAY = datetime(2030, 1, 7, tzinfo=UTC)
NIGHTS = Window(spans=(TimeSpan(start="22:00", end="03:00"),))
MORNING = Window(spans=(TimeSpan(start="09:00", end="10:00"),), timezone="UTC")
UPLOADED_RULES = st.sampled_from(
    [
        (WindowRule(OFFICE, (NEW_YORK,)),),
        (WindowRule(NIGHTS, (BERLIN, "Europe/Lisbon")),),
        (WindowRule(MORNING, ("UTC",)), WindowRule(MORNING, ("Asia/Tokyo",))),
    ]
)
DUE_TIMES = st.integers(0, 14 * 24 * 60).map(lambda minutes: MONDAY + timedelta(minutes=minutes))


@given(st.lists(st.tuples(UPLOADED_RULES, DUE_TIMES), max_size=30))
def test_a_cached_opening_equals_the_computed_one(
    asked: list[tuple[tuple[WindowRule, ...], datetime]],
) -> None:
    windows._searches.clear()
    for some, moment in asked:
        assert next_opening(some, moment) == windows._search(some, moment)


def test_the_cache_of_openings_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "SEARCHES_MAX", 50)
    windows._searches.clear()
    for day in range(130):
        next_opening(rules(OFFICE, zones=("UTC" if day % 2 else BERLIN,)), MONDAY + timedelta(days=day))
        assert sum(map(len, windows._searches.values())) <= 50


@pytest.mark.parametrize(
    ("phone", "zones", "region"),
    [
        ("+14155550123", {"America/Los_Angeles"}, "US"),
        ("+919820012345", {"Asia/Calcutta"}, "IN"),
        ("+8821234567", set(), "001"),
        ("nonsense", set(), None),
    ],
)
def test_a_phones_zones_and_region_are_those_of_its_prefix(
    phone: str, zones: set[str], region: str | None
) -> None:
    assert set(zones_of(phone)) == zones
    assert region_of(phone) == region


def test_a_mobile_number_may_be_anywhere_in_its_country() -> None:
    assert {"Australia/Perth", "Australia/Sydney"} < set(zones_of("+61412345678"))
