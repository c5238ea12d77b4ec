"""The carrier's document after a stream closed: another stream, a hold, a hang-up, or the busy message."""

from collections.abc import AsyncIterator
from urllib.parse import urlencode
from uuid import UUID, uuid4
from xml.etree import ElementTree

import pytest
from twilio.request_validator import RequestValidator  # type: ignore[import-untyped]

from tests.support.api.webhooks import KEYS, TWILIO_TOKEN, Door, open_door
from trunkline.router.allocator import Stream
from trunkline.routing import Unallocated
from trunkline.telephony.callbacks import callback_url, verify_callback
from trunkline.telephony.carrier import CallbackKind, CallbackTag
from trunkline.telephony.forms import FORM

TALKING = {"CallSid": "CA1", "CallStatus": "in-progress", "Direction": "outbound-api"}
OVER = TALKING | {"CallStatus": "completed"}
SIGNER = RequestValidator(TWILIO_TOKEN)


@pytest.fixture
async def door(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Door]:
    async with open_door(database_url, redis_url, key_prefix, hold_max_s=2) as door:
        yield door


async def ask(door: Door, url: str, fields: dict[str, str] = TALKING) -> tuple[int, bytes]:
    url = url.partition("#")[0]  # orders to the carrier, which it neither sends nor signs
    proof = SIGNER.compute_signature(url, fields)
    headers = {"Content-Type": FORM, "X-Twilio-Signature": proof}
    async with door.http.post(door.here(url), data=urlencode(fields), headers=headers) as answer:
        return answer.status, await answer.read()


def resume_url(door: Door, attempt: UUID, turn: int = 0) -> str:
    return callback_url(door.public_url, "twilio", "resume", attempt, KEYS, turn=turn)


async def test_the_resume_url_answers_with_the_stream_of_another_pod(door: Door) -> None:
    attempt = uuid4()
    door.stream = Stream("wss://pods.example.com/ws/2", {"token": "t", "resumed": "1"}, 1)

    status, body = await ask(door, resume_url(door, attempt))

    assert status == 200
    assert door.asked[-1].over_turn == 0
    document = ElementTree.fromstring(body)
    stream = document.find("Connect/Stream")
    assert stream is not None
    assert stream.get("url") == "wss://pods.example.com/ws/2"
    then_url = document.findtext("Redirect") or ""
    assert verify_callback(then_url, KEYS) == CallbackTag("twilio", "resume", attempt, turn=1)


@pytest.mark.parametrize("kind", ["answer", "resume"])
@pytest.mark.parametrize("wants_status", [True, False])
async def test_an_answer_says_where_to_report_on_its_stream_where_the_pod_may_not_tell(
    door: Door, kind: CallbackKind, wants_status: bool
) -> None:
    attempt = uuid4()
    door.stream = Stream("wss://pods.example.com/ws/1", {}, wants_status=wants_status)
    url = callback_url(door.public_url, "twilio", kind, attempt, KEYS)
    _, body = await ask(door, url)
    stream = ElementTree.fromstring(body).find("Connect/Stream")
    assert stream is not None
    status_url = stream.get("statusCallback")
    assert (status_url is not None) is wants_status
    if status_url is not None:
        assert verify_callback(status_url, KEYS) == CallbackTag("twilio", "stream", attempt)
        assert stream.get("statusCallbackMethod") == "POST"


async def test_every_answer_document_redirects_to_its_resume_url(door: Door) -> None:
    attempt = uuid4()
    _, body = await ask(door, door.callback("twilio", "answer", attempt))
    then_url = ElementTree.fromstring(body).findtext("Redirect") or ""
    assert verify_callback(then_url, KEYS) == CallbackTag("twilio", "resume", attempt, turn=0)


async def test_an_ended_call_gets_the_hang_up_document_at_its_resume_url(door: Door) -> None:
    status, body = await ask(door, resume_url(door, uuid4()), OVER)
    assert (status, b"<Hangup" in body, b"<Stream" in body) == (200, True, False)
    assert door.streams == []


async def test_a_released_call_gets_the_hang_up_document_without_a_message(door: Door) -> None:
    door.stream = Unallocated("ended")
    _, body = await ask(door, resume_url(door, uuid4()))
    assert b"<Hangup" in body
    assert b"<Say" not in body


async def test_a_call_held_at_its_resume_url_keeps_its_turn_and_ends_after_the_last_hold(door: Door) -> None:
    attempt = uuid4()
    door.stream = Unallocated("hold")
    url = resume_url(door, attempt, turn=1)
    for held in (1, 2):
        _, body = await ask(door, url)
        url = ElementTree.fromstring(body).findtext("Redirect") or ""
        assert verify_callback(url, KEYS) == CallbackTag("twilio", "resume", attempt, turn=1, held=held)
    _, body = await ask(door, url)
    assert b"<Redirect" not in body, "it has waited long enough"
    assert b"<Say" in body


async def test_a_call_without_another_agent_gets_the_busy_message(door: Door) -> None:
    door.stream = Unallocated("busy")
    _, body = await ask(door, resume_url(door, uuid4(), turn=2))
    assert b"<Say" in body
    assert b"<Stream" not in body


async def test_a_resume_url_with_a_changed_turn_is_refused(door: Door) -> None:
    url = resume_url(door, uuid4(), turn=1)
    status, _ = await ask(door, url.replace("turn=1", "turn=0"))
    assert status == 403
    assert door.streams == []
