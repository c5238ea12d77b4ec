"""Agents as the match sees them: a flow without a free agent is not granted, and delays no other flow."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest

from tests.support.bus.matching import NUMBER, again, entry, numbers
from trunkline.bus import channels, schedule
from trunkline.bus.channels import Configuration
from trunkline.bus.connection import Bus
from trunkline.bus.schedule import Match
from trunkline.model import Flow, NumberLimit


async def match(bus: Bus, agents: Mapping[str, int] | None, most: int = 10) -> Match:
    ids = [uuid4() for _ in range(most)]
    return await schedule.match(bus, ids, clock_offset_ms=0, agents=agents, without_agents=["vapi"])


async def merchants_granted(bus: Bus, agents: Mapping[str, int] | None) -> list[str]:
    return sorted(grant.merchant_id for grant in (await match(bus, agents)).grants)


async def configured(bus: Bus, account: str = "twilio/default", **more: Any) -> None:
    limit = NumberLimit(NUMBER, "p", 50, account=account)
    await channels.configure(bus, Configuration(numbers=(limit,), **more))


async def test_a_grant_says_whose_lead_it_is(bus: Bus) -> None:
    await configured(bus)
    await schedule.add(bus, [entry(merchant="acme")])
    assert await merchants_granted(bus, None) == ["acme"]


@pytest.mark.parametrize(("free", "granted"), [(0, 0), (2, 2), (9, 4)])
async def test_no_more_is_granted_than_agents_are_free(bus: Bus, free: int, granted: int) -> None:
    await configured(bus)
    await schedule.add(bus, [entry() for _ in range(4)])
    assert len((await match(bus, {"*": free})).grants) == granted


async def test_a_tier_of_its_own_serves_its_merchant_first_and_nobody_else(bus: Bus) -> None:
    await configured(bus, tiers={"rich": "gold"})
    await schedule.add(bus, [entry(merchant=merchant) for merchant in ("rich", "rich", "poor", "poor")])
    assert await merchants_granted(bus, {"*": 1, "gold": 1}) in (["poor", "rich"], ["rich", "rich"])


async def test_without_common_agents_only_merchants_with_their_own_tier_are_granted(bus: Bus) -> None:
    await configured(bus, tiers={"rich": "gold"})
    await schedule.add(bus, [entry(merchant="poor"), entry(merchant="rich"), entry(merchant="rich")])
    assert await merchants_granted(bus, {"*": 0, "gold": 1}) == ["rich"]


@pytest.mark.parametrize("subject", ["m/elsewhere", "p/p"])
async def test_leads_served_by_external_agents_are_granted_without_a_free_agent(
    bus: Bus, subject: str
) -> None:
    await configured(bus, ungated=frozenset({subject}))
    await schedule.add(bus, [entry(merchant="elsewhere")])
    assert await merchants_granted(bus, {"*": 0}) == ["elsewhere"]


async def test_a_campaign_that_may_overdial_is_granted_without_a_free_agent(bus: Bus) -> None:
    campaign = uuid4()
    await configured(bus, overdialled=frozenset({f"c/m/{campaign}"}))
    lead = entry()
    flow = Flow("p", "r", "m", campaign)
    await schedule.add(bus, [type(lead)(lead.lead_id, 1, flow, lead.due_at), entry()])
    assert [grant.lead_id for grant in (await match(bus, {"*": 0})).grants] == [lead.lead_id]


async def test_a_lead_of_a_carrier_with_its_own_agents_is_granted_without_a_free_agent(bus: Bus) -> None:
    await configured(bus, account="vapi/default")
    await schedule.add(bus, [entry()])
    assert await merchants_granted(bus, {"*": 0}) == ["m"]


async def test_a_flow_that_waits_for_an_agent_is_woken_by_the_end_of_a_call(bus: Bus) -> None:
    await configured(bus)
    await schedule.add(bus, [entry(), entry()])
    (talking,) = (await match(bus, {"*": 1})).grants
    assert (await match(bus, {"*": 1})).grants == (), "its flow waits"
    await channels.release(bus, [talking.attempt_id])
    assert len((await match(bus, {"*": 1})).grants) == 1


async def test_a_grant_that_is_given_back_is_granted_again_when_an_agent_is_free(bus: Bus) -> None:
    await numbers(bus, (NUMBER, "p", 5))
    await schedule.add(bus, [entry()])
    (grant,) = (await match(bus, {"*": 1})).grants
    await schedule.give_back(bus, [again(grant)])
    assert len((await match(bus, {"*": 1})).grants) == 1


async def test_the_match_sets_aside_flows_without_an_agent_in_bounded_steps(
    bus: Bus,
) -> None:
    await configured(bus)
    await schedule.add(bus, [entry(merchant=f"m{n}") for n in range(100)])
    found = await match(bus, {"*": 0})
    assert found.grants == ()
    assert found.next_in_s is not None
    assert found.next_in_s > 0, "there are more to set aside, and nothing is gained by asking at once"


async def test_the_match_grants_overdialled_leads_four_at_a_time(bus: Bus) -> None:
    """Only Postgres knows how many more may ring: further grants would be refused."""
    await configured(bus, overdialled=frozenset({"m/m"}))
    await schedule.add(bus, [entry() for _ in range(6)])
    first = await match(bus, {"*": 0})
    assert (len(first.grants), first.next_in_s) == (4, 0.001)
    assert len((await match(bus, {"*": 0})).grants) == 2


async def test_a_grant_names_its_campaign(bus: Bus) -> None:
    campaign = uuid4()
    await configured(bus)
    lead = entry()
    await schedule.add(bus, [type(lead)(lead.lead_id, 1, Flow("p", "r", "m", campaign), lead.due_at)])
    assert [grant.campaign_id for grant in (await match(bus, None)).grants] == [campaign]
    await schedule.add(bus, [entry()])
    assert [grant.campaign_id for grant in (await match(bus, None)).grants] == [None]
