"""From readings to one value per alarm, and from alarms to their documentation."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from trunkline.control.alarms import DEFINITIONS
from trunkline.control.alarms import Measured as MeasuredRule
from trunkline.control.document import rewritten
from trunkline.control.inputs import Readings, Waits, values
from trunkline.control.notifier import announcements
from trunkline.control.waits import cause
from trunkline.store.agents import AgentCapacity
from trunkline.store.alarms import StoredAlarm
from trunkline.store.presence import Losses, MeasuredValue
from trunkline.store.waiting import WaitingFlow

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "alarms.md").read_text(encoding="utf-8")
QUIET = Readings()


def counted(name: str, value: float, subject: str = "", minutes_ago: int = 0) -> MeasuredValue:
    return MeasuredValue(name, subject, minutes_ago, value)


def test_an_idle_platform_is_over_no_threshold() -> None:
    for (name, _), value in values(QUIET).items():
        rule = DEFINITIONS[name].rule
        assert isinstance(rule, MeasuredRule)
        assert value <= rule.clear_at, name


def flow(**more: Any) -> WaitingFlow:
    return WaitingFlow("p", "r", "m", None, **{"leads": 50.0} | more)


def waits(*flows: WaitingFlow, has_agents: bool = True, **more: Any) -> Readings:
    causes = {each: cause(each, **more) for each in flows}
    return replace(QUIET, waits=Waits(causes, has_agents), was_placed=False)


def over(readings: Readings) -> dict[tuple[str, str], float]:
    """What is above its threshold."""
    found = {}
    for key, value in values(readings).items():
        rule = DEFINITIONS[key[0]].rule
        assert isinstance(rule, MeasuredRule)
        if value > rule.above:
            found[key] = value
    return found


def test_overdue_leads_are_a_halt_only_while_nothing_is_placed() -> None:
    assert over(waits(flow())) == {("dispatch_halted", ""): 50}
    assert over(replace(waits(flow()), was_placed=True)) == {}


BUSY, GONE = AgentCapacity(4, 2, 2, False), AgentCapacity(4, 2, 0, False)


@pytest.mark.parametrize(
    ("why", "more", "expected"),
    [
        ("a stop, a draft", {"is_stopped": True}, {}),
        ("people without an agent", {"is_braked": True}, {}),
        ("a backlog", {"has_free_channel": False}, {}),
        ("numbers stopped by a person", {"has_usable_numbers": False, "has_free_channel": False}, {}),
        ("a limit, a pace", {"refused_for": "limit"}, {}),
        ("a carrier that refuses", {"is_taken_by_carrier": False, "has_free_channel": False}, {}),
        (
            "no number",
            {"has_numbers": False, "has_usable_numbers": False, "has_free_channel": False},
            {("leads_without_number", "p"): 50},
        ),
    ],
)
def test_a_flow_that_waits_for_a_known_cause_is_no_halt(
    why: str, more: dict[str, Any], expected: dict[tuple[str, str], float]
) -> None:
    assert over(waits(flow(**more))) == expected, why


def test_leads_that_another_system_calls_are_no_halt() -> None:
    assert over(waits(flow(), includes=lambda reseller, merchant: merchant != "m")) == {}


def test_busy_agents_and_missing_agents_are_separate_alarms() -> None:
    needy = flow(needs_agents=True)
    assert over(waits(needy, agents=BUSY)) == {("agents_busy", ""): 50}
    assert over(waits(needy, agents=GONE)) == {("merchant_without_agents", "m"): 50}
    assert over(waits(needy, agents=GONE, has_agents=False)) == {("no_agents", ""): 50}
    placed = replace(waits(needy, agents=GONE), was_placed=True)
    assert over(placed) == {("merchant_without_agents", "m"): 50}, "others are called meanwhile"


def test_failures_to_schedule_are_a_share_of_the_last_five_minutes() -> None:
    measured = [
        counted("schedule_tried", 100),
        counted("schedule_tried", 100, minutes_ago=4),
        counted("schedule_failed", 4, minutes_ago=4),
        counted("schedule_tried", 1000, minutes_ago=5),
        counted("schedule_failed", 1000, minutes_ago=5),
    ]
    assert values(replace(QUIET, measured=measured))["schedule_failures", ""] == 0.02


def test_fixes_are_those_of_the_fuller_of_two_minutes_by_reconciler() -> None:
    measured = [
        counted("reconciler_fixes", 2, "channels"),
        counted("reconciler_fixes", 12, "channels", 1),
        counted("reconciler_fixes", 99, "channels", 2),
        counted("reconciler_fixes", 1, "leases"),
    ]
    found = values(replace(QUIET, measured=measured))
    assert found["reconciler_fixes", "channels"] == 12
    assert found["reconciler_fixes", "leases"] == 1


def test_the_rate_of_unknown_is_per_carrier() -> None:
    measured = [
        counted("placed", 200, "twilio"),
        counted("placed", 100, "twilio", 14),
        counted("unknown", 6, "twilio", 10),
        counted("placed", 100, "plivo"),
    ]
    found = values(replace(QUIET, measured=measured))
    assert found["unknown_rate", "twilio"] == 0.02
    assert found["unknown_rate", "plivo"] == 0


def test_agent_unknown_rate_is_a_share_of_answered_calls() -> None:
    measured = [
        counted("answered", 60, "twilio"),
        counted("answered", 40, "twilio", 14),
        counted("agent_unknown", 6, "twilio", 14),
        counted("agent_unknown", 60, "twilio", 15),
        counted("answered", 100, "plivo"),
        counted("agent_unknown", 2, "plivo"),
    ]
    found = values(replace(QUIET, measured=measured))
    assert found["agent_unknown_rate", "twilio"] == 0.06
    assert found["agent_unknown_rate", "plivo"] == 0, "too few to tell"


def test_processes_that_died_are_a_share_of_those_that_should_run() -> None:
    found = values(
        replace(QUIET, processes={"dispatcher": Losses(4, 4), "api": Losses(2, 0), "jobs": Losses(0, 1)})
    )
    assert found["workers_down", "dispatcher"] == 0.5
    assert found["workers_down", "api"] == 0
    assert found["workers_down", "jobs"] == 1


def test_half_of_the_workers_gone_is_over_the_threshold_and_less_is_not() -> None:
    rule = DEFINITIONS["workers_down"].rule
    assert isinstance(rule, MeasuredRule)
    assert rule.above < 1 - 5 / 10
    assert not rule.above < 1 - 6 / 10


@pytest.mark.parametrize(
    ("name", "severity", "above"),
    [
        ("dispatch_halted", "page", 10),
        ("lateness_high", "urgent", 5),
        ("schedule_failures", "urgent", 0.01),
        ("channel_drift", "warning", 5),
        ("reconciler_fixes", "warning", 10),
    ],
)
def test_the_documented_thresholds_are_unchanged(name: str, severity: str, above: float) -> None:
    rule = DEFINITIONS[name].rule
    assert isinstance(rule, MeasuredRule)
    assert (DEFINITIONS[name].severity, rule.above) == (severity, above)


def test_no_alarm_rule_is_longer_than_samples_are_kept() -> None:
    from trunkline.control.alarm_loop import KEEP_S

    rules = [each.rule for each in DEFINITIONS.values() if isinstance(each.rule, MeasuredRule)]
    assert max(max(rule.for_s, rule.clear_for_s) for rule in rules) < KEEP_S
    assert all(rule.clear_at <= rule.above for rule in rules)


def test_the_page_is_what_the_generator_makes() -> None:
    assert rewritten(PAGE) == PAGE, "run: python -m trunkline.control.document docs/reference/alarms.md"


@pytest.mark.parametrize("name", list(DEFINITIONS))
def test_every_alarm_says_what_it_means_and_what_to_do(name: str) -> None:
    definition = DEFINITIONS[name]
    assert re.fullmatch(r"[a-z_]+", name)
    assert definition.meaning.endswith(".")
    assert definition.action.endswith(".")
    assert f"| `{name}` |" in PAGE


def alarm(**more: Any) -> StoredAlarm:
    at = datetime(2030, 5, 1, tzinfo=UTC)
    fields: dict[str, Any] = {
        "id": uuid4(),
        "name": "dead_jobs",
        "subject": "export",
        "severity": "warning",
        "meaning": "",
        "action": "",
        "detail": {"value": 3},
        "raised_at": at,
        "seen_at": at,
        "cleared_at": None,
        "cleared_by": None,
        "raise_told_at": None,
        "clear_told_at": None,
        "notified_at": None,
        "reseller_id": None,
        "merchant_id": None,
    }
    return StoredAlarm(**fields | more)


def test_raised_and_cleared_of_an_alarm_are_announced_once_and_in_order() -> None:
    at = datetime(2030, 5, 2, tzinfo=UTC)
    cases = [
        (alarm(), ["alarm.raised"]),
        (alarm(cleared_at=at, cleared_by="system"), ["alarm.raised", "alarm.cleared"]),
        (alarm(cleared_at=at, cleared_by="system", raise_told_at=at), ["alarm.cleared"]),
    ]
    for untold, expected in cases:
        said = list(announcements(untold))
        assert [each.type for each in said] == expected
        assert len({each.id for each in said}) == len(said)
        assert said[-1].body["data"]["subject"] == "export"


def test_an_alarm_name_of_another_version_is_announced() -> None:
    [said] = announcements(alarm(name="not_of_this_version"))
    assert said.body["data"]["name"] == "not_of_this_version"
