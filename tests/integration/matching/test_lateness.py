"""From when a call's lateness counts: from the moment when everything that it needs was there."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.support.bus.matching import NUMBER, PAST, entry, numbers
from trunkline.bus import channels, schedule
from trunkline.bus.channels import Configuration
from trunkline.bus.connection import Bus
from trunkline.bus.schedule import GiveBack, GrantReturn, Match
from trunkline.model import Grant, NumberLimit

OTHER = uuid4()


async def match(bus: Bus, agents: Mapping[str, int] | None = None, most: int = 10) -> Match:
    return await schedule.match(bus, [uuid4() for _ in range(most)], clock_offset_ms=0, agents=agents)


async def only(found: Match) -> Grant:
    (grant,) = found.grants
    return grant


async def is_ready_since(bus: Bus, grant: Grant, moment_ms: float) -> bool:
    assert grant.ready_ms is not None
    now_ms = await bus.server_time_s() * 1000
    return moment_ms - 1 <= grant.ready_ms <= now_ms


async def now_ms(bus: Bus) -> float:
    """A moment later than everything before and earlier than everything after, in whole milliseconds."""
    began = int(await bus.server_time_s() * 1000)
    while int(await bus.server_time_s() * 1000) == began:
        pass
    return await bus.server_time_s() * 1000


def due_ms(at: datetime = PAST) -> int:
    return schedule.to_ms(at)


async def test_a_lead_unmatched_beside_a_free_channel_is_late_since_it_was_due(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 1))
    await match(bus)
    await now_ms(bus)
    await schedule.add(bus, [entry()])
    assert (await only(await match(bus))).ready_ms == due_ms()


async def test_a_lead_granted_ahead_of_its_due_time_is_late_from_the_due_time(bus: Bus) -> None:
    due_at = datetime.now(UTC) + timedelta(seconds=30)
    await numbers(bus, (NUMBER, "p", 1))
    await schedule.add(bus, [entry(due_at=due_at)])
    found = await schedule.match(bus, [uuid4()], clock_offset_ms=0, ahead_ms=60_000)
    assert (await only(found)).ready_ms == due_ms(due_at)


async def test_in_a_backlog_lateness_counts_from_the_release_of_the_channel(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 1))
    await schedule.add(bus, [entry(), entry()])
    first = await only(await match(bus))
    assert first.ready_ms == due_ms()
    await now_ms(bus)
    assert (await match(bus)).grants == ()
    full_at_ms = await now_ms(bus)
    await match(bus)
    await channels.release(bus, [first.attempt_id])
    second = await only(await match(bus))
    assert await is_ready_since(bus, second, full_at_ms)


async def test_lateness_counts_from_the_due_time_while_another_channel_was_free(bus: Bus) -> None:
    """One of a number's channels was freed a moment ago, the other ones were free all the time."""
    await numbers(bus, (NUMBER, "p", 3))
    await schedule.add(bus, [entry()])
    first = await only(await match(bus))
    await now_ms(bus)
    await schedule.add(bus, [entry()])
    await channels.release(bus, [first.attempt_id])
    assert (await only(await match(bus))).ready_ms == due_ms()


@pytest.mark.parametrize("stop", ["all", "r/r", "m/m"])
async def test_lateness_of_a_stopped_lead_counts_from_the_end_of_the_stop(bus: Bus, stop: str) -> None:
    await numbers(bus, (NUMBER, "p", 1), stops={stop: "a draft"})
    await schedule.add(bus, [entry()])
    assert (await match(bus)).grants == ()
    stopped_at_ms = await now_ms(bus)
    await _wake(bus)
    assert (await match(bus)).grants == ()
    await numbers(bus, (NUMBER, "p", 1))
    await _wake(bus)
    assert await is_ready_since(bus, await only(await match(bus)), stopped_at_ms)


async def test_lateness_of_a_lead_that_waited_for_agents_counts_from_a_free_agent(bus: Bus) -> None:
    limit = NumberLimit(NUMBER, "p", 5, account="twilio/default")
    await channels.configure(bus, Configuration(numbers=(limit,)))
    await schedule.add(bus, [entry()])
    assert (await match(bus, {"*": 0})).grants == ()
    busy_at_ms = await now_ms(bus)
    await _wake(bus)
    assert (await match(bus, {"*": 0})).grants == ()
    await _wake(bus)
    assert await is_ready_since(bus, await only(await match(bus, {"*": 1})), busy_at_ms)


@pytest.mark.parametrize("how", [GrantReturn.AGAIN, GrantReturn.PARK, GrantReturn.REST, GrantReturn.REST_ALL])
async def test_a_refusals_wait_is_no_lateness_and_a_failure_of_ours_is(bus: Bus, how: GrantReturn) -> None:
    await numbers(bus, (NUMBER, "p", 1))
    for is_wait in (False, True):
        lead = entry()
        await schedule.add(bus, [lead])
        grant = await only(await match(bus))
        await now_ms(bus)
        # Nothing is matched before it is given back: only what the refusal says counts.
        refused = GiveBack(grant.attempt_id, how, int(await bus.server_time_s() * 1000), is_wait=is_wait)
        await schedule.give_back(bus, [refused])
        await now_ms(bus)
        await _wake(bus)
        again = await only(await match(bus))
        if is_wait:
            assert await is_ready_since(bus, again, refused.until_ms)
        else:
            assert again.ready_ms == due_ms()
        await channels.release(bus, [again.attempt_id])


async def test_lateness_of_a_lead_in_its_overflow_pool_counts_from_the_move(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 1), (OTHER, "q", 1))
    await schedule.add(bus, [entry(priority=1), entry(next_pool="q", moves_after_s=0.001)])
    before_ms = await now_ms(bus)
    grants: list[Grant] = []
    for _ in range(3):
        grants += (await match(bus)).grants
        await now_ms(bus)
    (moved,) = [grant for grant in grants if grant.number_id == OTHER]
    assert await is_ready_since(bus, moved, before_ms)


async def test_lead_records_of_an_older_version_are_read(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 1))
    lead = entry()
    await schedule.add(bus, [lead])
    text: Any = await bus.client.hget(f"{bus.projection}leads", str(lead.lead_id))
    await bus.client.hset(f"{bus.projection}leads", str(lead.lead_id), text.rsplit("|", 2)[0])
    assert (await only(await match(bus))).lead_id == lead.lead_id


async def _wake(bus: Bus) -> None:
    """Time passes: what was parked or rests comes back at the next match."""
    for name in ("parked", "resting"):
        members: list[Any] = await bus.client.zrange(f"{bus.projection}{name}", 0, -1)
        for member in members:
            await bus.client.zadd(f"{bus.projection}{name}", {member: 1})
