"""In which order: priorities, flows in turns, weights, and what a refused grant costs."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from tests.support.bus.matching import NUMBER, PAST, again, entry, match, numbers
from trunkline.bus import channels, schedule
from trunkline.bus.connection import Bus
from trunkline.bus.schedule import GiveBack, GrantReturn
from trunkline.model import Entry, Flow


async def test_a_lower_priority_number_goes_first_and_then_the_older_lead(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10))
    late_urgent = entry(priority=1, due_at=PAST + timedelta(seconds=30))
    old, older = entry(due_at=PAST + timedelta(seconds=2)), entry(due_at=PAST)
    await schedule.add(bus, [old, late_urgent, older])
    assert [g.lead_id for g in await match(bus)] == [late_urgent.lead_id, older.lead_id, old.lead_id]


async def test_a_flow_with_many_leads_does_not_starve_a_flow_with_few(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 10))
    await schedule.add(bus, [entry(merchant="big") for _ in range(100)])
    few = [entry(merchant="small", due_at=PAST + timedelta(seconds=30)) for _ in range(5)]
    await schedule.add(bus, few)
    granted = {grant.lead_id for grant in await match(bus)}
    assert granted >= {lead.lead_id for lead in few}


async def test_merchants_share_the_channels_by_weight(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 12), weights={"heavy": 3})
    heavy = [entry(merchant="heavy") for _ in range(20)]
    await schedule.add(bus, [*heavy, *(entry(merchant="light") for _ in range(20))])
    granted = {grant.lead_id for grant in await match(bus, most=12)}
    assert len(granted & {lead.lead_id for lead in heavy}) == 9


async def test_a_flow_refilled_lead_by_lead_gets_no_more_than_its_share(bus: Bus) -> None:
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


async def test_a_grant_given_back_does_not_cost_its_flow_a_turn(bus: Bus) -> None:
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


@pytest.mark.parametrize("how", [GrantReturn.FORGET, GrantReturn.AGAIN])
@pytest.mark.parametrize("leads_left", [0, 3])
async def test_a_refused_grant_does_not_cost_its_flow_a_turn(
    bus: Bus, how: GrantReturn, leads_left: int
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


async def test_leads_due_at_the_same_moment_become_due_in_turns_of_their_flows(bus: Bus) -> None:
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
