"""Calls that come in over the wire: admitted on the number's channels, connected to a pod, and freed at their end."""

from collections.abc import AsyncIterator

import pytest

from tests.support.api.asgi import AsgiClient
from tests.support.telephony.carriers import FROM, TRAITS, open_carrier_world, ring_in
from tests.support.waiting import eventually
from tests.support.world import ADMIN_KEY, World
from trunkline.api.webhooks import answers
from trunkline.telephony.simulator.config import CarrierName

CALLER = "+15005551600"  # talks until somebody hangs up
BRIEF = "+15005551500"


@pytest.fixture
async def world(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[World]:
    async with open_carrier_world(database_url, redis_url, key_prefix) as world:
        yield world


async def number_at(world: World, carrier: str, max_channels: int = 2) -> str:
    """A shared number, whose calls are the merchant's."""
    number = await world.client.create_number(FROM, pool="p", carrier=carrier, max_channels=max_channels)
    await decide(world, str(number.id), merchant_id="m")
    return str(number.id)


async def decide(world: World, number_id: str, **policy: object) -> None:
    admin = AsgiClient(world.platform.http.api, ADMIN_KEY)
    answer = await admin.request("PUT", f"/api/v1/numbers/{number_id}/inbound", json=policy)
    assert answer.status == 200, answer.body


async def held(world: World) -> int:
    async with world.platform.database.connection() as conn:
        return int(await conn.fetchval("SELECT count(*) FROM attempts WHERE holds_channel"))


@pytest.mark.parametrize("carrier", sorted(TRAITS))
async def test_an_inbound_call_reaches_an_agent_and_frees_its_channel(
    world: World, carrier: CarrierName
) -> None:
    await number_at(world, carrier)
    call = ring_in(world, carrier, FROM, CALLER)
    served = [] if carrier == "vapi" else [call.sid]
    await eventually(lambda: call.state == "answered", what="it is answered")
    await eventually(lambda: [each.call_sid for each in world.pods.records().calls] == served, what="served")
    world.carrier.end(call.sid, "completed")
    await world.carrier.idle()
    (dial,) = world.carrier.ledger.dials
    assert (dial.direction, dial.call_id) == ("inbound", call.sid)
    assert [each.call_sid for each in world.pods.records().calls] == served

    async def none_held() -> bool:
        return await held(world) == 0

    await eventually(none_held, what="its channel is free")
    await world.channels_are_free()
    async with world.platform.database.connection() as conn:
        row = await conn.fetchrow("SELECT * FROM attempts")
    assert row is not None
    assert (row["state"], row["direction"], row["merchant_id"]) == ("ended", "inbound", "m")
    assert row["carrier_call_id"] == call.sid


@pytest.mark.parametrize("carrier", sorted(TRAITS))
async def test_an_inbound_call_without_a_free_channel_is_refused(world: World, carrier: CarrierName) -> None:
    await number_at(world, carrier, max_channels=1)
    first = ring_in(world, carrier, FROM, CALLER)
    await eventually(lambda: len(world.carrier.ledger.dials) == 1, what="the first has its agent")
    second = ring_in(world, carrier, FROM, BRIEF)
    await eventually(lambda: second.state == "ended", what="the second was refused")
    assert first.state == "answered"
    assert len(world.carrier.ledger.dials) == 1
    assert world.carrier.ledger.over_capacity({FROM: 1}) == []


@pytest.mark.parametrize(
    "policy",
    [
        {"otherwise": "message", "message": "All lines are busy."},
        {"otherwise": "redirect", "redirect_to": "+14155550199"},
        {"admits": "nobody"},
        {"admits": "whitelist", "whitelist": ["+14155550123"]},
    ],
)
async def test_a_refused_caller_gets_the_policys_reply_and_no_agent(
    world: World, policy: dict[str, object]
) -> None:
    number_id = await number_at(world, "twilio", max_channels=0)
    await decide(world, number_id, merchant_id="m", **policy)
    ring_in(world, "twilio", FROM, BRIEF)
    await world.carrier.idle()
    assert world.carrier.ledger.dials == []
    assert world.pods.records().calls == []


async def test_outbound_and_inbound_calls_share_the_channels_of_a_number(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever cannot be admitted in time, because the machine is busy, is answered without a channel.
    monkeypatch.setattr(answers, "ADMIT_SHARE", 30.0)
    await number_at(world, "twilio", max_channels=2)
    leads = [await world.client.create_lead(merchant_id="m", phone=f"+150055515{n:02d}") for n in range(8)]
    for n in range(12):
        ring_in(world, "twilio", FROM, f"+1500555150{n % 10}")
        await eventually(lambda: world.carrier.ledger.live() <= 2)
    for lead in leads:
        await world.finished(lead.id)
    await world.carrier.idle()
    assert world.carrier.ledger.over_capacity({FROM: 2}) == []
    assert world.pods.records().overlaps == []


async def test_an_inbound_call_without_a_free_pod_releases_its_channel(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with open_carrier_world(database_url, redis_url, key_prefix, pods=0) as world:
        await number_at(world, "twilio")
        ring_in(world, "twilio", FROM, BRIEF)
        await world.carrier.idle()

        async def none_held() -> bool:
            return await held(world) == 0

        await eventually(none_held, what="its channel is free")
        assert world.carrier.ledger.dials == []
