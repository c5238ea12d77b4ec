"""Plivo's webhooks as facts. The payloads have the shape of recorded ones; the numbers are nobody's."""

from urllib.parse import urlencode
from uuid import UUID

import pytest

from trunkline.telephony.callbacks import CallbackKeys, callback_url
from trunkline.telephony.carrier import (
    CallbackKind,
    CallEvent,
    Forged,
    Unreadable,
    WebhookRequest,
    WebhookResult,
)
from trunkline.telephony.carrier_registry import CarrierAccount
from trunkline.telephony.forms import FORM
from trunkline.telephony.plivo import Plivo
from trunkline.telephony.plivo_webhooks import signature_v3

KEYS = CallbackKeys.from_secrets(["a secret of the tests"])
BASE = "https://calls.example.com"
TOKEN, NONCE = "token", "12345"
ATTEMPT = UUID("0190a5b8-8d3b-7c11-8000-1234567890ab")
CALL = "d0a87a1a-b0e9-4ab2-ac07-c22ee87cd04a"

HANGUP = {
    "ALegRequestUUID": CALL, "ALegUUID": CALL, "AnswerTime": "2025-11-15 07:58:47", "BillDuration": "60",
    "BillRate": "0.0055", "CallStatus": "completed", "CallUUID": CALL, "Direction": "outbound", "Duration": "42",
    "EndTime": "2025-11-15 07:59:29", "Event": "Hangup", "From": "15005559901", "HangupCause": "NORMAL_CLEARING",
    "HangupCauseCode": "4000", "HangupCauseName": "Normal Hangup", "HangupSource": "Callee", "RequestUUID": CALL,
    "SessionStart": "2025-11-15 07:58:40.050872", "StartTime": "2025-11-15 07:58:41", "To": "15005551001",
    "TotalCost": "0.00550",
}  # fmt: skip


@pytest.fixture
def plivo() -> Plivo:
    return Plivo(CarrierAccount({"auth_id": "MA1", "auth_token": TOKEN}, KEYS))


def webhook(
    fields: dict[str, str], kind: CallbackKind = "status", attempt: UUID | None = ATTEMPT, url: str = ""
) -> WebhookRequest:
    url = url or callback_url(BASE, "plivo", kind, attempt, KEYS)
    headers = {
        "content-type": FORM,
        "x-plivo-signature-v3": signature_v3(TOKEN, "POST", url, list(fields.items()), NONCE),
        "x-plivo-signature-v3-nonce": NONCE,
    }
    return WebhookRequest("POST", url, headers, urlencode(fields).encode())


def event_of(result: WebhookResult) -> CallEvent:
    assert isinstance(result, CallEvent), result
    return result


def test_a_hangup_becomes_an_end(plivo: Plivo) -> None:
    event = event_of(plivo.parse_webhook(webhook(HANGUP)))
    assert (event.attempt_id, event.call_id, event.alias_ids) == (ATTEMPT, CALL, ())
    assert (event.kind, event.reason, event.duration_s) == ("ended", "completed", 42)
    assert (event.to, event.from_, event.direction) == ("+15005551001", "+15005559901", "outbound")


def test_a_calls_id_is_its_request_uuid_and_call_uuid_is_an_alias(plivo: Plivo) -> None:
    event = event_of(plivo.parse_webhook(webhook(HANGUP | {"CallUUID": "another"})))
    assert (event.call_id, event.alias_ids) == (CALL, ("another",))


@pytest.mark.parametrize(
    ("status", "kind", "reason"),
    [
        ("ringing", "ringing", None),
        ("in-progress", "answered", None),
        ("completed", "ended", "completed"),
        ("busy", "ended", "busy"),
        ("no-answer", "ended", "no_answer"),
        ("timeout", "ended", "no_answer"),
        ("failed", "ended", "failed"),
        ("cancel", "ended", "canceled"),
    ],
)
def test_every_status_has_its_kind(plivo: Plivo, status: str, kind: str, reason: str | None) -> None:
    event = event_of(plivo.parse_webhook(webhook(HANGUP | {"CallStatus": status})))
    assert (event.kind, event.reason, event.carrier_status) == (kind, reason, status)
    assert (status in plivo.terminal_statuses) == (kind == "ended")


def test_the_stored_raw_payload_contains_no_personal_data(plivo: Plivo) -> None:
    event = event_of(plivo.parse_webhook(webhook(HANGUP | {"CallerName": "A. Person"})))
    kept = repr(event)
    for personal in ("15005551001", "15005559901", "A. Person"):
        assert personal not in kept
    assert event.raw["HangupCauseCode"] == "4000"


def test_the_same_webhook_twice_has_one_key_and_another_has_another(plivo: Plivo) -> None:
    first, again = (event_of(plivo.parse_webhook(webhook(HANGUP))) for _ in range(2))
    earlier = event_of(plivo.parse_webhook(webhook(HANGUP | {"CallStatus": "ringing"})))
    assert first.dedupe_key == again.dedupe_key
    assert first.dedupe_key != earlier.dedupe_key


def test_an_inbound_call_has_numbers_and_no_attempt(plivo: Plivo) -> None:
    ringing = {
        "CallUUID": CALL,
        "CallStatus": "ringing",
        "Direction": "inbound",
        "To": "15005559901",
        "From": "15005551001",
        "Event": "StartApp",
    }
    event = event_of(plivo.parse_webhook(webhook(ringing, "inbound", None)))
    assert (event.direction, event.attempt_id, event.call_id) == ("inbound", None, CALL)
    assert (event.to, event.from_) == ("+15005559901", "+15005551001")
    over = {"CallUUID": CALL, "CallStatus": "completed", "Direction": "inbound", "Duration": "9"}
    assert event_of(plivo.parse_webhook(webhook(over, "status", None))).kind == "ended"


