"""A lead is taken in, dialled at the simulated carrier over HTTP, followed by its webhooks, and finished."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.support.waiting import eventually
from tests.support.world import World
from trunkline.client import LeadWithAttempts
from trunkline.dispatch.carrier_costs import CarrierCosts
from trunkline.telephony.simulator.faults import Faults

ANSWERS, BUSY, NO_ANSWER, FAILS, REFUSED = (
    "+15005551000",
    "+15005551100",
    "+15005551200",
    "+15005551300",
    "+15005550001",
)


@pytest.fixture(autouse=True)
async def numbers(world: World) -> None:
    await world.client.create_number("+14155550100", pool="p", carrier="twilio", max_channels=3)


async def call(world: World, phone: str, scheduled_at: datetime | None = None) -> LeadWithAttempts:
    """Take in a lead, wait for its end."""
    lead = await world.client.create_lead(merchant_id="m", phone=phone, scheduled_at=scheduled_at)
    return await world.finished(lead.id)


async def test_an_answered_call_reaches_a_pod_and_frees_its_channel(world: World) -> None:
    lead = await call(world, ANSWERS)
    assert lead.outcome == "ANSWERED"
    assert [attempt.state for attempt in lead.attempts] == ["ended"]
    # On a slow machine the call may be over before its pod's first heartbeat is written.
    assert lead.attempts[0].agent in ("joined", "unknown")
    await world.channels_are_free()
    assert len(world.pods.records().calls) == 1
    assert world.carrier.ledger.double_dials() == []


@pytest.mark.parametrize(
    ("phone", "outcome", "reason"),
    [(BUSY, "BUSY", None), (NO_ANSWER, "NO_ANSWER", "NO_ANSWER"), (FAILS, "NO_ANSWER", "FAILED")],
)
async def test_an_unanswered_calls_outcome_gives_the_reason(
    world: World, phone: str, outcome: str, reason: str | None
) -> None:
    lead = await call(world, phone)
    assert (lead.outcome, lead.outcome_reason) == (outcome, reason)


@pytest.mark.parametrize("fault", ["20", "21", "22", "23", "24", "25", "41", "42", "43"])
async def test_carrier_faults_change_no_outcome_and_dial_once(world: World, fault: str) -> None:
    """Slow, 500 after dialling, reply lost, reset, garbage, webhook first; doubled, reordered, late webhooks."""
    lead = await call(world, f"+1500555{fault}00")
    assert lead.outcome == "ANSWERED"
    assert len(lead.attempts) == 1
    assert len(world.carrier.ledger.dials) == 1


async def test_the_same_request_id_twice_is_one_call(world: World) -> None:
    first = await world.client.create_lead(merchant_id="m", phone=ANSWERS, request_id="once")
    second = await world.client.create_lead(merchant_id="m", phone=ANSWERS, request_id="once")
    assert first.id == second.id
    await world.finished(first.id)
    assert len(world.carrier.ledger.dials) == 1


async def test_a_lead_is_not_dialled_before_its_time(world: World) -> None:
    due = datetime.now(UTC) + timedelta(seconds=1.5)
    await call(world, ANSWERS, scheduled_at=due)
    (dial,) = world.carrier.ledger.dials
    assert dial.requested_at >= due.timestamp()


async def test_more_leads_than_channels_wait_their_turn(world: World) -> None:
    leads = [await world.client.create_lead(merchant_id="m", phone=f"+150055510{n:02d}") for n in range(12)]
    for lead in leads:
        await world.finished(lead.id)
    ledger = world.carrier.ledger
    assert len(ledger.dials) == 12
    assert ledger.double_dials() == []
    assert ledger.over_capacity({"+14155550100": 3}) == []
    assert world.pods.records().overlaps == []


async def test_a_refused_destination_rejects_the_attempt_and_frees_its_channel(world: World) -> None:
    lead = await world.client.create_lead(merchant_id="m", phone=REFUSED)

    async def refused_once() -> bool:
        found = await world.client.get_lead(str(lead.id))
        return [attempt.state for attempt in found.attempts] == ["rejected"]

    await eventually(refused_once, timeout_s=10)
    assert world.carrier.ledger.dials == []
    await world.channels_are_free()


async def test_losing_the_projection_loses_no_lead_and_dials_none_twice(world: World) -> None:
    leads = [await world.client.create_lead(merchant_id="m", phone=f"+150055510{n:02d}") for n in range(10)]
    await eventually(lambda: len(world.carrier.ledger.dials) >= 3, timeout_s=10)
    client = world.platform.bus.client
    keys = world.platform.bus.keys
    async for key in client.scan_iter(match=f"{keys.prefix}:{{{keys.domain}}}:*"):
        await client.delete(key)
    for lead in leads:
        await world.finished(lead.id)
    ledger = world.carrier.ledger
    assert len(ledger.dials) == 10
    assert ledger.double_dials() == []
    assert ledger.over_capacity({"+14155550100": 3}) == []


async def test_calls_whose_webhooks_are_lost_end_by_the_carriers_call_list(world: World) -> None:
    """More of them than the checker looks up one by one."""
    await world.client.create_number("+14155550101", pool="p", carrier="twilio", max_channels=10)
    world.carrier.faults = Faults(webhook_lost=1.0)
    leads = [
        await world.client.create_lead(merchant_id="m", phone=f"+150055511{n:02d}", max_attempts=1)
        for n in range(6)
    ]

    async def all_are_over() -> bool:
        # As if half a minute had passed at every look.
        async with world.platform.database.connection() as conn:
            await conn.execute("UPDATE attempts SET send_at = send_at - interval '5 s' WHERE holds_channel")
            await conn.execute(
                "UPDATE account_looks SET next_at = clock_timestamp(), looked_at = NULL, leased_until = NULL"
            )
        found = [await world.client.get_lead(lead.id) for lead in leads]
        return all(lead.status == "FINISHED" for lead in found)

    await eventually(all_are_over, timeout_s=60, what="every lead ended")
    found = [await world.client.get_lead(lead.id) for lead in leads]
    assert {lead.outcome for lead in found} == {"BUSY"}
    await world.channels_are_free()


async def test_the_carriers_price_of_a_call_is_shown_with_its_attempt(world: World) -> None:
    lead = await call(world, ANSWERS)
    async with world.platform.database.connection() as conn:
        await conn.execute("INSERT INTO account_looks VALUES ('twilio', 'default') ON CONFLICT DO NOTHING")
        await conn.execute(
            "INSERT INTO cost_readings VALUES ('twilio', 'default', 0, now() - interval '5 minutes')"
        )
    costs = CarrierCosts(world.platform.database, world.platform.ingress.carriers)

    async def is_known() -> bool:
        # Read up to now: it has only just ended.
        async with world.platform.database.connection() as conn:
            await conn.execute(
                "UPDATE cost_readings SET read_to = now() - interval '5 minutes', leased_until = NULL"
            )
        await costs.run_once()
        found = await world.client.get_lead(lead.id)
        return found.attempts[0].carrier_cost_micros is not None

    await eventually(is_known, what="the carrier's price")
    attempt = (await world.client.get_lead(lead.id)).attempts[0]
    assert (attempt.carrier_cost_micros, attempt.carrier_cost_currency) == (14_000, "USD")
    assert attempt.cost_micros is None, "no price is set"
