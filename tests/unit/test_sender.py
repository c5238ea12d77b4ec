"""What the sender checks before a committed call leaves."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import cast
from uuid import UUID

import pytest

from trunkline.clock import SystemClock
from trunkline.dispatch.carrier_responses import CarrierResponseWriter
from trunkline.dispatch.cooldowns import CarrierAnswer, CarrierUnreachable
from trunkline.dispatch.sender import (
    RECHECK_AHEAD_S,
    Callbacks,
    IntentClock,
    IsUnwanted,
    Sender,
    SenderLimits,
)
from trunkline.model import Intent, new_id
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.carrier import Rejected
from trunkline.telephony.directory import CarrierDirectory
from trunkline.value import replace


class Results:
    def __init__(self) -> None:
        self.answers: list[CarrierAnswer] = []

    def add(self, answer: CarrierAnswer) -> None:
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


async def test_a_timer_that_fires_early_does_not_send_early() -> None:
    clock, seen = FiresEarly(), list[float]()

    def killed() -> bool:
        seen.append(clock.last_s)
        return True

    sender = _sender(clock, Results(), killed=killed)
    sender.send_soon(_intent(0.0), IntentClock(10.0, clock.now().timestamp()), turn_s=10.0)
    await sender.drain()
    assert seen == [10.0], "asked right before it would leave"


@pytest.mark.parametrize(
    ("send_in_s", "asked"), [(0.0, False), (RECHECK_AHEAD_S, False), (2 * RECHECK_AHEAD_S, True), (1.0, True)]
)
async def test_a_call_that_waits_for_its_turn_is_checked_for_an_abort_before_it_is_sent(
    send_in_s: float, *, asked: bool
) -> None:
    questions: list[UUID] = []

    async def unwanted(lead_id: UUID) -> bool:
        questions.append(lead_id)
        return True

    clock, results = TurnHasCome(), Results()
    sender = _sender(clock, results, unwanted=unwanted)
    intent = _intent(send_in_s)
    sender.send_soon(intent, IntentClock(0.0, clock.now().timestamp()), send_in_s)
    await sender.drain()
    (answer,) = results.answers
    assert isinstance(answer.place, Rejected)
    assert (questions == [intent.lead_id]) is asked
    assert (answer.place.code == "unwanted") is asked, "and an unwanted one does not leave"


@pytest.mark.parametrize(("is_probe", "is_sent"), [(False, False), (True, True)])
async def test_only_a_probe_is_sent_to_a_carrier_that_this_process_cannot_reach(
    *, is_probe: bool, is_sent: bool
) -> None:
    """A call that waited for its turn while an earlier one failed to connect."""
    clock, results, unreachable = TurnHasCome(), Results(), CarrierUnreachable()
    sender = _sender(clock, results, unreachable=unreachable)
    unreachable.leave_out(("twilio", "default"), 20.0)
    sender.send_soon(
        replace(_intent(0.0), is_probe=is_probe), IntentClock(10.0, clock.now().timestamp()), turn_s=0.0
    )
    await sender.drain()
    (answer,) = results.answers
    is_held_back = isinstance(answer.place, Rejected) and answer.place.code == "unreachable"
    assert is_held_back is not is_sent


@pytest.mark.parametrize(("ring_min_s", "rings_s"), [(0, 30), (15, 30), (45, 45)])
def test_the_ring_timeout_is_at_least_that_of_the_rule_pack(ring_min_s: int, rings_s: int) -> None:
    sender = _sender(SystemClock(), Results())
    order = sender._order(replace(_intent(0.0), ring_min_s=ring_min_s), IntentClock(0.0, 0.0))
    assert order.ring_timeout_s == rings_s


@pytest.mark.parametrize(
    ("closes_in_s", "leaves_by_s"), [(None, 10.75), (0.3, 10.3), (60.0, 10.75), (-1.0, 9.0)]
)
def test_an_orders_send_deadline_is_at_most_the_end_of_its_window(
    closes_in_s: float | None, leaves_by_s: float
) -> None:
    """Half a second after its turn is the latest, and the end of the window before that."""
    intent = _intent(0.25)
    intended_at = intent.send_at - timedelta(seconds=0.25)
    if closes_in_s is not None:
        intent = replace(intent, closes_at=intended_at + timedelta(seconds=closes_in_s))
    order = _sender(SystemClock(), Results())._order(intent, IntentClock(10.0, 0.0))
    assert order.send_by_boottime_s == pytest.approx(leaves_by_s)


async def _wanted(lead_id: UUID) -> bool:
    return False


def _sender(
    clock: SystemClock,
    results: Results,
    *,
    killed: Callable[[], object] = lambda: None,
    unwanted: IsUnwanted = _wanted,
    unreachable: CarrierUnreachable | None = None,
) -> Sender:
    return Sender(
        clock,
        cast(CarrierDirectory, Anybody()),
        Callbacks("http://here", CallbackKeys.from_secrets(["secret"])),
        cast(CarrierResponseWriter, results),
        SenderLimits(),
        killed=killed,
        unwanted=unwanted,
        unreachable=unreachable,
    )


def _intent(send_in_s: float) -> Intent:
    now = datetime.now(UTC)
    return Intent(
        new_id(), new_id(), "twilio", "default", "+12125550001", "+14155550100", now, now, send_in_s
    )
