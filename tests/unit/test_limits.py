"""Counting rules: when a person is free again, when a merchant's day ends, who starts when, how many pods there are."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.dispatch.gates import Pace, advance, start_together
from trunkline.leads.calling_policy import CallingPolicy, resolve
from trunkline.leads.limits import ROUND_S, day_bounds, person_free_at, rounded_up
from trunkline.model import PersonCalls, PersonQuestion, new_id

NOW = datetime(2025, 6, 3, 10, 7, tzinfo=UTC)
HOURLY = PersonQuestion("+14155550123", None, max_calls=7, window_s=3600, asked_by="m")


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def started(paces: list[Pace], earliest_at: datetime, within_s: float) -> datetime | Pace:
    """As the intent starts a call."""
    start_at = start_together(paces, earliest_at, within_s)
    if isinstance(start_at, datetime):
        advance(paces, new_id(), start_at)
    return start_at


def test_below_the_limit_a_person_is_free_now() -> None:
    assert person_free_at(HOURLY, PersonCalls(6, later(-3000), all_own=True), NOW) is None


def test_at_the_limit_a_person_is_free_when_the_oldest_of_those_calls_leaves_the_window() -> None:
    assert person_free_at(HOURLY, PersonCalls(7, later(-3000), all_own=True), NOW) == later(600)


def test_a_limit_by_another_tenants_call_ends_at_a_rounded_time() -> None:
    """10:17 is when another tenant's call leaves the window; a quarter past is the next that may be told."""
    found = person_free_at(HOURLY, PersonCalls(7, later(-3000), all_own=False), NOW)
    assert found == datetime(2025, 6, 3, 10, 30, tzinfo=UTC)


@given(st.floats(1.7e9, 1.9e9).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)))
def test_rounding_never_makes_it_earlier_and_never_much_later(moment: datetime) -> None:
    rounded = rounded_up(moment)
    assert timedelta(0) <= rounded - moment < timedelta(seconds=ROUND_S + 1)
    assert rounded.timestamp() % ROUND_S == 0


@pytest.mark.parametrize(
    ("zone", "first", "after"),
    [
        (None, "2025-06-03T00:00+00:00", "2025-06-04T00:00+00:00"),
        ("Asia/Kolkata", "2025-06-02T18:30+00:00", "2025-06-03T18:30+00:00"),
        ("Pacific/Auckland", "2025-06-02T12:00+00:00", "2025-06-03T12:00+00:00"),
    ],
)
def test_a_merchants_day_begins_at_its_own_midnight(zone: str | None, first: str, after: str) -> None:
    day = resolve(merchant=CallingPolicy(timezone=zone)).day_at(NOW)
    assert (day, *day_bounds(day, zone)) == (
        NOW.date(),
        datetime.fromisoformat(first),
        datetime.fromisoformat(after),
    )


def test_a_day_with_a_change_of_the_clock_is_longer_or_shorter() -> None:
    first_at, after_at = day_bounds(date(2025, 3, 30), "Europe/Berlin")
    assert after_at - first_at == timedelta(hours=23)


def test_starts_are_spaced_by_the_pace_and_a_start_too_late_returns_that_pace() -> None:
    pace = Pace("account", "twilio/default", 0.5, later(-100))
    starts = [started([pace], NOW, within_s=1.0) for _ in range(4)]
    assert starts == [NOW, later(0.5), later(1.0), pace]
    assert pace.next_start_at == later(1.5)


def test_the_slowest_pace_sets_the_start_from_which_all_advance() -> None:
    account, number = Pace("account", "a", 0.1, later(0.3)), Pace("number", "n", 1.0, NOW)
    assert started([account, number], NOW, within_s=1.0) == later(0.3)
    assert (account.next_start_at, number.next_start_at) == (later(0.4), later(1.3))
    assert started([account, number], NOW, within_s=1.0) is number
    assert account.next_start_at == later(0.4)


def test_a_slowed_account_without_a_pace_starts_nothing_until_its_time() -> None:
    slowed = Pace("account", "a", None, later(30))
    assert started([slowed], NOW, within_s=1.0) is slowed
    assert started([slowed], later(31), within_s=1.0) == later(31)
    assert slowed.next_start_at == later(30)


@given(
    st.lists(st.floats(0.01, 2), min_size=1, max_size=3),
    st.lists(st.floats(-5, 2), min_size=3, max_size=3),
    st.integers(1, 40),
)
def test_no_pace_is_ever_exceeded(intervals: list[float], offsets: list[float], calls: int) -> None:
    paces = [Pace("p", str(n), interval, later(offsets[n])) for n, interval in enumerate(intervals)]
    starts = [start for _ in range(calls) if isinstance(start := started(paces, NOW, 1.0), datetime)]
    for before, after in pairwise(starts):
        # Microseconds are the clock's own resolution.
        assert (after - before).total_seconds() >= max(intervals) - 1e-6
    assert all(NOW <= start <= later(1.0) for start in starts)
