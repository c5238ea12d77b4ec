"""A machine that answers, detected by the carrier alone: the lead's outcome is voicemail."""

from collections.abc import AsyncIterator

import pytest

from tests.support.telephony.carriers import FROM, open_carrier_world
from tests.support.world import World


@pytest.fixture
async def world(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[World]:
    async with open_carrier_world(database_url, redis_url, key_prefix, MACHINE_DETECTION="true") as world:
        yield world


@pytest.mark.parametrize("carrier", ["twilio", "plivo"])
@pytest.mark.parametrize(("phone", "outcome"), [("+15005551400", "VOICEMAIL"), ("+15005551000", "ANSWERED")])
async def test_a_machine_that_answers_is_voicemail_and_a_person_is_answered(
    world: World, carrier: str, phone: str, outcome: str
) -> None:
    await world.client.create_number(FROM, pool="p", carrier=carrier, max_channels=3)
    lead = await world.client.create_lead(merchant_id="m", phone=phone, max_attempts=1)
    assert (await world.finished(lead.id)).outcome == outcome
