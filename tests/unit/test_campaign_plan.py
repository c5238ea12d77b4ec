"""The dry run: simulated time over policy, clock changes, holidays, capacity and pace."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from trunkline.campaigns.plan import PlanSettings, plan, plan_file
from trunkline.campaigns.rows import Columns
from trunkline.cli.main import app
from trunkline.leads.calling_policy import resolve
from trunkline.leads.uploads import BrokenUpload, UploadRow
from trunkline.leads.windows import is_open

MONDAY = "2026-03-02T08:00:00-05:00"
OFFICE = {
    "windows": [{"spans": [{"start": "09:00", "end": "17:00", "days": ["mon", "tue", "wed", "thu", "fri"]}]}]
}


def people(count: int, area: int = 212, **more: Any) -> list[dict[str, Any]]:
    return [{"phone": f"+1{area}555{n:04d}", **more} for n in range(count)]


def made(
    rows: list[Any], policy: dict[str, Any] | None = None, listed: frozenset[str] = frozenset(), **more: Any
) -> Any:
    settings = PlanSettings.model_validate(
        {"policy": policy or {}, "starts_at": MONDAY, "answer_rate": 1, **more}
    )
    numbered = [UploadRow(n, row) for n, row in enumerate(rows, 1)]
    return plan(numbered, settings, resolve(campaign=settings.policy), Columns(), datetime.now(UTC), listed)


def hours(report: Any) -> list[tuple[str, int]]:
    return [(each["hour"][5:13], each["calls"]) for each in report["calls_per_hour"]]


def test_planned_calls_wait_for_the_window_and_keep_the_pace() -> None:
    report = made(people(100), {**OFFICE, "starts_per_s": 1 / 60}, channels=100)
    assert hours(report) == [("03-02T14", 60), ("03-02T15", 40)], "nine o'clock in New York is two in UTC"
    assert report["held_back_by"] == {"pace": 99}
    assert (report["people"], report["calls"], report["answered"], report["not_called"]) == (
        100,
        100,
        100,
        {},
    )


def test_channels_bound_what_the_pace_would_allow() -> None:
    report = made(people(60), OFFICE, channels=2, call_s=120)
    assert hours(report) == [("03-02T14", 60)]
    assert report["last_call_at"] == "2026-03-02T14:59:00+00:00", (
        "two channels, two minutes a call: one a minute"
    )
    assert report["held_back_by"] == {"channels": 59}


def test_each_callee_is_called_in_the_hours_of_their_own_place() -> None:
    report = made(people(10) + people(10, 415), OFFICE, channels=1000)
    assert hours(report) == [("03-02T14", 10), ("03-02T17", 10)]


def test_the_plan_follows_a_change_to_summer_time() -> None:
    """On 8 March 2026: nine o'clock in New York is 14:00 UTC on Friday and 13:00 on Monday."""
    report = made(people(2000), {**OFFICE, "attempts_per_day": 400}, channels=1000)
    firsts = [hour for hour, _ in hours(report)]
    assert "03-06T14" in firsts
    assert hours(made(people(1), OFFICE, starts_at="2026-03-09T00:00:00-04:00")) == [("03-09T13", 1)]


def test_holidays_and_closed_days_are_left_out() -> None:
    closed = {
        "windows": [OFFICE["windows"][0] | {"holidays": [{"country": "US"}], "closed_on": ["2026-11-27"]}]
    }
    report = made(people(1), closed, starts_at="2026-11-26T08:00:00-05:00")
    assert hours(report) == [("11-30T14", 1)], "Thanksgiving, the day after, a weekend"


def test_whoever_does_not_answer_is_called_again_as_often_as_allowed() -> None:
    report = made(people(8), {"retries": {"base_s": 600}}, answer_rate=0.5, max_attempts=3, channels=100)
    assert (report["calls"], report["answered"], report["not_reached"]) == (8 + 4 + 2, 7, 1)


def test_a_retry_rule_can_end_a_planned_lead_after_its_first_attempt() -> None:
    report = made(people(8), {"retries": {"by_outcome": {"NO_ANSWER": {"retry": False}}}}, answer_rate=0.5)
    assert (report["calls"], report["answered"], report["not_reached"]) == (8, 4, 4)


def test_limits_by_person_space_the_attempts() -> None:
    policy = {"person_limits": [{"max_calls": 1, "window_h": 24}], "retries": {"base_s": 60}}
    report = made(people(1), policy, answer_rate=0, max_attempts=3)
    assert [hour for hour, _ in hours(report)] == ["03-02T13", "03-03T13", "03-04T13"]


def test_the_plan_calls_higher_priorities_first() -> None:
    rows = people(5) + people(5, 646, priority=1)
    report = made(rows, {"starts_per_s": 1 / 60}, ends_at="2026-03-02T08:05:00-05:00", channels=99)
    assert (report["calls"], report["not_called"]) == (5, {"past_the_end": 5})


