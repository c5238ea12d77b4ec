"""When recurring jobs come."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.jobs import InvalidJob
from trunkline.jobs.cron import parse_rule

NEW_YORK = "America/New_York"


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def ticks(rule: str, start: str, count: int, zone: str = "UTC") -> list[str]:
    found, at = [], moment(start)
    for _ in range(count):
        at = parse_rule(rule, zone).after(at)
        found.append(at.astimezone(ZoneInfo(zone)).strftime("%m-%d %H:%M"))
    return found


@pytest.mark.parametrize(
    ("rule", "start", "expected"),
    [
        ("cron 30 9 * * *", "2025-01-01T09:30", ["01-02 09:30", "01-03 09:30"]),
        ("cron */20 8-9 * * *", "2025-01-01T08:30", ["01-01 08:40", "01-01 09:00", "01-01 09:20"]),
        ("cron 0 9 * * mon-fri", "2025-01-03T10:00", ["01-06 09:00", "01-07 09:00"]),
        ("cron 0 0 1,15 * *", "2025-01-01T00:00", ["01-15 00:00", "02-01 00:00"]),
        ("cron 0 0 13 * fri", "2025-01-01T00:00", ["01-03 00:00", "01-10 00:00", "01-13 00:00"]),
        ("cron 0 0 * * 7", "2025-01-01T00:00", ["01-05 00:00"]),
        ("cron 0 12 31 * *", "2025-02-01T00:00", ["03-31 12:00", "05-31 12:00"]),
        ("cron 5/30 * * jan-feb *", "2025-01-01T00:00", ["01-01 00:05", "01-01 00:35", "01-01 01:05"]),
        ("cron @daily", "2025-12-31T12:00", ["01-01 00:00"]),
        ("every 900", "2025-01-01T00:07:30", ["01-01 00:15", "01-01 00:30"]),
    ],
)
def test_a_schedule_rule_yields_its_ticks(rule: str, start: str, expected: list[str]) -> None:
    assert ticks(rule, start, len(expected)) == expected


def test_a_tick_in_the_hour_skipped_by_summer_time_comes_after_the_change() -> None:
    assert ticks("cron 30 2 * * *", "2025-03-08T12:00", 2, NEW_YORK) == ["03-09 03:30", "03-10 02:30"]


def test_a_tick_in_the_hour_repeated_by_winter_time_comes_once() -> None:
    assert ticks("cron 30 1 * * *", "2025-11-01T12:00", 2, NEW_YORK) == ["11-02 01:30", "11-03 01:30"]


@pytest.mark.parametrize("start", ["2025-03-09T05:00", "2025-11-02T03:00"])
def test_an_hourly_rule_ticks_every_hour_through_clock_changes(start: str) -> None:
    at = moment(start)
    for _ in range(8):
        following = parse_rule("cron 0 * * * *", NEW_YORK).after(at)
        assert following - at == timedelta(hours=1)
        at = following


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "daily",
        "every 0",
        "every x",
        "cron * * * *",
        "cron 60 * * * *",
        "cron 5-1 * * * *",
        "cron a * * * *",
        "cron */0 * * * *",
        "cron , * * * *",
    ],
)
def test_an_invalid_schedule_rule_is_refused(rule: str) -> None:
    with pytest.raises(InvalidJob, match="no rule"):
        parse_rule(rule)


def test_a_cron_rule_that_never_ticks_is_refused() -> None:
    with pytest.raises(InvalidJob, match="never"):
        parse_rule("cron 0 0 30 2 *").after(moment("2025-01-01"))


def test_an_unknown_time_zone_is_refused() -> None:
    with pytest.raises(InvalidJob, match="Atlantis"):
        parse_rule("cron 0 0 * * *", "Atlantis")


@settings(max_examples=60, deadline=None)
@given(
    minute=st.integers(0, 59),
    hour=st.integers(0, 23),
    weekday=st.sampled_from(["*", "1-5", "0,6"]),
    start=st.datetimes(datetime(2024, 1, 1), datetime(2026, 1, 1)),  # noqa: DTZ001
)
def test_in_utc_the_ticks_equal_those_found_minute_by_minute(
    minute: int, hour: int, weekday: str, start: datetime
) -> None:
    at = start.replace(tzinfo=UTC)
    allowed = {"*": range(7), "1-5": range(1, 6), "0,6": (0, 6)}[weekday]
    tried = at.replace(second=0, microsecond=0) + timedelta(minutes=1)
    while not ((tried.hour, tried.minute) == (hour, minute) and tried.isoweekday() % 7 in allowed):
        tried += timedelta(minutes=1)
    assert parse_rule(f"cron {minute} {hour} * * {weekday}").after(at) == tried
