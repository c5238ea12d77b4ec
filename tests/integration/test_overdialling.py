"""Overdialling inside the intent: calls without an agent ring only while the bound holds, whatever dialers do."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from math import comb
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support.dispatch.dialing import AGENTS_OURS, Dialing, open_dialing
from tests.support.dispatch.stage import open_stage
from tests.support.leads.abandonment import dials_max
from tests.support.waiting import eventually
from trunkline.dispatch.intent import IntentBatch, Intents
from trunkline.dispatch.overdialling import Overdialling
from trunkline.leads.abandonment import answer_rate
from trunkline.leads.calling_policy import CallingPolicy
from trunkline.model import Blocks, Grant, RefusalReason, Slot, new_id
from trunkline.routing import Allocation
from trunkline.store import allocations, schedule
from trunkline.store.allocations import AllocationRequest

ABANDON_MAX = 0.03
COMMON = ["standard", "overflow", "basic"]


@pytest.fixture
async def dialing(database_url: str) -> AsyncIterator[Dialing]:
    async with open_dialing(database_url) as dialing:
        await dialing.policy(CallingPolicy(abandon_max=ABANDON_MAX))
        dialing.number = await dialing.add_number(max_channels=1000)
        yield dialing


async def pods(dialing: Dialing, count: int, tier: str = "standard") -> list[Slot]:
    return [await dialing.pod(f"{tier}-{new_id()}", tier=tier) for _ in range(count)]


async def history(
    dialing: Dialing, campaign: UUID | None = None, merchant: str = "m", **counted: int
) -> None:
    """What became of the campaign's calls within the last minutes."""
    await dialing.run(
        "INSERT INTO call_counts (reseller_id, merchant_id, campaign_id, ended, answered, by_person, abandoned)"
        " VALUES ('r', $1, $2, $3, $4, $5, $6)",
        merchant,
        campaign or UUID(int=0),
        counted.get("ended", 0),
        counted.get("answered", 0),
        counted.get("by_person", 0),
        counted.get("abandoned", 0),
    )


async def intend(
    dialing: Dialing, *leads: UUID, slots: Sequence[Slot] = (), overdialling: Overdialling | None = None
) -> Intents:
    grants = [dialing.grant(lead) for lead in leads]
    proposed = {grant.attempt_id: slot for grant, slot in zip(grants, slots, strict=False)}
    more = {"overdialling": overdialling} if overdialling else {}
    return await dialing.intend(*grants, slots=proposed, agents=AGENTS_OURS, **more)


def subjects(intents: Intents) -> set[str | None]:
    assert all(
        (each.reason, each.blocks) == (RefusalReason.AGENTS, Blocks.FLOW) for each in intents.refused.values()
    ), "a flow that is refused is set aside"
    return {each.subject for each in intents.refused.values()}


async def ring(dialing: Dialing, attempt: UUID) -> None:
    await dialing.run("UPDATE attempts SET state = 'ringing' WHERE id = $1", attempt)


async def end(dialing: Dialing, attempt: UUID) -> None:
    await dialing.run("UPDATE attempts SET state = 'ended', holds_channel = false WHERE id = $1", attempt)


async def answer(dialing: Dialing, attempt: UUID) -> bool:
    """Whether there was an agent for it."""
    async with dialing.database.connection() as conn:
        found = await allocations.allocate(
            conn, AllocationRequest(attempt, f"call-{attempt}", attempt, "m"), COMMON
        )
    await dialing.run("UPDATE attempts SET state = 'answered', answered_at = now() WHERE id = $1", attempt)
    return isinstance(found, Allocation)


async def test_without_a_history_as_many_calls_ring_as_agents_are_free_without_reservations(
    dialing: Dialing,
) -> None:
    await pods(dialing, 3)
    intents = await intend(dialing, *await dialing.leads(5))
    assert [intent.slot for intent in intents.committed] == [None] * 3
    assert subjects(intents) == {"abandon_max"}
    assert await dialing.value("SELECT count(*) FROM allocations") == 0
    row = await dialing.row("SELECT DISTINCT overdial_group, answer_rate, abandon_max FROM attempts")
    assert row == {"overdial_group": "common", "answer_rate": 1.0, "abandon_max": pytest.approx(ABANDON_MAX)}


async def test_a_hanging_handler_does_not_count_as_a_free_agent(dialing: Dialing) -> None:
    await dialing.pod("va-0", calls_max=4)
    await dialing.run("UPDATE pods SET hanging = '{CA-over}'")
    assert len((await intend(dialing, *await dialing.leads(5))).committed) == 3


