"""Changes while calls are live: of a number's channels, and aborts of leads that are being called."""

import pytest

from tests.support.waiting import eventually
from tests.support.world import World, open_world
from trunkline.client import ApiError, Number

FROM = "+14155550100"
# Answered, and never hung up by the callee; rings, and is never answered.
TALKS, RINGS = "+150055516", "+150055517"


@pytest.fixture
async def number(world: World) -> Number:
    return await world.client.create_number(FROM, pool="p", carrier="twilio", max_channels=1)


async def call_many(world: World, count: int, prefix: str = TALKS) -> list[str]:
    rows = [
        {"request_id": f"{prefix}{n}", "merchant_id": "m", "phone": f"{prefix}{n:02}"} for n in range(count)
    ]
    assert (await world.client.create_leads(rows)).created == count
    return [row["request_id"] for row in rows]


async def live_calls(world: World, count: int) -> None:
    await eventually(lambda: world.carrier.ledger.live() == count, what=f"{count} calls are live")


async def test_a_changed_max_channels_takes_effect_while_calls_are_live(world: World, number: Number) -> None:
    await call_many(world, 8)
    await live_calls(world, 1)
    await world.client.update_number(number.id, max_channels=3)
    await eventually(lambda: world.carrier.ledger.live() == 3, timeout_s=20, what="they are used")
    assert world.carrier.ledger.over_capacity({FROM: 3}) == []

    await world.client.update_number(number.id, max_channels=1)
    live = [lead async for lead in world.client.list_leads(status="PROCESSING")]
    for lead in live[:2]:
        await world.client.abort_lead(lead.id, "enough", hang_up=True)
        await world.finished(lead.id)
    assert world.carrier.ledger.live() == 1, "two have ended, and nobody took their place"
    assert len(world.carrier.ledger.dials) == 3


async def test_a_number_with_a_live_call_is_drained_before_it_can_be_deleted(
    world: World, number: Number
) -> None:
    await call_many(world, 2)
    await live_calls(world, 1)
    with pytest.raises(ApiError, match="Calls hold 1"):
        await world.client.delete_number(number.id)
    draining = await world.client.delete_number(number.id, drain=True)
    assert draining is not None
    assert (draining.status, draining.channels_held) == ("draining", 1)
    [lead] = [lead async for lead in world.client.list_leads(status="PROCESSING")]
    await world.client.abort_lead(lead.id, "enough", hang_up=True)
    await world.finished(lead.id)
    assert await world.client.delete_number(number.id) is None
    assert len(world.carrier.ledger.dials) == 1


@pytest.mark.parametrize("prefix", [RINGS, TALKS])
async def test_abort_with_hang_up_ends_a_ringing_or_answered_call(
    database_url: str, redis_url: str, key_prefix: str, prefix: str
) -> None:
    """With the longest ring time: at the simulator's pace a usual one is over before anybody changes their mind."""
    async with open_world(database_url, redis_url, key_prefix, RING_TIMEOUT="10m") as world:
        await world.client.create_number(FROM, pool="p", carrier="twilio", max_channels=1)
        await call_many(world, 1, prefix)
        [lead] = [lead async for lead in world.client.list_leads()]
        states = {"answered"} if prefix == TALKS else {"accepted", "ringing"}

        async def is_on() -> bool:
            story = await world.client.get_lead(lead.id)
            return {attempt.state for attempt in story.attempts} & states != set()

        await eventually(is_on, what="the call is on")
        asked = await world.client.abort_lead(lead.id, "sold out", hang_up=True)
        assert (asked.status, asked.cancel_reason) == ("PROCESSING", "sold out")
        ended = await world.finished(lead.id)
        assert ended.outcome == "ABORTED"
        assert len(world.carrier.ledger.dials) == 1, "and nobody is called again"
        await world.channels_are_free()
