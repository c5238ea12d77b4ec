"""When: ahead of the time, together, and at a wakeup."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from tests.support.bus.matching import NUMBER, entry, match, numbers
from trunkline.bus import channels, schedule
from trunkline.bus.connection import Bus, DialerWakeups
from trunkline.bus.schedule import GiveBack, GrantReturn
from trunkline.errors import BusUnavailable
from trunkline.model import Holder


async def test_a_lead_granted_ahead_of_its_due_time_carries_that_time(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 5))
    due_at = datetime.now(UTC) + timedelta(minutes=5)
    lead, later = entry(due_at=due_at), entry(due_at=due_at + timedelta(minutes=2))
    await schedule.add(bus, [lead, later])
    early = await schedule.match(bus, [uuid4()], clock_offset_ms=0, ahead_ms=60_000)
    assert early.grants == ()
    assert early.next_in_s is not None
    assert 200 < early.next_in_s < 241, "when it is a minute ahead"
    found = await schedule.match(bus, [uuid4(), uuid4()], clock_offset_ms=0, ahead_ms=301_000)
    assert [(g.lead_id, g.due_ms) for g in found.grants] == [(lead.lead_id, schedule.to_ms(due_at))]
    assert found.next_in_s is not None
    assert 100 < found.next_in_s < 121


@pytest.mark.parametrize("what", ["due", "park"])
async def test_the_match_gathers_leads_soon_due_and_does_not_delay_parked_flows(bus: Bus, what: str) -> None:
    await numbers(bus, (NUMBER, "p", 5))
    in_a_minute = datetime.now(UTC) + timedelta(minutes=1)
    await schedule.add(bus, [entry(), entry(due_at=in_a_minute)])
    (grant,) = await match(bus)
    if what == "park":
        await schedule.give_back(
            bus, [GiveBack(grant.attempt_id, GrantReturn.PARK, schedule.to_ms(in_a_minute))]
        )
    found = await schedule.match(bus, [uuid4()], clock_offset_ms=0, gather_ms=300_000)
    assert found.next_in_s is not None
    assert found.next_in_s == 300 if what == "due" else 0 < found.next_in_s < 61


async def test_the_match_continues_at_once_when_more_fell_due_than_it_moves(bus: Bus) -> None:
    """More fell due than one match moves: the others are matched at once."""
    await numbers(bus, (NUMBER, "p", 1))
    soon = datetime.now(UTC) + timedelta(minutes=1)
    await schedule.add(bus, [entry(due_at=soon) for _ in range(schedule.BECOME_DUE_MAX + 1)])
    found = await schedule.match(bus, [uuid4()], clock_offset_ms=0, ahead_ms=61_000, gather_ms=300_000)
    assert found.next_in_s == 0


@pytest.mark.parametrize("waiting", [0, 1])
async def test_a_release_wakes_a_dialer_only_while_a_lead_waits(bus: Bus, waiting: int) -> None:
    await numbers(bus, (NUMBER, "p", 1))
    await schedule.add(bus, [entry() for _ in range(1 + waiting)])
    (grant,) = await match(bus)
    await bus.client.delete(bus.keys.dialer_wakeups)
    assert await channels.release(bus, [grant.attempt_id]) == 1
    assert await bus.client.llen(bus.keys.dialer_wakeups) == waiting


async def test_a_release_wakes_a_dialer_for_a_lead_that_waits_behind_that_call(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 2))
    await schedule.add(bus, [entry(), entry()])
    first, second = await match(bus)
    later_ms = schedule.to_ms(datetime.now(UTC) + timedelta(minutes=5))
    behind = GiveBack(second.attempt_id, GrantReturn.BEHIND, later_ms, str(first.attempt_id))
    await schedule.give_back(bus, [behind])
    assert await match(bus) == ()
    await bus.client.delete(bus.keys.dialer_wakeups)
    await channels.release(bus, [first.attempt_id])
    assert await bus.client.llen(bus.keys.dialer_wakeups) == 1


async def test_a_lead_that_lost_its_channel_to_another_holder_wakes_a_dialer(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 2))
    await schedule.add(bus, [entry()])
    (grant,) = await match(bus)
    await bus.client.delete(bus.keys.dialer_wakeups)
    await channels.hold(bus, [Holder(uuid4(), NUMBER, grant.channel_no)])
    assert await bus.client.llen(bus.keys.dialer_wakeups) == 1
    assert [again.lead_id for again in await match(bus)] == [grant.lead_id]


async def test_a_new_lead_wakes_a_dialer(bus: Bus) -> None:
    wakeups = DialerWakeups(bus)
    assert await wakeups.wait(5.0) is True, "the new epoch"
    await schedule.add(bus, [entry()])
    assert await wakeups.wait(5.0) is True
    assert await wakeups.wait(0.01) is False
    await wakeups.close()


async def test_a_wakeup_between_two_waits_ends_the_second_wait(bus: Bus) -> None:
    wakeups = DialerWakeups(bus)
    assert await wakeups.wait(5.0) is True, "the new epoch"
    assert await wakeups.wait(0.01) is False
    await schedule.add(bus, [entry()])
    assert await wakeups.wait(5.0) is True
    await wakeups.close()


async def test_a_broken_wait_for_wakeups_raises_and_the_next_one_works(bus: Bus) -> None:
    wakeups = DialerWakeups(bus)
    assert await wakeups.wait(5.0) is True, "the new epoch"
    waiting = asyncio.create_task(wakeups.wait(60.0))
    while not waiting.done():  # it may be about to connect, and then there is nothing to break yet
        await bus.waits.close()
        await asyncio.wait({waiting}, timeout=0.01)
    with pytest.raises(BusUnavailable):
        await waiting
    await schedule.add(bus, [entry()])
    assert await wakeups.wait(5.0) is True
    await wakeups.close()
