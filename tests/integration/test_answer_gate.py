"""The answer gate: a call that is answered is connected only while it is the one that its lead is being called with."""

from collections.abc import AsyncIterator
from urllib.parse import urlencode
from uuid import UUID

import pytest
from twilio.request_validator import RequestValidator  # type: ignore[import-untyped]

from trunkline.model import new_id
from trunkline.telephony.forms import FORM
from trunkline.testing.dialing import Dialing, open_dialing
from trunkline.testing.webhooks import TWILIO_TOKEN, Door, open_door

ANSWERED = {"CallSid": "CA1", "CallStatus": "in-progress", "Direction": "outbound-api"}


@pytest.fixture
async def dialing(database_url: str) -> AsyncIterator[Dialing]:
    async with open_dialing(database_url) as dialing:
        yield dialing


@pytest.fixture
async def door(dialing: Dialing, redis_url: str, key_prefix: str) -> AsyncIterator[Door]:
    async with open_door(dialing.url, redis_url, key_prefix) as door:
        yield door


async def answered(door: Door, attempt: UUID) -> bytes:
    url = door.callback("twilio", "answer", attempt)
    proof = RequestValidator(TWILIO_TOKEN).compute_signature(url, ANSWERED)
    headers = {"Content-Type": FORM, "X-Twilio-Signature": proof}
    async with door.http.post(url, data=urlencode(ANSWERED), headers=headers) as answer:
        assert answer.status == 200
        return await answer.read()


async def test_the_call_of_its_lead_is_connected(dialing: Dialing, door: Door) -> None:
    attempt = await dialing.attempt("+12125550001", state="ringing")
    assert b"<Stream" in await answered(door, attempt)
    assert door.streams == [("CA1", attempt, "m")]


async def test_race_1_25_a_call_that_somebody_wants_ended_is_hung_up(dialing: Dialing, door: Door) -> None:
    attempt = await dialing.attempt("+12125550001", state="ringing")
    await dialing.run("UPDATE attempts SET hang_up_at = clock_timestamp()")
    assert b"<Hangup" in await answered(door, attempt)
    assert door.streams == []


@pytest.mark.parametrize("state", ["rejected", "ended"])
async def test_a_call_that_is_over_is_hung_up(dialing: Dialing, door: Door, state: str) -> None:
    attempt = await dialing.attempt("+12125550001", state=state)
    assert b"<Hangup" in await answered(door, attempt)


async def test_a_call_that_was_superseded_is_hung_up(dialing: Dialing, door: Door) -> None:
    """It was given up as absent, and the next one was made."""
    first = await dialing.attempt("+12125550001", state="absent", ago_s=600)
    await dialing.run(
        "INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier,"
        " account, to_phone, from_phone, dialer)"
        " SELECT $1, lead_id, 2, 'r', 'm', number_id, 50, carrier, account, to_phone, from_phone, 'another'"
        " FROM attempts",
        new_id(),
    )
    assert b"<Hangup" in await answered(door, first)
    assert door.streams == []
