"""Calls in the carrier's own queue: taken back when they would ring too late, and never once they ring."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.support.telephony.carriers import Line, open_line
from trunkline import value
from trunkline.clock import SystemClock
from trunkline.dispatch.checker import cancel_if_queued
from trunkline.dispatch.sender import PATIENCE, place_in_time, rings_too_late
from trunkline.telephony.carrier import Accepted, Throttled
from trunkline.telephony.simulator import SimulatorConfig

CLOCK = SystemClock()
TO = "+15005551701"


def slow(calls_per_s: float) -> SimulatorConfig:
    usual = SimulatorConfig(time_scale=0.005)
    twilio = replace(usual.account("twilio"), calls_per_s=calls_per_s)
    others = tuple(one for one in usual.accounts if one.carrier != "twilio")
    return replace(usual, accounts=(twilio, *others))


@pytest.fixture
async def busy() -> AsyncIterator[Line]:
    """A hundred seconds for each call, and the first has been dialled: the next waits."""
    async with open_line("twilio", slow(0.01)) as line:
        assert isinstance(await line.carrier.place(line.order(TO)), Accepted)
        yield line


async def test_a_call_queued_for_too_long_is_cancelled_before_it_rings(busy: Line) -> None:
    result = await place_in_time(busy.carrier, busy.order("+15005551101"), CLOCK)
    assert isinstance(result, Throttled)
    assert 30 < result.retry_after_s <= 300
    assert [dial.to for dial in busy.simulator.ledger.dials] == [TO]


async def test_a_call_that_the_carrier_dials_at_once_is_accepted() -> None:
    async with open_line("twilio", slow(1000)) as line:
        assert isinstance(await place_in_time(line.carrier, line.order(TO), CLOCK), Accepted)
        assert len(line.simulator.ledger.dials) == 1


async def test_a_short_queue_wait_is_accepted_unless_the_window_closes_meanwhile() -> None:
    async with open_line("twilio", slow(0.1)) as line:
        assert isinstance(await line.carrier.place(line.order(TO)), Accepted)
        assert isinstance(await place_in_time(line.carrier, line.order("+15005551702"), CLOCK), Accepted)
        closing = value.replace(line.order("+15005551703"), not_after=CLOCK.now() + timedelta(seconds=1))
        assert isinstance(await place_in_time(line.carrier, closing, CLOCK), Throttled)


async def test_a_call_still_queued_when_its_window_closes_is_cancelled(busy: Line) -> None:
    placed = await busy.carrier.place(busy.order("+15005551101"))
    assert isinstance(placed, Accepted)
    assert await cancel_if_queued(busy.carrier, placed.call_id)
    await busy.receiver.until(lambda _: "ended" in [event.kind for event in busy.events()])
    assert busy.events()[-1].reason == "canceled"
    assert [dial.to for dial in busy.simulator.ledger.dials] == [TO]


async def test_a_ringing_call_is_not_cancelled_when_its_window_closes(busy: Line) -> None:
    ringing = busy.simulator.ledger.dials[0]
    await busy.until("ringing")
    assert not await cancel_if_queued(busy.carrier, ringing.call_id)
    assert ringing.ended_at is None


async def test_a_call_that_cannot_be_looked_up_is_not_cancelled(busy: Line) -> None:
    assert not await cancel_if_queued(busy.carrier, "CA" + "0" * 32)
    await busy.simulator.stop()
    assert not await cancel_if_queued(busy.carrier, busy.simulator.ledger.dials[0].call_id)


@pytest.mark.parametrize(
    ("queued_ms", "late"),
    [
        (0, False),
        (None, False),  # it waits, and the carrier does not say how long
        (1000, False),
        (int(PATIENCE.total_seconds() * 1000) + 1, True),
    ],
)
async def test_a_call_rings_too_late_only_by_the_carriers_reported_wait(
    busy: Line, queued_ms: int | None, late: bool
) -> None:
    assert rings_too_late(Accepted("1", queued_ms), busy.order(TO), CLOCK.now()) == late
