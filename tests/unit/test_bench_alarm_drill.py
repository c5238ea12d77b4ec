"""The drill of the alarms says what it found: its status, its last line, its page."""

import json

import pytest

from bench.__main__ import told
from bench.alarm_drill import HEARD_WITHIN_S, Everyday, conclude, page

WELL = [Everyday("a campaign"), Everyday("busy agents")]
HEARD: dict[str, float | None] = {"no_leader": 31.0, "postgres_unreachable": 12.3}


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    found = told(capsys.readouterr().out.splitlines()[-1], 0)
    assert found is not None
    return found


def test_a_successful_drill_is_met_with_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert conclude(WELL, HEARD) == 0
    assert last_line(capsys)["met"] is True


@pytest.mark.parametrize(
    ("everyday", "heard", "said"),
    [
        ([Everyday("a campaign", raised=["lateness"])], HEARD, "raised: lateness, by a campaign"),
        ([Everyday("busy agents", missing=["18 people waited"])], HEARD, "did not happen: 18 people waited"),
        (WELL, {**HEARD, "no_leader": None}, "not heard: no_leader"),
        (WELL, {**HEARD, "no_leader": HEARD_WITHIN_S + 1}, ""),
    ],
)
def test_a_failed_drill_prints_its_cause_before_the_json_and_has_status_1(
    everyday: list[Everyday],
    heard: dict[str, float | None],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert conclude(everyday, heard) == 1
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[-1])["met"] is False
    assert said in "\n".join(lines[:-1])


def test_the_page_names_date_commit_and_what_went_wrong() -> None:
    well = page(WELL, HEARD, "2030-05-01 09:00 UTC", "abc123")
    assert "2030-05-01 09:00 UTC, at commit abc123. Every goal was met." in well
    assert "| busy agents | yes | none |" in well
    assert "| `postgres_unreachable` | 12.3 | 35 |" in well
    everyday = [Everyday("busy agents", raised=["agents_busy"], missing=["one talk"])]
    worse = page(everyday, {"no_leader": None}, "", "")
    assert "Not every goal was met." in worse
    assert "| busy agents | no: one talk | agents_busy |" in worse
    assert "| `no_leader` | not heard | 35 |" in worse


def test_a_report_that_was_not_met_is_read_whatever_the_status() -> None:
    for status in (0, 1):
        assert told('{"met": false}', status) == {"met": False}
    assert told('{"met": true}', 0) == {"met": True}
    assert told('{"met": true}', 1) is None, "it broke after its report"
    for last in ("", "Traceback", "3", '{"other": 1}'):
        assert told(last, 1) is None