RING = {
    "ALegRequestUUID": CALL, "ALegUUID": CALL, "CallStatus": "ringing", "CallUUID": CALL, "Direction": "outbound",
    "Event": "Ring", "From": "15005559901", "RequestUUID": CALL, "SessionStart": "2025-11-15 07:58:40.050872",
    "To": "15005551001", "ParentAuthID": "MA000000000000000001", "RouteType": "domestic_anchored",
}  # fmt: skip
STARTED = RING | {
    "CallStatus": "in-progress",
    "Event": "StartApp",
    "STIRAttestation": "A",
    "BillRate": "0.0055",
}
RECORDING = {
    "CallUUID": CALL, "Event": "RecordStop", "From": "15005559901", "RecordFile": "https://media.plivo.com/r1.mp3",
    "RecordUrl": "https://media.plivo.com/r1.mp3", "RecordingDuration": "41", "RecordingDurationMs": "41120",
    "RecordingEndMs": "1763193569000", "RecordingID": "r1", "RecordingStartMs": "1763193527880", "To": "15005551001",
}  # fmt: skip
MACHINE = {
    "ALegUUID": CALL, "CallUUID": CALL, "Direction": "outbound", "Event": "MachineDetection", "From": "15005559901",
    "Machine": "true", "RequestUUID": CALL, "To": "15005551001", "CallStatus": "in-progress",
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "callback", "kind"),
    [
        (RING, "status", "ringing"),
        (STARTED, "answer", "answered"),
        (RECORDING, "recording", "recording"),
        (MACHINE, "machine", "machine"),
    ],
)
def test_complete_payloads_are_read(
    plivo: Plivo, fields: dict[str, str], callback: CallbackKind, kind: str
) -> None:
    event = event_of(plivo.parse_webhook(webhook(fields, callback)))
    assert (event.kind, event.call_id, event.attempt_id) == (kind, CALL, ATTEMPT)
    assert not {"From", "To", "ParentAuthID"} & set(event.raw)


def test_machine_and_recording_webhooks_carry_answered_by_and_url(plivo: Plivo) -> None:
    assert event_of(plivo.parse_webhook(webhook(MACHINE, "machine"))).answered_by == "machine"
    kept = event_of(plivo.parse_webhook(webhook(RECORDING, "recording")))
    assert kept.raw["RecordUrl"] == "https://media.plivo.com/r1.mp3"


@pytest.mark.parametrize(
    "fields", [{"CallStatus": "ringing"}, {"CallUUID": "1"}, {"CallUUID": "1", "CallStatus": "?"}]
)
def test_a_genuine_webhook_that_cannot_be_parsed_is_unreadable(plivo: Plivo, fields: dict[str, str]) -> None:
    assert isinstance(plivo.parse_webhook(webhook(fields)), Unreadable)


@pytest.mark.parametrize(
    "url",
    [
        f"{BASE}/webhooks/plivo/status?attempt={ATTEMPT}&sig=wrong",
        callback_url(BASE, "twilio", "status", ATTEMPT, KEYS),
        callback_url(BASE, "plivo", "status", None, KEYS),
        callback_url(BASE, "plivo", "status", ATTEMPT, KEYS).replace("?", "?account=other&"),
    ],
)
def test_a_foreign_url_signed_by_plivo_is_forged(plivo: Plivo, url: str) -> None:
    assert isinstance(plivo.parse_webhook(webhook(HANGUP, url=url)), Forged)


STREAM = {
    "CallUUID": CALL, "Event": "StartStream", "From": "15005559901", "ServiceURL": "wss://pod/ws?token=t",
    "StreamID": "b77e037d-4119-44b5-902d-25826b654539", "To": "15005551001",
}  # fmt: skip


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("StartStream", "stream_began"),
        ("DegradedStream", "stream_began"),
        ("PlayedStream", "stream_began"),
        ("ClearedAudio", "stream_began"),
        ("DroppedStream", "stream_failed"),
        ("StopStream", "stream_ended"),
    ],
)
def test_what_becomes_of_a_stream_is_a_fact_of_its_call(plivo: Plivo, word: str, kind: str) -> None:
    event = event_of(plivo.parse_webhook(webhook(STREAM | {"Event": word}, "stream")))
    assert (event.kind, event.callback, event.attempt_id) == (kind, "stream", ATTEMPT)
    # It names the call by the id that no create returned.
    assert (event.call_id, event.is_leg_id) == (CALL, True)
    assert "token=t" not in repr(event), "the token opens the stream"


def test_a_streams_events_are_told_apart_and_their_repetitions_are_not(plivo: Plivo) -> None:
    def key(**other: str) -> str:
        return event_of(plivo.parse_webhook(webhook(STREAM | other, "stream"))).dedupe_key

    assert key() == key(Event="DegradedStream"), "both say that it began"
    assert len({key(), key(Event="StopStream"), key(StreamID="another")}) == 3


def test_a_new_word_about_streams_is_kept_aside(plivo: Plivo) -> None:
    said = plivo.parse_webhook(webhook(STREAM | {"Event": "PausedStream"}, "stream"))
    assert said == Unreadable("stream event unknown")
