"""Every dispatch script, on one server and on a real cluster: a foreign key works silently on one node only."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from redis.asyncio import RedisCluster

from trunkline.bus import channels, connection, epoch, schedule
from trunkline.bus.channels import Configuration
from trunkline.bus.connection import Bus
from trunkline.bus.doorbell import Bell
from trunkline.bus.keys import Keys
from trunkline.bus.line import Client
from trunkline.bus.probe import server_time_s
from trunkline.bus.schedule import GiveBack, Return
from trunkline.errors import BusUnavailable, MemoryLost
from trunkline.model import Entry, Flow, Grant, Holder, NumberLimit
from trunkline.value import replace

NUMBER = uuid4()
PAST = datetime.now(UTC) - timedelta(minutes=1)


@pytest.fixture(params=["server", "cluster"])
async def bus(request: pytest.FixtureRequest, key_prefix: str) -> AsyncIterator[Bus]:
    if request.param == "server":
        bus = connection.connect(request.getfixturevalue("redis_url"), Keys(prefix=key_prefix))
    else:
        url = request.getfixturevalue("valkey_cluster")[0]
        bus = connection.connect(url, Keys(prefix=key_prefix), cluster=True)
    assert await epoch.begin(bus, 1) is not None
    assert await epoch.publish(bus, 1)
    yield bus
    await bus.close()


def entry(
    *,
    version: int = 1,
    pool: str = "p",
    merchant: str = "m",
    due_at: datetime = PAST,
    lead_id: UUID | None = None,
    priority: int = 50,
    closes_at: datetime | None = None,
    next_pool: str | None = None,
    moves_after_s: float | None = None,
) -> Entry:
    flow = Flow(pool, "r", merchant)
    return Entry(lead_id or uuid4(), version, flow, due_at, priority, closes_at, next_pool, moves_after_s)


async def match(bus: Bus, most: int = 10) -> tuple[Grant, ...]:
    found = await schedule.match(bus, [uuid4() for _ in range(most)], clock_offset_ms=0)
    return found.grants


async def numbers(bus: Bus, *limits: tuple[UUID, str, int], **more: Any) -> int:
    limits_ = tuple(NumberLimit(*limit) for limit in limits)
    return await channels.configure(bus, Configuration(numbers=limits_, **more))


def again(grant: Grant) -> GiveBack:
    return GiveBack(grant.attempt_id, Return.AGAIN)


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
    assert found.next_in_s is not None
    assert 200 < found.next_in_s < 301


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
    assert await schedule.give_back(bus, [again(grant)]) == 1
    assert await schedule.give_back(bus, [again(grant)]) == 0
    (second,) = await match(bus)
    assert second.lead_id == grant.lead_id


@pytest.mark.parametrize("how", [Return.AGAIN, Return.FORGET])
async def test_giving_back_a_stale_grant_leaves_the_newer_version_alone(bus: Bus, how: Return) -> None:
    await numbers(bus, (NUMBER, "p", 5))
    lead = entry()
    await schedule.add(bus, [lead])
    (stale,) = await match(bus)
    later = datetime.now(UTC) + timedelta(minutes=5)
    await schedule.add(bus, [entry(lead_id=lead.lead_id, version=2, due_at=later)])
    await schedule.give_back(bus, [GiveBack(stale.attempt_id, how)])
    assert await match(bus) == ()
    found = await schedule.match(bus, [uuid4()], clock_offset_ms=301_000)
    assert [(grant.lead_id, grant.version) for grant in found.grants] == [(lead.lead_id, 2)]


async def test_a_grant_given_back_without_a_time_is_forgotten(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 1))
    lead = entry()
    await schedule.add(bus, [lead])
    (grant,) = await match(bus)
    await schedule.give_back(bus, [GiveBack(grant.attempt_id, Return.FORGET)])
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


async def test_a_number_of_the_callees_region_is_preferred_while_one_is_free(bus: Bus) -> None:
    near, far = uuid4(), uuid4()
    limits = (NumberLimit(near, "p", 1, "+1415"), NumberLimit(far, "p", 5, "+1212"))
    await channels.configure(bus, Configuration(numbers=limits))
    await schedule.add(bus, [replace(entry(), region="+1415") for _ in range(2)])
    assert [grant.number_id for grant in await match(bus)] == [near, far], "then the least loaded of all"
    await schedule.add(bus, [entry(), replace(entry(), region="+44")])
    assert {grant.number_id for grant in await match(bus)} == {far}
    await channels.configure(bus, Configuration(numbers=(NumberLimit(far, "p", 5, "+1415"),)))
    await schedule.add(bus, [replace(entry(), region="+1212"), replace(entry(), region="+1415")])
    assert {grant.number_id for grant in await match(bus)} == {far}, "it has moved to another region"


async def test_pools_without_a_free_channel_do_not_stand_before_those_that_have_one(bus: Bus) -> None:
    """A run looks at sixty-four pools; full ones are out of its way until they have a channel."""
    full = [uuid4() for _ in range(70)]
    busy = [(number, f"p{n}", 1) for n, number in enumerate(full)]
    await numbers(bus, *busy)
    for _ in range(2):
        await schedule.add(bus, [entry(pool=pool) for _, pool, _ in busy])
    held = [grant for _ in range(4) for grant in await match(bus, 40)]
    assert len(held) == 70
    await numbers(bus, *busy, (NUMBER, "last", 1))
    await schedule.add(bus, [entry(pool="last")])
    found = [grant.number_id for _ in range(3) for grant in await match(bus)]
    assert found == [NUMBER]
    await channels.release(bus, [held[7].attempt_id])
    assert [grant.number_id for grant in await match(bus)] == [held[7].number_id], "and it is looked at again"


async def test_a_lead_is_granted_ahead_of_its_time_and_says_when_that_is(bus: Bus) -> None:
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
async def test_what_falls_due_soon_after_a_match_gathers_and_what_wakes_does_not(bus: Bus, what: str) -> None:
    await numbers(bus, (NUMBER, "p", 5))
    in_a_minute = datetime.now(UTC) + timedelta(minutes=1)
    await schedule.add(bus, [entry(), entry(due_at=in_a_minute)])
    (grant,) = await match(bus)
    if what == "park":
        await schedule.give_back(bus, [GiveBack(grant.attempt_id, Return.PARK, schedule.to_ms(in_a_minute))])
    found = await schedule.match(bus, [uuid4()], clock_offset_ms=0, gather_ms=300_000)
    assert found.next_in_s is not None
    assert found.next_in_s == 300 if what == "due" else 0 < found.next_in_s < 61


async def test_what_is_left_over_of_a_moment_gathers_no_longer(bus: Bus) -> None:
    """More fell due than one match moves: the rest is work for now."""
    await numbers(bus, (NUMBER, "p", 1))
    soon = datetime.now(UTC) + timedelta(minutes=1)
    await schedule.add(bus, [entry(due_at=soon) for _ in range(schedule.BECOME_DUE_MAX + 1)])
    found = await schedule.match(bus, [uuid4()], clock_offset_ms=0, ahead_ms=61_000, gather_ms=300_000)
    assert found.next_in_s == 0


@pytest.mark.parametrize("waiting", [0, 1])
async def test_the_end_of_a_call_rings_for_whoever_waits_and_for_nobody_else(bus: Bus, waiting: int) -> None:
    await numbers(bus, (NUMBER, "p", 1))
    await schedule.add(bus, [entry() for _ in range(1 + waiting)])
    (grant,) = await match(bus)
    await bus.client.delete(bus.keys.bell)
    assert await channels.release(bus, [grant.attempt_id]) == 1
    assert await bus.client.llen(bus.keys.bell) == waiting


async def test_the_end_of_a_call_rings_for_whoever_waits_behind_it(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 2))
    await schedule.add(bus, [entry(), entry()])
    first, second = await match(bus)
    later_ms = schedule.to_ms(datetime.now(UTC) + timedelta(minutes=5))
    behind = GiveBack(second.attempt_id, Return.BEHIND, later_ms, behind=first.attempt_id)
    await schedule.give_back(bus, [behind])
    assert await match(bus) == ()
    await bus.client.delete(bus.keys.bell)
    await channels.release(bus, [first.attempt_id])
    assert await bus.client.llen(bus.keys.bell) == 1


async def test_a_lead_whose_channel_was_another_attempts_is_rung_for(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 2))
    await schedule.add(bus, [entry()])
    (grant,) = await match(bus)
    await bus.client.delete(bus.keys.bell)
    await channels.hold(bus, [Holder(uuid4(), NUMBER, grant.channel_no)])
    assert await bus.client.llen(bus.keys.bell) == 1
    assert [again.lead_id for again in await match(bus)] == [grant.lead_id]


async def test_the_bell_rings_for_new_work(bus: Bus) -> None:
    bell = Bell(bus)
    assert await bell.wait(5.0) is True, "the new epoch"
    await schedule.add(bus, [entry()])
    assert await bell.wait(5.0) is True
    assert await bell.wait(0.01) is False
    await bell.close()


async def test_a_ring_between_two_waits_is_heard_by_the_second(bus: Bus) -> None:
    bell = Bell(bus)
    assert await bell.wait(5.0) is True, "the new epoch"
    assert await bell.wait(0.01) is False
    await schedule.add(bus, [entry()])
    assert await bell.wait(5.0) is True
    await bell.close()


async def cut(client: Client) -> None:
    """Break every connection, those in use too."""
    if isinstance(client, RedisCluster):
        await asyncio.gather(*(node.disconnect() for node in client.get_nodes()))
    else:
        await client.connection_pool.disconnect()


async def test_a_bell_that_cannot_be_heard_says_so_and_is_heard_again_later(bus: Bus) -> None:
    bell = Bell(bus)
    assert await bell.wait(5.0) is True, "the new epoch"
    waiting = asyncio.create_task(bell.wait(60.0))
    while not waiting.done():  # it may be about to connect, and then there is nothing to break yet
        await cut(bus.blocking)
        await asyncio.wait({waiting}, timeout=0.01)
    with pytest.raises(BusUnavailable):
        await waiting
    await schedule.add(bus, [entry()])
    assert await bell.wait(5.0) is True
    await bell.close()


async def test_a_burst_of_callers_shares_the_way(bus: Bus) -> None:
    times = await asyncio.gather(*(server_time_s(bus) for _ in range(500)))
    assert len(times) == 500


async def test_one_failing_script_takes_no_other_with_it(bus: Bus) -> None:
    await bus.client.set(f"{bus.memory}leads", "not a hash")
    ok, broken = await asyncio.gather(
        server_time_s(bus), schedule.add(bus, [entry()]), return_exceptions=True
    )
    assert isinstance(ok, float)
    assert isinstance(broken, BusUnavailable)


async def test_a_lower_priority_number_goes_first_and_then_the_older_lead(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10))
    late_urgent = entry(priority=1, due_at=PAST + timedelta(seconds=30))
    old, older = entry(due_at=PAST + timedelta(seconds=2)), entry(due_at=PAST)
    await schedule.add(bus, [old, late_urgent, older])
    assert [g.lead_id for g in await match(bus)] == [late_urgent.lead_id, older.lead_id, old.lead_id]


async def test_a_flow_of_many_does_not_starve_a_flow_of_few(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10))
    await schedule.add(bus, [entry(merchant="big") for _ in range(100)])
    few = [entry(merchant="small", due_at=PAST + timedelta(seconds=30)) for _ in range(5)]
    await schedule.add(bus, few)
    granted = {grant.lead_id for grant in await match(bus)}
    assert granted >= {lead.lead_id for lead in few}


async def test_weights_share_the_channels(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 12), weights={"heavy": 3})
    heavy = [entry(merchant="heavy") for _ in range(20)]
    await schedule.add(bus, [*heavy, *(entry(merchant="light") for _ in range(20))])
    granted = {grant.lead_id for grant in await match(bus, most=12)}
    assert len(granted & {lead.lead_id for lead in heavy}) == 9


async def test_a_flow_that_is_refilled_one_by_one_gets_no_more_than_its_share(bus: Bus) -> None:
    """Forgetting the finish of an emptied flow would let it begin anew each time and take every grant."""
    await numbers(bus, (NUMBER, "p", 1))
    await schedule.add(bus, [entry(merchant="steady") for _ in range(40)])
    dripped, outstanding = 0, None
    for _ in range(20):
        if outstanding is None:
            outstanding = entry(merchant="drip")
            await schedule.add(bus, [outstanding])
        (grant,) = await match(bus, most=1)
        if grant.lead_id == outstanding.lead_id:
            dripped, outstanding = dripped + 1, None
        await channels.release(bus, [grant.attempt_id])
    assert 9 <= dripped <= 11


async def test_a_grant_given_back_costs_its_flow_nothing(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 1))
    await schedule.add(bus, [entry(merchant="a") for _ in range(5)])
    await schedule.add(bus, [entry(merchant="b") for _ in range(5)])
    (first,) = await match(bus, most=1)
    for _ in range(6):
        await schedule.give_back(bus, [again(first)])
        (first,) = await match(bus, most=1)
    flows = {str(h.flow) for h in await channels.holders(bus)}
    await schedule.give_back(bus, [again(first)])
    (grant,) = await match(bus, most=1)
    assert {str(h.flow) for h in await channels.holders(bus)} == flows
    assert grant.lead_id == first.lead_id


@pytest.mark.parametrize("how", [Return.FORGET, Return.AGAIN])
@pytest.mark.parametrize("leads_left", [0, 3])
async def test_a_refused_grant_costs_its_flow_nothing_whatever_becomes_of_the_lead(
    bus: Bus, how: Return, leads_left: int
) -> None:
    await numbers(bus, (NUMBER, "p", 1))
    await schedule.add(bus, [entry(merchant="a") for _ in range(1 + leads_left)])
    (refused,) = await match(bus, most=1)
    soon_ms = schedule.to_ms(datetime.now(UTC) + timedelta(minutes=5))
    await schedule.give_back(bus, [GiveBack(refused.attempt_id, how, soon_ms)])
    await schedule.add(bus, [entry(merchant="a"), entry(merchant="b")])
    await match(bus, most=1)
    (holder,) = await channels.holders(bus)
    assert holder.flow is not None
    assert holder.flow.merchant_id == "a", "it was charged for nothing"


async def test_at_one_moment_the_leads_of_all_flows_become_due_in_turns(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 2))
    nine = datetime.now(UTC) + timedelta(minutes=5)
    await schedule.add(bus, [entry(due_at=nine) for _ in range(300)])
    await schedule.add(bus, [entry(due_at=nine, merchant="n")])
    found = await schedule.match(bus, [uuid4() for _ in range(4)], clock_offset_ms=301_000)
    merchants = {holder.flow.merchant_id for holder in await channels.holders(bus) if holder.flow}
    assert len(found.grants) == 2
    assert merchants == {"m", "n"}, "the one does not wait for the three hundred"


async def test_a_merchant_with_many_campaigns_has_one_share(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 40))
    for campaign in (uuid4(), uuid4(), uuid4()):
        flow = Flow("p", "r", "many", campaign)
        await schedule.add(bus, [Entry(uuid4(), 1, flow, PAST) for _ in range(20)])
    await schedule.add(bus, [entry(merchant="one") for _ in range(20)])
    await match(bus, most=20)
    shares = Counter(holder.flow.merchant_id for holder in await channels.holders(bus) if holder.flow)
    assert abs(shares["many"] - shares["one"]) <= 3, "a turn of each of its campaigns at most"


@pytest.mark.parametrize("what", ["park", "rest", "move"])
async def test_race_2_14_the_match_says_when_what_was_set_aside_comes_back(bus: Bus, what: str) -> None:
    """Nobody rings then: whoever waits has to know."""
    await numbers(bus, (NUMBER, "p", 1))
    later_ms = schedule.to_ms(datetime.now(UTC) + timedelta(minutes=5))
    await schedule.add(bus, [entry(next_pool="q" if what == "move" else None, moves_after_s=300)])
    if what == "move":
        await channels.hold(bus, [Holder(uuid4(), NUMBER, 1)])
    else:
        (grant,) = await match(bus)
        await schedule.give_back(bus, [GiveBack(grant.attempt_id, Return(what), later_ms)])
    found = await schedule.match(bus, [uuid4()], clock_offset_ms=0)
    assert found.grants == ()
    assert found.next_in_s is not None
    assert 200 < found.next_in_s < 301


async def test_a_release_never_frees_somebody_elses_channel(bus: Bus) -> None:
    """Whatever went wrong before: the channel names its holder, and only he lets it go."""
    await numbers(bus, (NUMBER, "p", 1))
    await schedule.add(bus, [entry(), entry()])
    (grant,) = await match(bus)
    await bus.client.hset(f"{bus.memory}channels:{NUMBER}", "1", "another")
    await channels.release(bus, [grant.attempt_id])
    assert await match(bus) == ()


async def test_a_hard_limit_holds_and_is_woken_by_a_release(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10), caps={"m/m": 2})
    await schedule.add(bus, [entry() for _ in range(5)])
    held = await match(bus)
    assert len(held) == 2
    assert await match(bus) == ()
    await channels.release(bus, [held[0].attempt_id])
    assert len(await match(bus)) == 1


async def test_a_campaigns_hard_limit_is_its_own_and_holds_up_nobody_else(bus: Bus) -> None:
    campaign = uuid4()
    await numbers(bus, (NUMBER, "p", 10), caps={f"c/m/{campaign}": 1})
    flow = Flow("p", "r", "m", campaign)
    await schedule.add(bus, [Entry(uuid4(), 1, flow, PAST) for _ in range(3)])
    await schedule.add(bus, [entry() for _ in range(3)])
    await match(bus)
    flows = Counter(holder.flow.campaign_id for holder in await channels.holders(bus) if holder.flow)
    assert flows == {campaign: 1, None: 3}


@pytest.mark.parametrize("subject", ["r/r", "m/m", "c/m/{campaign}"])
async def test_a_stop_holds_for_what_it_names(bus: Bus, subject: str) -> None:
    campaign = uuid4()
    stops = {subject.format(campaign=campaign): "test"}
    await numbers(bus, (NUMBER, "p", 10), stops=stops)
    await schedule.add(bus, [Entry(uuid4(), 1, Flow("p", "r", "m", campaign), PAST)])
    other = Entry(uuid4(), 1, Flow("p", "another", "n", campaign), PAST)
    await schedule.add(bus, [other])
    assert [grant.lead_id for grant in await match(bus)] == [other.lead_id]


async def test_a_flow_that_waits_for_a_pod_is_woken_by_the_end_of_any_call(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10))
    await schedule.add(bus, [entry(merchant="talking")])
    (talking,) = await match(bus)
    await schedule.add(bus, [entry(merchant="waiting"), entry(merchant="waiting")])
    (refused,) = await match(bus, most=1)
    later_ms = schedule.to_ms(datetime.now(UTC) + timedelta(hours=1))
    back = GiveBack(refused.attempt_id, Return.PARK, later_ms, until_a_release=True)
    await schedule.give_back(bus, [back])
    assert await match(bus) == (), "a grant that is given back is no end of a call"
    await channels.release(bus, [talking.attempt_id])
    assert len(await match(bus)) == 2


async def test_a_stopped_merchant_is_not_matched_and_others_are(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10), stops={"m/m": "asked for it"})
    other = entry(merchant="other")
    await schedule.add(bus, [entry(), other])
    assert [grant.lead_id for grant in await match(bus)] == [other.lead_id]


async def test_the_kill_switch_stops_every_grant(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10), stops={"all": "stop"})
    await schedule.add(bus, [entry()])
    assert await match(bus) == ()
    await numbers(bus, (NUMBER, "p", 10))
    assert len(await match(bus)) == 1


async def test_a_lead_whose_window_has_closed_is_set_aside(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10))
    closed, open_ = entry(closes_at=PAST + timedelta(seconds=1)), entry(due_at=PAST + timedelta(seconds=2))
    await schedule.add(bus, [closed, open_])
    found = await schedule.match(bus, [uuid4() for _ in range(5)], clock_offset_ms=0)
    assert found.closed == ((closed.lead_id, 1),)
    assert [grant.lead_id for grant in found.grants] == [open_.lead_id]


async def test_a_lead_moves_to_the_next_pool_after_it_has_waited_for_its_own(bus: Bus) -> None:
    own, shared = uuid4(), uuid4()
    await numbers(bus, (own, "own", 1), (shared, "shared", 1))
    first, second = (
        entry(pool="own", next_pool="shared", moves_after_s=30, due_at=PAST + timedelta(seconds=n))
        for n in range(2)
    )
    await schedule.add(bus, [first, second])
    (held,) = await match(bus)
    assert (held.lead_id, held.number_id) == (first.lead_id, own), "however long they are overdue"
    half_a_minute_later = await schedule.match(bus, [uuid4()], clock_offset_ms=31_000)
    assert half_a_minute_later.next_in_s == 0, "it has moved"
    (overflown,) = await match(bus)
    assert (overflown.lead_id, overflown.number_id) == (second.lead_id, shared)


async def test_a_pool_that_has_a_channel_loses_no_lead_to_the_next_one(bus: Bus) -> None:
    """After an outage everything is overdue for longer than the wait."""
    own, shared = uuid4(), uuid4()
    await numbers(bus, (own, "own", 3), (shared, "shared", 3))
    await schedule.add(bus, [entry(pool="own", next_pool="shared", moves_after_s=0) for _ in range(5)])
    an_hour_later = await schedule.match(bus, [uuid4() for _ in range(2)], clock_offset_ms=3_600_000)
    assert [grant.number_id for grant in an_hour_later.grants] == [own, own]
    much_later = [
        await schedule.match(bus, [uuid4() for _ in range(9)], clock_offset_ms=ms)
        for ms in (3_700_000, 3_700_001)
    ]
    assert [grant.number_id for each in much_later for grant in each.grants] == [own, shared, shared]


async def test_a_lead_moves_once(bus: Bus) -> None:
    """However long it waits in the next pool, and though its own has a channel again."""
    own, shared = uuid4(), uuid4()
    await numbers(bus, (own, "own", 0), (shared, "shared", 0))
    lead = entry(pool="own", next_pool="shared", moves_after_s=0)
    await schedule.add(bus, [lead])
    places = []
    for hours in range(6):
        await schedule.match(bus, [uuid4()], clock_offset_ms=hours * 3_600_000 + 1)
        places.append(await schedule.sizes(bus, [lead.flow, Flow("shared", "r", "m")]))
    assert places[2:] == [[0, 1]] * 4
    await numbers(bus, (own, "own", 1))
    assert await match(bus) == ()
    await numbers(bus, (shared, "shared", 1))
    (granted,) = await match(bus)
    assert (granted.lead_id, granted.number_id) == (lead.lead_id, shared)


async def test_no_more_leads_move_than_the_loader_can_look_past(bus: Bus) -> None:
    await numbers(bus, (uuid4(), "shared", 0))
    leads = [entry(pool="own", next_pool="shared", moves_after_s=0) for _ in range(120)]
    await schedule.add(bus, leads)
    for _ in range(10):
        await match(bus)
    assert await schedule.sizes(bus, [leads[0].flow, Flow("shared", "r", "m")]) == [20, 100]


async def test_a_person_who_is_being_called_makes_a_lead_wait_for_that_call(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10))
    await schedule.add(bus, [entry()])
    (talking,) = await match(bus)
    waiting = entry()
    await schedule.add(bus, [waiting])
    (refused,) = await match(bus)
    later_ms = schedule.to_ms(datetime.now(UTC) + timedelta(hours=1))
    back = GiveBack(refused.attempt_id, Return.BEHIND, later_ms, behind=talking.attempt_id)
    await schedule.give_back(bus, [back])
    assert await match(bus) == ()
    await channels.release(bus, [talking.attempt_id])
    assert [grant.lead_id for grant in await match(bus)] == [waiting.lead_id]


async def test_a_paced_number_rests_until_its_time(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10))
    await schedule.add(bus, [entry(), entry()])
    (grant,) = await match(bus, most=1)
    soon_ms = schedule.to_ms(datetime.now(UTC) + timedelta(hours=1))
    await schedule.give_back(bus, [GiveBack(grant.attempt_id, Return.REST, soon_ms)])
    assert await match(bus) == ()
    found = await schedule.match(bus, [uuid4()], clock_offset_ms=3_700_000)
    assert len(found.grants) == 1


async def test_a_paced_account_rests_with_all_of_its_numbers(bus: Bus) -> None:
    one, other, of_another = uuid4(), uuid4(), uuid4()
    limits = [NumberLimit(each, "p", 10, account="twilio/a") for each in (one, other)]
    limits.append(NumberLimit(of_another, "p", 1, account="twilio/b"))
    await channels.configure(bus, Configuration(numbers=tuple(limits)))
    await schedule.add(bus, [entry() for _ in range(6)])
    (grant,) = await match(bus, most=1)
    soon_ms = schedule.to_ms(datetime.now(UTC) + timedelta(hours=1))
    await schedule.give_back(bus, [GiveBack(grant.attempt_id, Return.REST_ALL, soon_ms)])
    assert [grant.number_id for grant in await match(bus)] == [of_another]
    found = await schedule.match(bus, [uuid4() for _ in range(9)], clock_offset_ms=3_700_000)
    assert {grant.number_id for grant in found.grants} == {one, other}


async def test_a_number_that_changed_its_account_rests_with_the_new_one(bus: Bus) -> None:
    stays, moves = uuid4(), uuid4()
    for account in ("twilio/a", "twilio/b"):
        limits = (NumberLimit(stays, "p", 9, account="twilio/a"), NumberLimit(moves, "p", 1, account=account))
        await channels.configure(bus, Configuration(numbers=limits))
    await schedule.add(bus, [entry(), entry()])
    (grant,) = await match(bus, most=1)
    soon_ms = schedule.to_ms(datetime.now(UTC) + timedelta(hours=1))
    await schedule.give_back(bus, [GiveBack(grant.attempt_id, Return.REST_ALL, soon_ms)])
    assert [grant.number_id for grant in await match(bus)] == [moves]


async def test_a_full_flow_keeps_what_comes_first_and_is_marked_for_a_refill(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10))
    later = [entry(due_at=datetime.now(UTC) + timedelta(minutes=n + 1)) for n in range(3)]
    await schedule.add(bus, later, cap=3)
    assert await schedule.add(bus, [entry(due_at=datetime.now(UTC) + timedelta(minutes=9))], cap=3) == 0
    urgent = entry(priority=1)
    assert await schedule.add(bus, [urgent], cap=3) == 1
    assert await schedule.sizes(bus, [urgent.flow]) == [3]
    assert await schedule.partial_flows(bus) == {urgent.flow}
    assert [grant.lead_id for grant in await match(bus)] == [urgent.lead_id]


async def test_what_is_due_beyond_the_horizon_stays_in_postgres(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10))
    far = entry(due_at=datetime.now(UTC) + timedelta(hours=1))
    assert await schedule.add(bus, [far]) == 0
    near = entry()
    await schedule.add(bus, [near])
    await schedule.add(bus, [entry(lead_id=near.lead_id, version=2, due_at=far.due_at)])
    assert await schedule.sizes(bus, [far.flow]) == [0]
    assert await match(bus) == (), "the older version is not called either"


async def test_whoever_has_not_measured_the_clocks_goes_by_what_the_match_was_told(bus: Bus) -> None:
    in_ten_minutes = entry(due_at=datetime.now(UTC) + timedelta(minutes=10))
    await schedule.match(bus, [uuid4()], clock_offset_ms=-600_000)
    assert await schedule.add(bus, [in_ten_minutes]) == 0, (
        "Postgres is ten minutes behind: it is due in twenty"
    )
    await schedule.match(bus, [uuid4()], clock_offset_ms=600_000)
    assert await schedule.add(bus, [in_ten_minutes]) == 1


async def test_memory_of_another_life_is_refused(bus: Bus) -> None:
    await schedule.add(bus, [entry()])
    await bus.client.hset(bus.keys.epoch, "run_id", "another")
    with pytest.raises(MemoryLost):
        await match(bus)
    assert await epoch.read(bus) == 0


async def test_a_life_that_is_not_believed_is_asked_for_again(bus: Bus) -> None:
    """Somebody between us and the server may have kept our connection while the server began another life."""
    await match(bus)
    for line in bus._pipe._lines._kept:
        line._life = "an earlier one"
    if bus._pipe._lines._kept:  # in a cluster scripts ask themselves
        with pytest.raises(MemoryLost):
            await match(bus)
    await epoch.ensure(bus)
    await match(bus)


async def test_of_two_rebuilds_the_newer_wins(bus: Bus) -> None:
    await bus.client.delete(bus.keys.epoch)
    older = await epoch.begin(bus, 7)
    assert await epoch.begin(bus, 8) is None, "the older one is still at it"
    await bus.client.hset(bus.keys.epoch, "seen_at", 0)
    newer = await epoch.begin(bus, 8)
    assert older is not None
    assert newer is not None
    with pytest.raises(MemoryLost):
        await schedule.add(older, [entry()])
    assert await schedule.add(newer, [entry()]) == 1
    assert await epoch.publish(bus, 7) is False
    assert await epoch.publish(bus, 8) is True
    assert await epoch.begin(bus, 8) is None


async def test_keys_of_older_epochs_are_swept(bus: Bus) -> None:
    await schedule.add(bus, [entry()])
    old = bus.memory
    building = await epoch.begin(bus, 2)
    assert building is not None
    await schedule.add(building, [entry()])
    await epoch.publish(bus, 2)
    assert await epoch.sweep(bus) > 0
    assert [key async for key in bus.client.scan_iter(match=f"{old}*")] == []
    assert await schedule.sizes(bus, [Flow("p", "r", "m")]) == [1]