async def test_one_free_agent_allows_one_ringing_call_at_a_25_percent_answer_rate(dialing: Dialing) -> None:
    await pods(dialing, 1)
    await history(dialing, ended=400, answered=100, by_person=100)
    for _ in range(5):
        intents = await intend(dialing, *await dialing.leads(10))
        assert len(intents.committed) == 1
        again = await intend(dialing, *await dialing.leads(2))
        assert not again.committed, "one rings"
        await end(dialing, intents.committed[0].attempt_id)


@pytest.mark.parametrize(("agents", "answered"), [(5, 40), (20, 100), (20, 200)])
async def test_as_many_overdialled_calls_ring_as_abandon_max_allows(
    dialing: Dialing, agents: int, answered: int
) -> None:
    await pods(dialing, agents)
    campaign = uuid4()
    await history(dialing, campaign, ended=400, answered=answered, by_person=answered)
    most = dials_max(answer_rate(answered, 400), agents - agents // 10, ABANDON_MAX)
    assert most > agents
    leads = await dialing.leads(most + 10, campaign_id=campaign)
    committed = sum(
        [len((await intend(dialing, *leads[i : i + 16])).committed) for i in range(0, len(leads), 16)]
    )
    assert committed == most, "the tenth for callers is not counted on"


async def test_the_strictest_abandon_max_of_the_ringing_calls_holds_for_all(dialing: Dialing) -> None:
    """A merchant that allows a tenth does not spoil it for one that allows a hundredth."""
    await pods(dialing, 9)
    await dialing.policy(CallingPolicy(abandon_max=0.1), subject="n")
    await dialing.policy(CallingPolicy(abandon_max=0.001))
    for merchant in "mn":
        await history(dialing, merchant=merchant, ended=400, answered=100, by_person=100)
    assert len((await intend(dialing, await dialing.lead())).committed) == 1
    rate = answer_rate(100, 400)
    leads = await dialing.leads(30, merchant="n")
    admitted = len((await intend(dialing, *leads)).committed)
    assert admitted == dials_max(rate, 9, 0.001) - 1 < dials_max(rate, 9, 0.1) - 1


async def test_an_answered_overdialled_call_no_longer_counts_as_ringing(dialing: Dialing) -> None:
    await pods(dialing, 2)
    intents = await intend(dialing, *await dialing.leads(2))
    assert await answer(dialing, intents.committed[0].attempt_id)
    assert not (await intend(dialing, await dialing.lead())).committed, "one talks and one rings"
    await end(dialing, intents.committed[1].attempt_id)
    assert len((await intend(dialing, *await dialing.leads(2))).committed) == 1


async def test_past_the_abandonment_rate_slots_are_reserved_and_the_end_is_reported(dialing: Dialing) -> None:
    await pods(dialing, 2)
    await history(dialing, ended=400, answered=100, by_person=100, abandoned=3)
    overdialling = Overdialling(fresh_s=0)
    intents = await intend(dialing, *await dialing.leads(4), overdialling=overdialling)
    assert [intent.slot is not None for intent in intents.committed] == [True, True]
    assert subjects(intents) == {"no_agent_free"}
    assert overdialling.ended == [("m", None)]
    overdialling.ended = []
    await intend(dialing, await dialing.lead(), overdialling=overdialling)
    assert overdialling.ended == [], "once a minute"
    assert overdialling.reserved([Grant(new_id(), new_id(), 1, new_id(), 1, 0, merchant_id="m")])


async def test_a_merchants_abandonment_rate_ends_overdialling_of_its_campaigns(dialing: Dialing) -> None:
    (slot,) = await pods(dialing, 1)
    await history(dialing, uuid4(), ended=400, answered=100, by_person=100, abandoned=3)
    lead = await dialing.lead(campaign_id=uuid4())
    assert [intent.slot for intent in (await intend(dialing, lead)).committed] == [slot]


async def test_no_slot_is_proposed_for_a_merchant_known_to_overdial(dialing: Dialing) -> None:
    await pods(dialing, 2)
    overdialling = Overdialling()
    grant = Grant(new_id(), new_id(), 1, new_id(), 1, 0, merchant_id="m")
    assert overdialling.reserved([grant]), "nobody knows yet"
    await intend(dialing, await dialing.lead(), overdialling=overdialling)
    assert not overdialling.reserved([grant])
    assert overdialling.reserved([Grant(new_id(), new_id(), 1, new_id(), 1, 0, merchant_id="n")])


@pytest.mark.parametrize("how", ["abandoned_calls", "no_agent_count"])
async def test_a_lead_that_was_abandoned_before_is_dialled_with_a_reserved_slot(
    dialing: Dialing, how: str
) -> None:
    slots = await pods(dialing, 2)
    lead = await dialing.lead("+12125559999")
    if how == "no_agent_count":
        await dialing.run("UPDATE leads SET no_agent_count = 1 WHERE id = $1", lead)
    else:
        await dialing.run(
            "INSERT INTO abandoned_calls (attempt_id, lead_id, reseller_id, merchant_id, phone, overdialled)"
            " VALUES ($1, $2, 'r', 'm', '+12125559999', true)",
            new_id(),
            lead,
        )
    kept, unkept = (await intend(dialing, lead, await dialing.lead())).committed
    assert kept.slot in slots
    assert unkept.slot is None


async def test_no_slot_is_reserved_that_ringing_overdialled_calls_need(dialing: Dialing) -> None:
    """Neither a lead of the campaign that must have one, nor another merchant's; and who waits for one gets one."""
    (slot,) = await pods(dialing, 1)
    overdialling = Overdialling(fresh_s=0)
    (ringing,) = (await intend(dialing, await dialing.lead())).committed
    other, own = await dialing.lead(merchant="n"), await dialing.lead()
    await dialing.run("UPDATE leads SET no_agent_count = 1 WHERE id = $1", own)
    refused = await intend(dialing, other, slots=[slot], overdialling=overdialling)
    assert subjects(refused) == {"agents_for_ringing_calls"}
    assert subjects(await intend(dialing, own)) == {"agents_for_ringing_calls"}
    await end(dialing, ringing.attempt_id)
    until_s = dict(overdialling._waiters_until_s)
    unkept = await intend(dialing, await dialing.lead(), overdialling=overdialling)
    assert subjects(unkept) == {"abandon_max"}, "somebody waits to keep it"
    assert overdialling._waiters_until_s == until_s, "not for longer than that is believed"
    kept = await intend(dialing, other, slots=[slot], overdialling=overdialling)
    assert [intent.slot for intent in kept.committed] == [slot]


async def test_a_slot_of_a_tier_without_ringing_calls_can_be_reserved(dialing: Dialing) -> None:
    gold, standard = *await pods(dialing, 1, "gold"), *await pods(dialing, 1)
    await intend(dialing, await dialing.lead())
    lead = await dialing.lead(merchant="n")
    assert len((await intend(dialing, lead, slots=[gold])).committed) == 1
    refused = await intend(dialing, await dialing.lead(merchant="n"), slots=[standard])
    assert subjects(refused) == {"agents_for_ringing_calls"}


async def test_a_merchants_own_tier_is_overdialled_before_the_common_ones(dialing: Dialing) -> None:
    await pods(dialing, 2, "gold")
    await pods(dialing, 1)
    await dialing.run(
        """INSERT INTO router_merchants (merchant_id, config) VALUES ('m', '{"tier": "gold"}')"""
    )
    intents = await intend(dialing, *await dialing.leads(4))
    assert len(intents.committed) == 3
    async with dialing.database.connection() as conn:
        rows = await conn.fetch("SELECT overdial_group FROM attempts ORDER BY 1")
    assert [row["overdial_group"] for row in rows] == ["common", "gold", "gold"]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE pods SET heard_at = heard_at - interval '1 hour' WHERE name = $1",
        "UPDATE pods SET leaving_since = now() WHERE name = $1",
        "INSERT INTO allocations (id, has_attempt, call) VALUES (gen_random_uuid(), false, $1)",
        "INSERT INTO allocations (id, has_attempt, merchant_id) VALUES (gen_random_uuid(), true, $1)",
        "INSERT INTO allocations (id, has_attempt, call, pod, slot, incarnation)"
        " SELECT gen_random_uuid(), false, name, name, 1, incarnation FROM pods WHERE name = $1",
    ],
    ids=["silent", "leaving", "somebody waits", "a pod was lost", "taken"],
)
async def test_an_unavailable_agent_does_not_count_for_overdialling(dialing: Dialing, change: str) -> None:
    one, _ = await pods(dialing, 2)
    await dialing.run("UPDATE pod_hearing SET since = since - interval '1 day'")
    await dialing.run(change, one.pod)
    assert len((await intend(dialing, *await dialing.leads(3))).committed) == 1


