"""The checker's next step for an attempt without an event."""

import pytest

from trunkline.dispatch.checker import (
    DOUBT_STEPS_S,
    CheckLimits,
    QueryList,
    Step,
    Wait,
    next_step,
)
from trunkline.states import AttemptState

LIMITS = CheckLimits(request_timeout_s=5.0, ring_timeout_s=30.0, time_limit_s=3600.0)


@pytest.mark.parametrize(
    ("state", "age_s", "checks", "step"),
    [
        (AttemptState.DIALING, 3.0, 0, Wait(12.0)),
        (AttemptState.DIALING, 15.0, 0, "mark_in_doubt"),
        (AttemptState.IN_DOUBT, 1.0, 0, Wait(4.0)),
        (AttemptState.IN_DOUBT, 6.0, 0, QueryList(final=False)),
        (AttemptState.IN_DOUBT, 6.0, 1, Wait(24.0)),
        (AttemptState.IN_DOUBT, 130.0, 2, QueryList(final=False)),
        (AttemptState.IN_DOUBT, 130.0, 3, Wait(470.0)),
        (AttemptState.IN_DOUBT, 601.0, 3, QueryList(final=True)),
        (AttemptState.IN_DOUBT, 9000.0, 9, QueryList(final=True)),
        (AttemptState.ACCEPTED, 20.0, 0, Wait(40.0)),
        (AttemptState.RINGING, 61.0, 0, "query_call"),
        (AttemptState.ANSWERED, 20.0, 0, Wait(40.0)),
        (AttemptState.ANSWERED, 61.0, 0, "query_call"),
        (AttemptState.UNKNOWN, 5000.0, 0, "free_channel"),
    ],
)
def test_every_attempt_state_has_its_next_check(
    state: AttemptState, age_s: float, checks: int, step: Step
) -> None:
    assert next_step(state, age_s, checks, LIMITS) == step


def test_absence_is_concluded_only_past_deadline_and_ring_time() -> None:
    slow = CheckLimits(request_timeout_s=300.0, ring_timeout_s=600.0, time_limit_s=3600.0)
    last = len(DOUBT_STEPS_S) - 1
    assert isinstance(next_step(AttemptState.IN_DOUBT, 700.0, last, slow), Wait)
    assert next_step(AttemptState.IN_DOUBT, 911.0, last, slow) == QueryList(final=True)
    assert isinstance(next_step(AttemptState.IN_DOUBT, 911.0, last, slow, list_lag_s=300.0), Wait)
    assert next_step(AttemptState.IN_DOUBT, 1211.0, last, slow, list_lag_s=300.0) == QueryList(final=True)
