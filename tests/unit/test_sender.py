"""What the sender asks before a committed call leaves."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import cast
from uuid import UUID

import pytest

from trunkline.clock import SystemClock
from trunkline.dispatch.results import Answer, ResultWriter
from trunkline.dispatch.sender import ASKED_AHEAD_S, Asked, Callbacks, Sender, SenderLimits, Unwanted
from trunkline.model import Intent, new_id
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.carrier import Rejected
from trunkline.telephony.directory import CarrierDirectory
from trunkline.value import replace


class Results:
    def __init__(self) -> None:
        self.answers: list[Answer] = []

    def add(self, answer: Answer) -> None:
        self.answers.append(answer)

    async def flush(self) -> None:
        return None


class Anybody:
    """An account for every call: whether one leaves is asked after it was found."""

    def get(self, carrier: str, account: str) -> None:
        return None


class TurnHasCome(SystemClock):
    """Whatever waits for its turn has waited: no test has to."""

    def boottime_s(self) -> float:
        return 10.0


class FiresEarly(SystemClock):
    """When the first timers have fired, the turn has not quite come."""

    def __init__(self) -> None:
        self.shown = iter([9.9995, 9.9999, 10.0])
        self.last_s = 0.0

    def boottime_s(self) -> float:
        self.last_s = next(self.shown, 10.0)
        return self.last_s


async def test_a_timer_that_fires_early_is_set_again() -> None:
    clock, seen = FiresEarly(), list[float]()

    def killed() -> bool:
        seen.append(clock.last_s)
        return True

    sender = _sender(clock, Results(), killed=killed)
    sender.send_soon(_intent(0.0), Asked(10.0, clock.now().timestamp()), turn_s=10.0)
    await sender.drain()
    assert seen == [10.0], "asked right before it would leave"


@pytest.mark.parametrize(
    ("send_in_s", "asked"), [(0.0, False), (ASKED_AHEAD_S, False), (2 * ASKED_AHEAD_S, True), (1.0, True)]
)
async def test_of_a_call_that_waits_for_its_turn_it_is_asked_once_more_whether_it_is_wanted(
    send_in_s: float, *, asked: bool
) -> None:
    questions: list[UUID] = []

    async def unwanted(lead_id: UUID) -> bool:
        questions.append(lead_id)
        return True

    clock, results = TurnHasCome(), Results()
    sender = _sender(clock, results, unwanted=unwanted)
    intent = _intent(send_in_s)
    sender.send_soon(intent, Asked(0.0, clock.now().timestamp()), send_in_s)
    await sender.drain()
    (answer,) = results.answers
    assert isinstance(answer.place, Rejected)
    assert (questions == [intent.lead_id]) is asked
    assert (answer.place.code == "unwanted") is asked, "and an unwanted one does not leave"


@pytest.mark.parametrize(("ring_min_s", "rings_s"), [(0, 30), (15, 30), (45, 45)])
def test_a_phone_rings_as_long_as_a_rule_asks(ring_min_s: int, rings_s: int) -> None:
    sender = _sender(SystemClock(), Results())
    order = sender._order(replace(_intent(0.0), ring_min_s=ring_min_s), Asked(0.0, 0.0))
    assert order.ring_timeout_s == rings_s


async def _wanted(lead_id: UUID) -> bool:
    return False


def _sender(
    clock: SystemClock,
    results: Results,
    *,
    killed: Callable[[], object] = lambda: None,
    unwanted: Unwanted = _wanted,
) -> Sender:
    return Sender(
        clock,
        cast(CarrierDirectory, Anybody()),
        Callbacks("http://here", CallbackKeys.from_secrets(["secret"])),
        cast(ResultWriter, results),
        SenderLimits(),
        killed=killed,
        unwanted=unwanted,
    )


def _intent(send_in_s: float) -> Intent:
    now = datetime.now(UTC)
    return Intent(
        new_id(), new_id(), "twilio", "default", "+12125550001", "+14155550100", now, now, send_in_s
    )
