"""What is not granted now: limits, stops, windows, other pools, and what does not fit."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from tests.support.bus.matching import NUMBER, PAST, entry, match, numbers
from trunkline.bus import channels, schedule
from trunkline.bus.connection import Bus
from trunkline.bus.schedule import GiveBack, GrantReturn
from trunkline.model import Entry, Flow, Holder


@pytest.mark.parametrize("what", ["park", "rest", "move"])
async def test_race_2_14_the_match_returns_when_a_set_aside_flow_is_due_again(bus: Bus, what: str) -> None:
    """No wakeup is sent then: a waiting dialer has to know the time."""
    await numbers(bus, (NUMBER, "p", 1))
    later_ms = schedule.to_ms(datetime.now(UTC) + timedelta(minutes=5))
    await schedule.add(bus, [entry(next_pool="q" if what == "move" else None, moves_after_s=300)])
    if what == "move":
        await channels.hold(bus, [Holder(uuid4(), NUMBER, 1)])
    else:
        (grant,) = await match(bus)
        await schedule.give_back(bus, [GiveBack(grant.attempt_id, GrantReturn(what), later_ms)])
    found = await schedule.match(bus, [uuid4()], clock_offset_ms=0)
    assert found.grants == ()
    assert found.next_in_s is not None
    assert 200 < found.next_in_s < 301


async def test_a_merchants_hard_limit_holds_until_a_release(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10), caps={"m/m": 2})
    await schedule.add(bus, [entry() for _ in range(5)])
    held = await match(bus)
    assert len(held) == 2
    assert await match(bus) == ()
    await channels.release(bus, [held[0].attempt_id])
    assert len(await match(bus)) == 1


async def test_a_campaigns_hard_limit_delays_no_other_campaign(bus: Bus) -> None:
    campaign = uuid4()
    await numbers(bus, (NUMBER, "p", 10), caps={f"c/m/{campaign}": 1})
    flow = Flow("p", "r", "m", campaign)
    await schedule.add(bus, [Entry(uuid4(), 1, flow, PAST) for _ in range(3)])
    await schedule.add(bus, [entry() for _ in range(3)])
    await match(bus)
    flows = Counter(holder.flow.campaign_id for holder in await channels.holders(bus) if holder.flow)
    assert flows == {campaign: 1, None: 3}


@pytest.mark.parametrize("subject", ["r/r", "m/m", "c/m/{campaign}"])
async def test_a_stop_holds_for_the_subject_it_names_only(bus: Bus, subject: str) -> None:
    campaign = uuid4()
    stops = {subject.format(campaign=campaign): "test"}
    await numbers(bus, (NUMBER, "p", 10), stops=stops)
    await schedule.add(bus, [Entry(uuid4(), 1, Flow("p", "r", "m", campaign), PAST)])
    other = Entry(uuid4(), 1, Flow("p", "another", "n", campaign), PAST)
    await schedule.add(bus, [other])
    assert [grant.lead_id for grant in await match(bus)] == [other.lead_id]


async def test_a_flow_parked_until_a_release_is_granted_after_any_release(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10))
    await schedule.add(bus, [entry(merchant="talking")])
    (talking,) = await match(bus)
    await schedule.add(bus, [entry(merchant="waiting"), entry(merchant="waiting")])
    (refused,) = await match(bus, most=1)
    later_ms = schedule.to_ms(datetime.now(UTC) + timedelta(hours=1))
    back = GiveBack(refused.attempt_id, GrantReturn.PARK, later_ms, schedule.ANY_RELEASE)
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


async def test_the_match_returns_a_lead_whose_window_has_closed_and_grants_the_next(bus: Bus) -> None:
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


async def test_a_lead_does_not_move_to_the_overflow_pool_while_its_own_has_a_channel(bus: Bus) -> None:
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


async def test_a_lead_moves_to_the_overflow_pool_once(bus: Bus) -> None:
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


async def test_at_most_100_leads_move_to_an_overflow_pool_without_a_channel(bus: Bus) -> None:
    await numbers(bus, (uuid4(), "shared", 0))
    leads = [entry(pool="own", next_pool="shared", moves_after_s=0) for _ in range(120)]
    await schedule.add(bus, leads)
    for _ in range(10):
        await match(bus)
    assert await schedule.sizes(bus, [leads[0].flow, Flow("shared", "r", "m")]) == [20, 100]


async def test_a_full_flow_keeps_its_first_leads_and_is_marked_for_a_refill(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10))
    later = [entry(due_at=datetime.now(UTC) + timedelta(minutes=n + 1)) for n in range(3)]
    await schedule.add(bus, later, cap=3)
    assert await schedule.add(bus, [entry(due_at=datetime.now(UTC) + timedelta(minutes=9))], cap=3) == 0
    urgent = entry(priority=1)
    assert await schedule.add(bus, [urgent], cap=3) == 1
    assert await schedule.sizes(bus, [urgent.flow]) == [3]
    assert await schedule.partial_flows(bus) == {urgent.flow}
    assert [grant.lead_id for grant in await match(bus)] == [urgent.lead_id]


async def test_a_lead_due_beyond_the_horizon_stays_in_postgres(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10))
    far = entry(due_at=datetime.now(UTC) + timedelta(hours=1))
    assert await schedule.add(bus, [far]) == 0
    near = entry()
    await schedule.add(bus, [near])
    await schedule.add(bus, [entry(lead_id=near.lead_id, version=2, due_at=far.due_at)])
    assert await schedule.sizes(bus, [far.flow]) == [0]
    assert await match(bus) == (), "the older version is not called either"