async def test_a_pod_that_missed_calls_counts_as_one_agent_for_overdialling(dialing: Dialing) -> None:
    await dialing.pod("va-0", tier="basic", calls_max=5)
    await dialing.run("UPDATE pods SET missed = 2, missed_at = now() - interval '1 minute'")
    assert len((await intend(dialing, *await dialing.leads(3))).committed) == 1


async def test_without_abandon_max_or_with_external_agents_nothing_is_overdialled(dialing: Dialing) -> None:
    await pods(dialing, 2)
    assert subjects(await intend(dialing, await dialing.lead(merchant="n"))) == {"no_agent_free"}
    await dialing.run("UPDATE merchants SET agents = 'elsewhere'")
    assert len((await intend(dialing, *await dialing.leads(5))).committed) == 5
    assert await dialing.value("SELECT count(*) FROM attempts WHERE overdial_group IS NOT NULL") == 0


async def test_a_country_whose_pack_allows_no_abandoned_calls_is_never_overdialled(dialing: Dialing) -> None:
    """The pack's hours may be over while this runs: then nobody is called at all."""
    (slot,) = await pods(dialing, 1)
    await dialing.policy(CallingPolicy(abandon_max=ABANDON_MAX, packs=["gb-dma"]))
    intents = await intend(dialing, await dialing.lead("+442071234567"), slots=[slot])
    assert all(intent.slot == slot for intent in intents.committed)
    assert await dialing.value("SELECT count(*) FROM attempts WHERE overdial_group IS NOT NULL") == 0