def test_the_plan_counts_rows_that_are_not_called_by_reason() -> None:
    rows = [
        {"phone": "12"},
        {"phone": "+12125550001"},
        {"phone": "+1 212 555 0001"},
        {"phone": "+12125550009"},
        {"phone": "+919876543210"},
        {"phone": "+12125550002", "timezone": "Mars/Olympus"},
        {"phone": "+12125550003", "priority": "first"},
        "not an object",
        {"phone": "+80012345678"},
    ]
    policy = OFFICE | {"destinations": {"deny": ["+91"]}}
    report = made(rows, policy, frozenset({"+12125550009"}))
    assert report["not_called"] == {
        "invalid_phone": 1,
        "duplicate": 1,
        "do_not_call": 1,
        "destination_not_allowed": 1,
        "invalid_row": 3,
        "unreadable": 1,
    }
    assert [each["row"] for each in report["problems"]] == [1, 3, 4, 5, 6, 7, 8, 9]
    assert report["people"] == 1


def test_the_plan_reports_windows_that_never_open_or_open_beyond_the_horizon() -> None:
    late = {"windows": [{"spans": [{"start": "09:00", "end": "10:00"}], "closed_on": ["2026-03-02"]}]}
    assert made(people(3), late, horizon_days=1)["not_called"] == {"beyond_the_horizon": 3}
    two = {"windows": [{"spans": [{"start": "09:00", "end": "10:00"}], "timezone": "UTC"},
                       {"spans": [{"start": "11:00", "end": "12:00"}], "timezone": "UTC"}]}  # fmt: skip
    assert made(people(3), two)["not_called"] == {"windows_never_open": 3}


@given(
    st.sampled_from(
        ["America/New_York", "Europe/London", "Asia/Kolkata", "Australia/Lord_Howe", "Africa/Casablanca"]
    ),
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)),  # noqa: DTZ001 (made aware below)
    st.integers(1, 40),
    st.floats(0, 1),
    st.integers(1, 4),
)
def test_the_plan_calls_within_the_window_only_and_counts_every_person(
    zone: str, start: datetime, count: int, rate: float, attempts: int
) -> None:
    rows = people(count, timezone=zone)
    report = made(
        rows, OFFICE, starts_at=start.replace(tzinfo=UTC).isoformat(), answer_rate=rate, max_attempts=attempts
    )
    assert report["people"] == count
    assert report["answered"] + report["not_reached"] + sum(report["not_called"].values()) == count
    assert count <= report["calls"] <= count * attempts
    rules = resolve(campaign=PlanSettings.model_validate({"policy": OFFICE}).policy).rules_of(
        "+12125550000", zone
    )
    for each in report["calls_per_hour"]:
        hour = datetime.fromisoformat(each["hour"])
        assert any(is_open(rules, hour + timedelta(minutes=minute)) for minute in range(60))
    for moment in (report["first_call_at"], report["last_call_at"]):
        assert is_open(rules, datetime.fromisoformat(moment))


def test_the_same_file_gives_the_same_plan() -> None:
    rows = people(50) + people(50, 305)
    assert made(rows, OFFICE, answer_rate=0.3) == made(rows, OFFICE, answer_rate=0.3)


def test_the_plan_refuses_a_broken_file() -> None:
    with pytest.raises(BrokenUpload, match="twice"):
        plan_file(
            [b"phone,phone\n1,2\n"], "text/csv", PlanSettings(), resolve(), Columns(), datetime.now(UTC)
        )


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["plan", *arguments])


def test_the_plan_command_needs_no_database(tmp_path: Path) -> None:
    file, policy, listed = tmp_path / "people.csv", tmp_path / "policy.json", tmp_path / "listed.txt"
    file.write_text("Mobile,Name\n2125550001,Ada\n2125550002,Bob\n2125550003,Cleo\n")
    policy.write_text(json.dumps(OFFICE))
    listed.write_text("+12125550002\n")
    usual = [str(file), "--policy", str(policy), "--map", "phone:Mobile", "--region", "US", "--start", MONDAY]
    result = invoke(*usual, "--do-not-call", str(listed), "--answer-rate", "1", "--json")
    assert result.exit_code == 0, result.output + str(result.exception)
    report = json.loads(result.stdout)
    assert (report["calls"], report["not_called"]) == (2, {"do_not_call": 1})
    shown = invoke(*usual)
    assert shown.exit_code == 0
    assert "2026-03-02T14:00" in shown.stdout


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--end", "2026-03-01T00:00:00Z"], "ends before it starts"),
        (["--answer-rate", "2"], "answer_rate"),
        (["--start", "tomorrow"], "starts_at"),
    ],
)
def test_the_plan_command_names_a_wrong_option(tmp_path: Path, more: list[str], words: str) -> None:
    file = tmp_path / "people.csv"
    file.write_text("phone\n+12125550001\n")
    result = invoke(str(file), "--start", MONDAY, *more)
    assert result.exit_code != 0
    assert words in str(result.exception)
