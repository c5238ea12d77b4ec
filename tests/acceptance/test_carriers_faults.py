"""Faults that others have had with carriers, each tried on every carrier it could happen at."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from uuid import uuid4

import pytest

from tests.support.api.asgi import AsgiClient
from tests.support.telephony.carriers import FROM, TRAITS, open_carrier_world, open_line
from tests.support.waiting import eventually
from tests.support.world import ADMIN_KEY, CARRIER, World
from trunkline.telephony.simulator import Behaviour, Faults, SimulatorConfig, plivo, vapi
from trunkline.telephony.simulator.config import CarrierName

NAMES = sorted(TRAITS)
BUSY = Behaviour(answer=0.0, busy=1.0, no_answer=0.0, failed=0.0)


@pytest.fixture
async def world(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[World]:
    async with open_carrier_world(database_url, redis_url, key_prefix) as world:
        yield world


async def number_at(world: World, carrier: str, max_channels: int = 3) -> None:
    await world.client.create_number(FROM, pool="p", carrier=carrier, max_channels=max_channels)


@pytest.mark.parametrize("carrier", NAMES)
async def test_an_unanswered_call_leaks_neither_its_channel_nor_its_number(
    world: World, carrier: str
) -> None:
    """One channel, and nobody answers: the next lead needs the same channel and the same number."""
    await number_at(world, carrier, max_channels=1)
    for phone in ("+15005551200", "+15005551300", "+15005551201"):
        lead = await world.client.create_lead(merchant_id="m", phone=phone)
        assert (await world.finished(lead.id)).outcome == "NO_ANSWER"
    await world.channels_are_free()
    assert len(world.carrier.ledger.dials) == 3


@pytest.mark.parametrize("carrier", NAMES)
async def test_doubled_end_webhooks_end_a_lead_once(
    database_url: str, redis_url: str, key_prefix: str, carrier: str
) -> None:
    """Every webhook comes twice. A retry that is counted twice would dial once too often."""
    config = replace(CARRIER, behaviour=BUSY, faults=Faults(webhook_doubled=1.0))
    async with open_carrier_world(database_url, redis_url, key_prefix, config=config) as world:
        await number_at(world, carrier)
        leads = [
            await world.client.create_lead(merchant_id="m", phone=f"+1415555{n:04d}") for n in range(100, 104)
        ]
        for lead in leads:
            finished = await world.finished(lead.id)
            assert (finished.outcome, len(finished.attempts)) == ("BUSY", 1)
        await world.carrier.idle()
        assert len(world.carrier.ledger.dials) == len(leads)


@pytest.mark.parametrize("carrier", NAMES)
async def test_a_lead_whose_carrier_reply_was_lost_is_dialled_once(world: World, carrier: str) -> None:
    await number_at(world, carrier)
    lead = await world.client.create_lead(merchant_id="m", phone="+15005552200")
    # Vapi's report says that its assistant was there for the one second that the call lasted.
    assert (await world.finished(lead.id)).outcome == ("EARLY_HANGUP" if carrier == "vapi" else "ANSWERED")
    assert len(world.carrier.ledger.dials) == 1


@pytest.mark.parametrize("carrier", ["exotel", "plivo", "twilio"])
async def test_two_simultaneous_calls_are_connected_to_two_pods(world: World, carrier: str) -> None:
    """Neither hangs up before both are connected."""
    await number_at(world, carrier, max_channels=2)
    for phone in ("+15005551600", "+15005551601"):
        await world.client.create_lead(merchant_id="m", phone=phone)
    await eventually(lambda: len(world.pods.records().calls) == 2, what="both have an agent")
    records = world.pods.records()
    assert records.overlaps == []
    assert len({record.pod for record in records.calls}) == 2
    for record in records.calls:  # or the pods would wait for them when the world ends
        world.carrier.end(record.call_sid, "completed")


@pytest.mark.parametrize(
    ("carrier", "causes", "credit"),
    [
        ("plivo", plivo.CAUSES, ("INSUFFICIENT_FUNDS", "Insufficient Funds", 1010)),
        ("vapi", vapi.ENDED_REASONS, "call.start.error-subscription-insufficient-credits"),
    ],
    ids=["plivo", "vapi"],
)
async def test_a_taken_call_that_fails_for_want_of_credit_cools_its_account_down(
    world: World, monkeypatch: pytest.MonkeyPatch, carrier: str, causes: Mapping[str, object], credit: object
) -> None:
    """The carrier takes the request and says in the webhook of the end that our account is to blame."""
    monkeypatch.setitem(causes, "failed", credit)
    await number_at(world, carrier)
    failing = await world.client.create_lead(merchant_id="m", phone="+15005551300")

    async def is_refused_by_cooldown() -> bool:
        return bool((await world.client.why(failing.id))["refused_by"] == "cooldown")

    await eventually(is_refused_by_cooldown, timeout_s=20, what="the lead waits for the end of the cooldown")
    scopes = "SELECT array_agg(scope || ' ' || subject) FROM cooldowns"
    assert await world.platform.database.pool.fetchval(scopes) == [f"account {carrier}/default"]
    lead = await world.client.get_lead(failing.id)
    assert [attempt.state for attempt in lead.attempts] == ["ended"], "the carrier had taken the call"
    assert (lead.status, lead.outcome) == ("BACKLOG", None)


async def test_a_token_replaced_during_a_call_still_verifies_its_end_webhook(world: World) -> None:
    """The carrier signs with the token it had when the call began, or with the new one: both verify."""
    account = world.carrier.config.account("plivo")
    admin = AsgiClient(world.platform.http.api, ADMIN_KEY)
    body = {
        "carrier": "plivo",
        "name": "drifting",
        "credentials": {"auth_id": account.sid, "auth_token": account.auth_token},
        "base_url": world.carrier.base_url,
    }
    made = (await admin.post("/api/v1/accounts", body)).json()
    await world.client.create_number(FROM, pool="p", carrier="plivo", account="drifting", max_channels=1)
    lead = await world.client.create_lead(merchant_id="m", phone="+15005551000")
    await eventually(lambda: len(world.carrier.ledger.dials) == 1, what="it is dialled")
    changed = await admin.patch(
        f"/api/v1/accounts/{made['id']}", {"credentials": {"auth_token": "the new token"}}
    )
    assert changed.status == 200
    assert (await world.finished(lead.id)).outcome == "ANSWERED"


# --- at the carrier alone


@pytest.mark.parametrize("carrier", NAMES)
async def test_a_cancelled_place_leaves_its_call_in_the_carriers_list(carrier: CarrierName) -> None:
    """Cancellation is no `Exception`: code that catches only those loses the call, and its channel with it."""
    async with open_line(carrier) as line:
        line.simulator.faults = Faults(reply_lost=1.0, reply_lost_s=60.0)
        attempt, to = uuid4(), "+14155550142"
        placing = asyncio.create_task(line.carrier.place(line.order(to, attempt)))
        await eventually(lambda: len(line.simulator.ledger.dials) == 1, what="it is dialled")
        placing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await placing
        (seen,) = await line.listed(to)
        assert seen.call_id == line.simulator.ledger.dials[0].call_id


@pytest.mark.parametrize("carrier", NAMES)
async def test_a_lookup_shows_the_end_of_a_call_without_webhooks(carrier: CarrierName) -> None:
    async with open_line(carrier) as line:
        call_id = await line.accepted("+15005554001")
        await line.simulator.idle()
        assert line.events() == []
        seen = await line.carrier.look_up(call_id)
        assert getattr(seen, "state", None) == "ended"


async def test_twilio_sends_every_subscribed_event() -> None:
    async with open_line("twilio") as line:
        await line.accepted("+15005551001")
        await line.simulator.idle()
        assert [event.kind for event in line.events()] == ["initiated", "ringing", "answered", "ended"]


@pytest.mark.parametrize("carrier", NAMES)
async def test_reordered_webhooks_keep_their_own_kind(carrier: CarrierName) -> None:
    config = replace(SimulatorConfig(time_scale=0.005), faults=Faults(webhook_reordered=1.0))
    async with open_line(carrier, config) as line:
        await line.accepted("+14155550142")
        await line.simulator.idle()
        assert line.events()[-1].kind == "ended"