async def test_overdialled_lists_the_merchants_and_campaigns_with_an_abandon_max(dialing: Dialing) -> None:
    async def found() -> list[str]:
        async with dialing.database.connection() as conn:
            return sorted(await schedule.overdialled(conn))

    campaign = f"n/{uuid4()}"
    await dialing.policy(CallingPolicy(abandon_max=0.02), "campaign", campaign)
    assert await found() == [f"c/{campaign}", "m/m"]
    await dialing.policy(CallingPolicy(abandon_max=0.0), "merchant", "n")
    assert await found() == ["m/m"]
    await dialing.policy(CallingPolicy(abandon_max=0.0), "platform", "")
    assert await found() == []


async def test_race_two_dialers_cannot_both_overdial_for_the_last_agent(dialing: Dialing) -> None:
    await pods(dialing, 1)
    number = await dialing.add_number(account="another")
    one, two = dialing.grant(await dialing.lead()), dialing.grant(await dialing.lead(), number=number)
    first, batch = await dialing.half_an_intent(one, agents=AGENTS_OURS)
    assert len(batch.attempts) == 1
    second = await dialing.blocked(dialing.intend(two, agents=AGENTS_OURS))
    await dialing.commit(first)
    assert subjects(await second) == {"abandon_max"}


async def test_race_a_dial_with_a_reservation_does_not_wait_for_the_overdialling_lock(
    dialing: Dialing,
) -> None:
    """A dial that is kept takes no lock: a stopped dialer holds up the overdialled campaigns alone."""
    _, slot = await pods(dialing, 2)
    number = await dialing.add_number(account="another")
    await dialing.half_an_intent(dialing.grant(await dialing.lead()), agents=AGENTS_OURS)
    grant = dialing.grant(await dialing.lead(merchant="n"), 1, number=number)
    intents = await dialing.intend(grant, slots={grant.attempt_id: slot}, agents=AGENTS_OURS)
    assert [intent.slot for intent in intents.committed] == [slot]


@pytest.mark.parametrize("seed", range(4))
async def test_race_the_abandonment_bound_holds_at_every_overdialled_call(
    dialing: Dialing, seed: int
) -> None:
    """Two dialers, calls that end or are answered, agents that come and go, people who must have one."""
    chance = random.Random(seed)
    campaigns = [uuid4() for _ in range(3)]
    for campaign, answered in zip(campaigns, (60, 200, 30), strict=True):
        await history(dialing, campaign, ended=400, answered=answered, by_person=answered)
    other_number = await dialing.add_number(max_channels=1000, account="another")
    world = World(dialing, chance, [*campaigns, None], other_number)
    await pods(dialing, chance.randint(2, 12))
    for _ in range(60):
        unkept = await chance.choice([world.dial, world.dial_at_once, world.change])()
        if unkept:
            rate_free = await state(dialing)
            assert share(*rate_free) <= ABANDON_MAX + 1e-6, rate_free
    assert world.unkept > 20


