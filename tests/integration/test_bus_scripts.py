"""Every dispatch script, on one server and on a real cluster: a foreign key works silently on one node only."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from trunkline.bus import channels, connection, doorbell, schedule
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys
from trunkline.bus.probe import server_time_s
from trunkline.bus.schedule import GiveBack
from trunkline.errors import BusUnavailable
from trunkline.model import Entry, Grant, Holder, NumberLimit

NUMBER = uuid4()
PAST = datetime.now(UTC) - timedelta(minutes=1)


@pytest.fixture(params=["server", "cluster"])
async def bus(request: pytest.FixtureRequest, key_prefix: str) -> AsyncIterator[Bus]:
    if request.param == "server":
        bus = connection.connect(request.getfixturevalue("redis_url"), Keys(prefix=key_prefix))
    else:
        url = request.getfixturevalue("valkey_cluster")[0]
        bus = connection.connect(url, Keys(prefix=key_prefix), cluster=True)
    yield bus
    await bus.close()


def entry(
    *, version: int = 1, pool: str = "p", due_at: datetime = PAST, lead_id: UUID | None = None
) -> Entry:
    return Entry(lead_id or uuid4(), version, pool, due_at)


async def match(bus: Bus, most: int = 10) -> tuple[Grant, ...]:
    found = await schedule.match(bus, [uuid4() for _ in range(most)], clock_offset_ms=0)
    return found.grants


async def numbers(bus: Bus, *limits: tuple[UUID, str, int]) -> int:
    return await channels.configure(bus, [NumberLimit(*limit) for limit in limits])


async def test_the_probe_runs_a_script_and_tells_the_time(bus: Bus) -> None:
    assert abs(await server_time_s(bus) - datetime.now(UTC).timestamp()) < 60


async def test_a_script_that_the_server_forgot_is_sent_again(bus: Bus) -> None:
    await server_time_s(bus)
    await bus.client.script_flush()
    assert await server_time_s(bus) > 0


async def test_a_server_that_is_away_is_one_exception(key_prefix: str) -> None:
    bus = connection.connect("redis://127.0.0.1:1", Keys(prefix=key_prefix))
    with pytest.raises(BusUnavailable):
        await server_time_s(bus)
    await bus.close()


async def test_no_more_is_granted_than_there_are_channels(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 3))
    await schedule.add(bus, [entry() for _ in range(5)])
    grants = await match(bus)
    assert sorted(grant.channel_no for grant in grants) == [1, 2, 3]
    assert await match(bus) == ()


async def test_no_more_is_granted_than_was_asked_for(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 3))
    await schedule.add(bus, [entry() for _ in range(3)])
    assert len(await match(bus, most=2)) == 2


async def test_a_lead_that_is_not_due_waits_and_the_match_says_how_long(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 1))
    await schedule.add(bus, [entry(due_at=datetime.now(UTC) + timedelta(minutes=5))])
    found = await schedule.match(bus, [uuid4()], clock_offset_ms=0)
    assert found.grants == ()
    assert found.next_due_s is not None
    assert 200 < found.next_due_s < 301


async def test_postgres_clock_decides_what_is_due(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 1))
    await schedule.add(bus, [entry(due_at=datetime.now(UTC) + timedelta(minutes=5))])
    found = await schedule.match(bus, [uuid4()], clock_offset_ms=6 * 60 * 1000)
    assert len(found.grants) == 1


async def test_leads_are_granted_oldest_first(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10))
    leads = [entry(due_at=PAST + timedelta(seconds=i)) for i in range(5)]
    await schedule.add(bus, reversed(leads))
    assert [grant.lead_id for grant in await match(bus)] == [lead.lead_id for lead in leads]


async def test_adding_a_lead_again_changes_nothing_also_while_it_is_granted(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10))
    lead = entry()
    assert await schedule.add(bus, [lead]) == 1
    assert await schedule.add(bus, [lead]) == 0
    assert len(await match(bus)) == 1
    assert await schedule.add(bus, [lead]) == 0
    assert await match(bus) == ()


async def test_a_newer_version_moves_a_lead_to_its_new_pool(bus: Bus) -> None:
    other = uuid4()
    await numbers(bus, (NUMBER, "p", 10), (other, "q", 10))
    lead = entry()
    await schedule.add(bus, [lead])
    await schedule.add(bus, [entry(lead_id=lead.lead_id, version=2, pool="q")])
    grants = await match(bus)
    assert [(grant.number_id, grant.version) for grant in grants] == [(other, 2)]


async def test_releasing_twice_frees_one_channel(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 2))
    await schedule.add(bus, [entry() for _ in range(3)])
    first, _ = await match(bus)
    assert await channels.release(bus, [first.attempt_id]) == 1
    assert await channels.release(bus, [first.attempt_id]) == 0
    assert len(await match(bus)) == 1


async def test_a_grant_that_was_given_back_can_be_granted_again(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 1))
    await schedule.add(bus, [entry()])
    (grant,) = await match(bus)
    assert await schedule.give_back(bus, [GiveBack(grant.attempt_id, grant.due_ms)]) == 1
    assert await schedule.give_back(bus, [GiveBack(grant.attempt_id, grant.due_ms)]) == 0
    (again,) = await match(bus)
    assert again.lead_id == grant.lead_id


async def test_giving_back_a_stale_grant_leaves_the_newer_version_alone(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 5))
    lead = entry()
    await schedule.add(bus, [lead])
    (stale,) = await match(bus)
    later = datetime.now(UTC) + timedelta(hours=1)
    await schedule.add(bus, [entry(lead_id=lead.lead_id, version=2, due_at=later)])
    await schedule.give_back(bus, [GiveBack(stale.attempt_id, stale.due_ms)])
    assert await match(bus) == ()


async def test_a_grant_given_back_without_a_time_is_forgotten(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 1))
    lead = entry()
    await schedule.add(bus, [lead])
    (grant,) = await match(bus)
    await schedule.give_back(bus, [GiveBack(grant.attempt_id, None)])
    assert await match(bus) == ()
    assert await schedule.add(bus, [lead]) == 1


async def test_the_true_holder_takes_the_place_of_a_wrong_one(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 1))
    await schedule.add(bus, [entry()])
    (grant,) = await match(bus)
    truth = Holder(uuid4(), NUMBER, grant.channel_no, uuid4())
    assert await channels.hold(bus, [truth]) == 1
    assert await channels.hold(bus, [truth]) == 0
    assert await channels.release(bus, [grant.attempt_id]) == 0
    assert [holder.attempt_id for holder in await channels.holders(bus)] == [truth.attempt_id]


async def test_a_lowered_maximum_grants_nothing_until_calls_have_ended(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 3))
    await schedule.add(bus, [entry() for _ in range(6)])
    held = await match(bus)
    assert await numbers(bus, (NUMBER, "p", 1)) == 1
    await channels.release(bus, [held[0].attempt_id, held[1].attempt_id])
    assert await match(bus) == ()
    await channels.release(bus, [held[2].attempt_id])
    assert len(await match(bus)) == 1


async def test_a_number_that_is_gone_grants_nothing(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 3))
    await numbers(bus)
    await schedule.add(bus, [entry()])
    assert await match(bus) == ()


async def test_the_least_loaded_number_is_chosen(bus: Bus) -> None:
    small, large = uuid4(), uuid4()
    await numbers(bus, (small, "p", 1), (large, "p", 4))
    await schedule.add(bus, [entry() for _ in range(5)])
    chosen = [grant.number_id for grant in await match(bus)]
    assert chosen.count(small) == 1
    assert chosen[0] == large


async def test_the_bell_rings_for_new_work(bus: Bus) -> None:
    await schedule.add(bus, [entry()])
    assert await doorbell.wait(bus, 1.0) is True
    assert await doorbell.wait(bus, 0.01) is False


async def test_a_burst_of_callers_shares_the_way(bus: Bus) -> None:
    times = await asyncio.gather(*(server_time_s(bus) for _ in range(500)))
    assert len(times) == 500


async def test_one_failing_script_takes_no_other_with_it(bus: Bus) -> None:
    await bus.client.set(bus.keys.leads, "not a hash")
    ok, broken = await asyncio.gather(
        server_time_s(bus), schedule.add(bus, [entry()]), return_exceptions=True
    )
    assert isinstance(ok, float)
    assert isinstance(broken, BusUnavailable)
