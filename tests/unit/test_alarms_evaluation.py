"""When an alarm is raised and when it is cleared."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.control.alarm_loop import (
    GAP_MAX_S,
    Cleared,
    History,
    Raised,
    Sample,
    evaluate,
)
from trunkline.control.alarms import AlarmDefinition, Measured, Reported, Severity
from trunkline.control.inputs import share


def measured(
    above: float = 5, for_s: float = 60, clear_at: float = 3, clear_for_s: float = 30
) -> AlarmDefinition:
    rule = Measured(above, for_s, clear_at, clear_for_s, "things")
    return AlarmDefinition("some_alarm", "It is so.", "Do it.", rule, Severity.WARNING)


def reported(quiet_s: float | None) -> AlarmDefinition:
    return AlarmDefinition("some_alarm", "It is so.", "Do it.", Reported(quiet_s), Severity.WARNING)


def history(values: Sequence[float], is_open: bool = False, every_s: float = 5) -> History:
    """Values in the order in which they were seen, the last one now."""
    newest = len(values) - 1
    return History([Sample((newest - at) * every_s, value) for at, value in enumerate(values)], is_open)


def test_a_measured_alarm_is_raised_after_for_s_above_its_threshold() -> None:
    assert evaluate(measured(), history([9] * 12)) is None
    assert evaluate(measured(), history([9] * 13)) == Raised(9)


def test_a_value_at_the_threshold_raises_no_alarm() -> None:
    assert evaluate(measured(), history([5] * 100)) is None


def test_a_value_below_the_threshold_restarts_for_s() -> None:
    assert evaluate(measured(), history([9] * 50 + [1] + [9] * 12)) is None
    assert evaluate(measured(), history([9] * 50 + [1] + [9] * 13)) == Raised(9)


def test_with_for_s_0_one_value_raises_the_alarm() -> None:
    assert evaluate(measured(for_s=0), history([9])) == Raised(9)
    assert evaluate(measured(for_s=0), history([9, 5])) is None


def test_a_gap_between_samples_raises_no_alarm() -> None:
    apart = History([Sample(GAP_MAX_S + 10, 9), Sample(0, 9)])
    assert evaluate(measured(), apart) is None
    assert evaluate(measured(for_s=0), History([Sample(GAP_MAX_S + 10, 9)])) is None, (
        "the newest value is old"
    )


def test_without_a_sample_an_alarm_is_neither_raised_nor_cleared() -> None:
    assert evaluate(measured(for_s=0), History()) is None
    assert evaluate(measured(for_s=0), History(is_open=True)) is None


def test_a_measured_alarm_is_cleared_after_clear_for_s_below_clear_at() -> None:
    assert evaluate(measured(), history([4] * 100, is_open=True)) is None, "between the two numbers"
    assert evaluate(measured(), history([9, *[3] * 6], is_open=True)) is None
    assert evaluate(measured(), history([9, *[3] * 7], is_open=True)) == Cleared()


def test_an_open_alarm_is_not_raised_again() -> None:
    assert evaluate(measured(), history([9] * 100, is_open=True)) is None


@given(
    values=st.lists(st.sampled_from([1.0, 4.0, 9.0]), max_size=60),
    rule=st.builds(
        Measured,
        above=st.just(5.0),
        for_s=st.sampled_from([0.0, 10.0, 60.0]),
        clear_at=st.just(3.0),
        clear_for_s=st.sampled_from([0.0, 10.0]),
        unit=st.just("things"),
    ),
)
def test_a_value_between_clear_at_and_above_changes_nothing(values: list[float], rule: Measured) -> None:
    definition = AlarmDefinition("some_alarm", "It is so.", "Do it.", rule, Severity.WARNING)
    for is_open in (False, True):
        assert evaluate(definition, history([*values, 4.0], is_open)) is None


def test_a_reported_alarm_is_cleared_after_its_silence_and_never_raised() -> None:
    assert evaluate(reported(10), History(is_open=True, seen_s_ago=10)) is None
    assert evaluate(reported(10), History(is_open=True, seen_s_ago=10.1)) == Cleared()
    assert evaluate(reported(10), History([Sample(0, 1e9)], seen_s_ago=1e9)) is None


def test_an_alarm_for_a_person_is_not_cleared_by_silence() -> None:
    assert evaluate(reported(None), History(is_open=True, seen_s_ago=1e9)) is None


@pytest.mark.parametrize(
    ("part", "whole", "expected"), [(0, 0, 0), (2, 2, 0), (3, 300, 0.01), (3, 0, 0), (30, 100, 0.3)]
)
def test_a_share_of_fewer_than_three_events_is_zero(part: float, whole: float, expected: float) -> None:
    assert share(part, whole) == expected