class World:
    """`other_number`: of another account, or its lock alone would keep two dialers apart."""

    def __init__(
        self, dialing: Dialing, chance: random.Random, campaigns: list[UUID | None], other_number: UUID
    ):
        self._dialing = dialing
        self._other_number = other_number
        self._chance = chance
        self._campaigns = campaigns
        self.unkept = 0

    async def dial(self) -> int:
        return await self._count(await self._intend(await self._grants()))

    async def dial_at_once(self) -> int:
        """Another dialer's intent is written and not committed while the second one is asked for."""
        theirs, ours = await self._grants(), await self._grants(self._other_number)
        batch = IntentBatch(theirs, "another dialer", self._dialing.rules(agents=AGENTS_OURS), {})
        async with self._dialing.database.transaction() as tx:
            await batch.write(tx, 5000)
            second = asyncio.ensure_future(self._intend(ours))

            async def met() -> bool:
                return second.done() or bool(await self._dialing.waiting())

            await eventually(met, what="the second is done, or waits")
        unkept = sum(attempt.overdial is not None for attempt in batch.attempts)
        return await self._count(await second) + self._noted(unkept)

    async def change(self) -> int:
        dialing, chance = self._dialing, self._chance
        async with dialing.database.connection() as conn:
            live = await conn.fetch(
                "SELECT a.id, a.state FROM attempts AS a WHERE a.state <> 'ended' ORDER BY a.id"
            )
        for row in live:
            what = chance.choice(["end", "end", "answer", "ring", "stay"])
            if what == "end":
                await end(dialing, row["id"])
            elif what == "answer" and row["state"] != "answered":
                await answer(dialing, row["id"])
            elif what == "ring" and row["state"] == "dialing":
                await ring(dialing, row["id"])
        if chance.random() < 0.3:
            await pods(dialing, 1)
        elif chance.random() < 0.3:
            await dialing.run(
                "UPDATE pods SET leaving_since = now() WHERE name = (SELECT min(name) FROM pods)"
            )
        return 0

    async def _grants(self, number: UUID | None = None) -> list[Grant]:
        leads = []
        for _ in range(self._chance.randint(1, 6)):
            lead = await self._dialing.lead(campaign_id=self._chance.choice(self._campaigns))
            if self._chance.random() < 0.2:
                await self._dialing.run("UPDATE leads SET no_agent_count = 1 WHERE id = $1", lead)
            leads.append(lead)
        return [self._dialing.grant(lead, number=number) for lead in leads]

    async def _intend(self, grants: list[Grant]) -> Intents:
        return await self._dialing.intend(*grants, agents=AGENTS_OURS)

    async def _count(self, intents: Intents) -> int:
        return self._noted(sum(intent.slot is None for intent in intents.committed))

    def _noted(self, unkept: int) -> int:
        self.unkept += unkept
        return unkept


async def state(dialing: Dialing) -> tuple[int, float, int]:
    """Read apart from the product: calls that ring unkept, their mean rate, and the slots that are free for them."""
    rings: Any = await dialing.row(
        "SELECT count(*) AS calls, coalesce(avg(answer_rate), 0)::float8 AS rate FROM attempts"
        " WHERE overdial_group = 'common' AND state NOT IN ('answered', 'ended')"
    )
    free = await dialing.value(
        "SELECT count(*) FILTER (WHERE l.id IS NULL) - count(*) / 10 FROM pods AS p"
        " LEFT JOIN allocations AS l ON l.pod = p.name AND l.ended_at IS NULL WHERE p.leaving_since IS NULL"
    )
    return rings["calls"], rings["rate"], max(0, free)


def share(calls: int, rate: float, free: int) -> float:
    missed = sum(
        (many - free) * comb(calls, many) * rate**many * (1 - rate) ** (calls - many)
        for many in range(free + 1, calls + 1)
    )
    return missed / (calls * rate)


async def test_an_alarm_is_raised_when_overdialling_ends(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        dialing = stage.dialing
        await dialing.policy(CallingPolicy(abandon_max=ABANDON_MAX))
        await pods(dialing, 1)
        stage.dialer._batches._rules = dialing.rules(agents=AGENTS_OURS)
        await dialing.lead()
        assert await stage.dial() == 1
        assert await dialing.value("SELECT count(*) FROM alarms") == 0
        (order,) = stage.carrier.orders
        assert order.agent is None, "and none is named in its URL"
        await history(dialing, ended=400, answered=100, by_person=100, abandoned=3)
        await dialing.lead()
        await stage.dial()
        alarm = await dialing.row("SELECT name, subject FROM alarms")
        assert alarm == {"name": "overdialling_ended", "subject": "m"}
