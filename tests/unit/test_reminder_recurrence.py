"""Rules of recurrence, one step at a time, judged by the library's own list of them."""

# ruff: noqa: DTZ001 (wall times have no zone)

from datetime import datetime, timedelta
from itertools import islice

import pytest
from dateutil.rrule import rrulestr  # type: ignore[import-untyped]
from hypothesis import example, given
from hypothesis import strategies as st

from trunkline.reminders import recurrence
from trunkline.reminders.recurrence import BadRule, RecurrenceRule, Series, parse

START = datetime(2026, 11, 15, 9, 30)
ZONE = "America/New_York"

starts = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1)).map(lambda at: at.replace(microsecond=0))


def parsed(text: str, start: datetime = START) -> RecurrenceRule:
    rule = parse(text, start, ZONE)
    assert isinstance(rule, RecurrenceRule), rule
    return rule


def refused(text: str, start: datetime = START) -> str:
    rule = parse(text, start, ZONE)
    assert isinstance(rule, BadRule), rule
    return rule.error


@st.composite
def rules(draw: st.DrawFn) -> str:
    freq = draw(st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY"]))
    parts = [f"FREQ={freq}", f"INTERVAL={draw(st.integers(1, 13))}"]
    days = st.lists(
        st.sampled_from(["MO", "TU", "WE", "TH", "FR", "SA", "SU"]), min_size=1, max_size=3, unique=True
    )
    if draw(st.booleans()):
        parts.append("BYDAY=" + ",".join(draw(days)))
    if draw(st.booleans()):
        parts.append(f"BYMONTH={draw(st.integers(1, 12))}")
    if freq in ("MONTHLY", "YEARLY", "DAILY") and draw(st.booleans()):
        parts.append(f"BYMONTHDAY={draw(st.sampled_from([1, 13, 28, 29, 30, 31, -1]))}")
    if freq != "HOURLY" and draw(st.booleans()):
        parts.append(
            "BYHOUR=" + ",".join(map(str, sorted(draw(st.sets(st.integers(0, 23), min_size=1, max_size=3)))))
        )
    if freq in ("MONTHLY", "YEARLY") and draw(st.booleans()):
        parts.append(f"BYSETPOS={draw(st.sampled_from([1, 2, -1]))}")
    if draw(st.booleans()):
        parts.append(f"WKST={draw(st.sampled_from(['MO', 'SU']))}")
    return ";".join(parts)


@given(rules(), starts)
@example("FREQ=MONTHLY;INTERVAL=1", datetime(2026, 1, 31, 8))
@example("FREQ=YEARLY;INTERVAL=1", datetime(2024, 2, 29, 8))
@example("FREQ=WEEKLY;INTERVAL=2;BYDAY=SU,MO;WKST=SU", datetime(2026, 11, 15, 8))
def test_stepping_through_a_rule_yields_the_librarys_occurrences(text: str, start: datetime) -> None:
    rule = parse(text, start, "UTC")
    if isinstance(rule, BadRule):
        assert "never ring" in rule.error or "times a day" in rule.error
        return
    expected = list(islice(rrulestr(text, dtstart=start), 12))
    found = [recurrence.first(rule, start)]
    while len(found) < 12 and found[-1] is not None:
        found.append(recurrence.following(rule, found[-1]))
    assert [wall for wall in found if wall is not None] == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no part of a rule"),
        ("every day", "no part of a rule"),
        ("FREQ=SECONDLY", "every minute"),
        ("FREQ=MINUTELY;INTERVAL=5", "every minute"),
        ("INTERVAL=2", "FREQ must be"),
        ("FREQ=DAILY;COUNT=1000000", "from 1 to 10000"),
        ("FREQ=DAILY;COUNT=0", "from 1 to 10000"),
        ("FREQ=DAILY;COUNT=-1", "from 1 to 10000"),
        ("FREQ=DAILY;INTERVAL=0", "from 1 to 1000"),
        ("FREQ=DAILY;INTERVAL=99999999999", "from 1 to 1000"),
        ("FREQ=DAILY;COUNT=5;UNTIL=20301231", "not by both"),
        ("FREQ=DAILY;UNTIL=20200101", "before the reminder starts"),
        ("FREQ=YEARLY;BYMONTH=3;UNTIL=20270101", "before its first occurrence"),
        ("FREQ=DAILY;UNTIL=20301301", "UNTIL must be"),
        ("FREQ=DAILY;UNTIL=soon", "UNTIL must be"),
        ("FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30", "never ring"),
        ("FREQ=HOURLY;BYMONTH=4;BYMONTHDAY=31", "never ring"),
        ("FREQ=DAILY;INTERVAL=7;BYDAY=MO", "never ring"),
        ("FREQ=HOURLY;BYMINUTE=0,30", "24 times a day"),
        ("FREQ=DAILY;BYSECOND=1", "not allowed"),
        ("FREQ=DAILY;DTSTART=20260101", "not allowed"),
        ("FREQ=DAILY;FREQ=DAILY", "no part of a rule"),
        ("FREQ=WEEKLY;BYDAY=XX", "cannot be read"),
        ("FREQ=DAILY;BYHOUR=25", "cannot be read"),
        ("FREQ=DAILY;BYMONTH=x", "cannot be read"),
        ("FREQ=HOURLY;BYSETPOS=1", "an hour has none"),
    ],
)
def test_an_invalid_rule_is_refused_with_a_reason(text: str, words: str) -> None:
    assert words in refused(text)


def test_a_rule_without_an_end_yields_the_next_occurrence_far_ahead() -> None:
    rule = parsed("FREQ=DAILY")
    wall: datetime | None = datetime(2090, 3, 1, 9, 30)
    assert wall is not None
    assert recurrence.following(rule, wall) == wall + timedelta(days=1)


def test_a_rule_may_be_written_as_in_a_calendar_file() -> None:
    assert parsed("rrule:freq=daily;count=3;") == RecurrenceRule("FREQ=DAILY", 3)


def test_until_is_wall_time_and_a_date_includes_its_whole_day() -> None:
    assert parsed("FREQ=DAILY;UNTIL=20261231").until == datetime(2026, 12, 31, 23, 59, 59)
    assert parsed("FREQ=DAILY;UNTIL=20261231T080000").until == datetime(2026, 12, 31, 8)
    assert parsed("FREQ=DAILY;UNTIL=20261231T080000Z").until == datetime(2026, 12, 31, 3)


def test_count_and_until_end_a_series() -> None:
    three = Series(START, ZONE, parsed("FREQ=DAILY;COUNT=3"))
    assert [place.wall.day for place in three.places()] == [15, 16, 17]
    until = Series(START, ZONE, parsed("FREQ=DAILY;UNTIL=20261117T093000"))
    assert [place.wall.day for place in until.places()] == [15, 16, 17]


@given(rules(), starts, st.integers(1, 9))
def test_a_series_has_no_more_occurrences_than_count(text: str, start: datetime, count: int) -> None:
    rule = parse(f"{text};COUNT={count}", start, "UTC")
    if isinstance(rule, RecurrenceRule):
        assert len(list(islice(Series(start, "UTC", rule).places(), 20))) <= count
