"""Twilio's webhooks as facts. The payloads have the shape of recorded ones; the numbers are nobody's."""

from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode
from uuid import UUID, uuid4

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
from trunkline.telephony.twilio import Twilio
from trunkline.telephony.twilio_webhooks import HEADER, signature
from trunkline.testing.clock import ManualClock

KEYS = CallbackKeys.from_secrets(["a secret of the tests"])
BASE = "https://calls.example.com"
TOKEN = "token"
NOW = datetime(2025, 11, 15, 8, 0, tzinfo=UTC)
ATTEMPT = UUID("0190a5b8-8d3b-7c11-8000-1234567890ab")

COMPLETED = {
    "Called": "+15005551001", "ToState": "CA", "CallerCountry": "US", "Direction": "outbound-api",
    "Timestamp": "Sat, 15 Nov 2025 07:59:30 +0000", "CallbackSource": "call-progress-events",
    "SipResponseCode": "200", "CallerState": "NY", "ToZip": "94105", "SequenceNumber": "3",
    "CallSid": "CA0123456789abcdef0123456789abcdef", "To": "+15005551001", "CallerZip": "10001",
    "ToCountry": "US", "CalledZip": "94105", "ApiVersion": "2010-04-01", "CalledCity": "SAN FRANCISCO",
    "CallStatus": "completed", "Duration": "1", "From": "+15005559901", "CallDuration": "42",
    "AccountSid": "AC00000000000000000000000000000001", "CalledCountry": "US", "CallerCity": "NEW YORK",
    "ToCity": "SAN FRANCISCO", "FromCountry": "US", "Caller": "+15005559901", "FromCity": "NEW YORK",
    "CalledState": "CA", "FromZip": "10001", "FromState": "NY",
}  # fmt: skip


@pytest.fixture
def twilio() -> Twilio:
    return Twilio(CarrierAccount({"account_sid": "AC1", "auth_token": TOKEN}, KEYS), clock=ManualClock(NOW))


def webhook(
    fields: dict[str, str], kind: CallbackKind = "status", attempt: UUID | None = ATTEMPT, url: str = ""
) -> WebhookRequest:
    url = url or callback_url(BASE, "twilio", kind, attempt, KEYS)
    headers = {"content-type": FORM, HEADER: signature(TOKEN, url, fields.items())}
    return WebhookRequest("POST", url, headers, urlencode(fields).encode())


def event_of(result: WebhookResult) -> CallEvent:
    assert isinstance(result, CallEvent), result
    return result


def test_a_completed_call_becomes_an_end(twilio: Twilio) -> None:
    event = event_of(twilio.parse_webhook(webhook(COMPLETED)))
    assert event.attempt_id == ATTEMPT
    assert event.call_id == "CA0123456789abcdef0123456789abcdef"
    assert (event.kind, event.reason, event.duration_s, event.sequence) == ("ended", "completed", 42, 3)
    assert event.at == NOW - timedelta(seconds=30)
    assert event.direction == "outbound"


@pytest.mark.parametrize(
    ("status", "kind", "reason"),
    [
        ("queued", "initiated", None),
        ("initiated", "initiated", None),
        ("ringing", "ringing", None),
        ("in-progress", "answered", None),
        ("completed", "ended", "completed"),
        ("busy", "ended", "busy"),
        ("no-answer", "ended", "no_answer"),
        ("failed", "ended", "failed"),
        ("canceled", "ended", "canceled"),
    ],
)
def test_every_status_has_its_kind(twilio: Twilio, status: str, kind: str, reason: str | None) -> None:
    event = event_of(twilio.parse_webhook(webhook(COMPLETED | {"CallStatus": status})))
    assert (event.kind, event.reason, event.carrier_status) == (kind, reason, status)
    assert (status in twilio.terminal_statuses) == (kind == "ended")


def test_the_stored_raw_payload_contains_no_personal_data(twilio: Twilio) -> None:
    event = event_of(twilio.parse_webhook(webhook(COMPLETED)))
    kept = repr(event)
    for personal in ("+15005551001", "+15005559901", "SAN FRANCISCO", "94105", "NEW YORK"):
        assert personal not in kept
    assert event.raw["CallStatus"] == "completed"


def test_the_same_webhook_twice_has_one_key_and_another_has_another(twilio: Twilio) -> None:
    first = event_of(twilio.parse_webhook(webhook(COMPLETED)))
    again = event_of(twilio.parse_webhook(webhook(COMPLETED)))
    earlier = event_of(
        twilio.parse_webhook(webhook(COMPLETED | {"CallStatus": "ringing", "SequenceNumber": "1"}))
    )
    assert first.dedupe_key == again.dedupe_key
    assert first.dedupe_key != earlier.dedupe_key


def test_the_request_for_a_document_is_an_answer_with_a_key_of_its_own(twilio: Twilio) -> None:
    asked = {"CallSid": "CA1", "CallStatus": "in-progress", "Direction": "outbound-api"}
    event = event_of(twilio.parse_webhook(webhook(asked, "answer")))
    status = event_of(twilio.parse_webhook(webhook(asked | {"SequenceNumber": "2"})))
    assert (event.kind, event.callback) == ("answered", "answer")
    assert event.dedupe_key != status.dedupe_key


def test_an_inbound_call_has_numbers_and_no_attempt(twilio: Twilio) -> None:
    ringing = {"CallSid": "CA1", "CallStatus": "ringing", "Direction": "inbound", "To": "+1", "From": "+2"}
    event = event_of(twilio.parse_webhook(webhook(ringing, "inbound", None)))
    assert (event.direction, event.attempt_id, event.to, event.from_) == ("inbound", None, "+1", "+2")


RECORDING = {
    "AccountSid": "AC00000000000000000000000000000001", "CallSid": "CA0123456789abcdef0123456789abcdef",
    "ErrorCode": "0", "RecordingChannels": "1", "RecordingDuration": "41", "RecordingSid": "RE1",
    "RecordingSource": "OutboundAPI", "RecordingStartTime": "Sat, 15 Nov 2025 07:58:47 +0000",
    "RecordingStatus": "completed", "RecordingTrack": "both",
    "RecordingUrl": "https://api.twilio.com/2010-04-01/Accounts/AC00000000000000000000000000000001/Recordings/RE1",
}  # fmt: skip
MACHINE = {
    "AccountSid": "AC00000000000000000000000000000001", "CallSid": "CA0123456789abcdef0123456789abcdef",
    "AnsweredBy": "machine_end_beep", "MachineDetectionDuration": "4200",
}  # fmt: skip


def test_a_recording_and_a_machine_are_events_of_their_own(twilio: Twilio) -> None:
    kept = event_of(twilio.parse_webhook(webhook(RECORDING, "recording")))
    assert (kept.kind, kept.raw["RecordingUrl"]) == ("recording", RECORDING["RecordingUrl"])
    heard = event_of(twilio.parse_webhook(webhook(MACHINE, "machine")))
    assert (heard.kind, heard.answered_by) == ("machine", "machine_end_beep")


def test_each_state_of_a_recording_is_an_event_of_its_own(twilio: Twilio) -> None:
    told = [RECORDING | {"RecordingStatus": status} for status in ("in-progress", "completed", "completed")]
    keys = [event_of(twilio.parse_webhook(webhook(fields, "recording"))).dedupe_key for fields in told]
    assert len(set(keys)) == 2


ARRIVAL = COMPLETED | {
    "CallStatus": "ringing",
    "Direction": "inbound",
    "StirVerstat": "TN-Validation-Passed-A",
}


def test_complete_inbound_and_answer_requests_are_read(twilio: Twilio) -> None:
    """As Twilio asks for a document: with places and names, without a number and a time of its own."""
    progress = (
        "CallbackSource",
        "SequenceNumber",
        "Timestamp",
        "CallDuration",
        "Duration",
        "SipResponseCode",
    )
    arrival = {name: value for name, value in ARRIVAL.items() if name not in progress}
    rings = event_of(twilio.parse_webhook(webhook(arrival, "inbound", None)))
    assert (rings.kind, rings.direction, rings.at) == ("ringing", "inbound", None)
    question = arrival | {"CallStatus": "in-progress", "Direction": "outbound-api"}
    answered = event_of(twilio.parse_webhook(webhook(question, "answer")))
    assert (answered.kind, answered.attempt_id) == ("answered", ATTEMPT)
    assert set(answered.raw) == {"ApiVersion", "CallSid", "CallStatus", "Direction"}


@pytest.mark.parametrize(
    "fields", [{"CallStatus": "ringing"}, {"CallSid": "CA1"}, {"CallSid": "CA1", "CallStatus": "odd"}]
)
def test_a_genuine_webhook_that_cannot_be_parsed_is_unreadable(
    twilio: Twilio, fields: dict[str, str]
) -> None:
    assert isinstance(twilio.parse_webhook(webhook(fields)), Unreadable)


@pytest.mark.parametrize("odd", [{"SequenceNumber": "x"}, {"Timestamp": "yesterday"}, {"CallDuration": "-1"}])
def test_a_malformed_detail_does_not_lose_the_event(twilio: Twilio, odd: dict[str, str]) -> None:
    assert event_of(twilio.parse_webhook(webhook(COMPLETED | odd))).kind == "ended"


def test_a_webhook_older_than_a_day_is_stale(twilio: Twilio) -> None:
    old = COMPLETED | {"Timestamp": "Fri, 14 Nov 2025 07:59:59 +0000"}
    assert twilio.parse_webhook(webhook(old)) == Forged("stale")


@pytest.mark.parametrize(
    "url",
    [
        f"{BASE}/webhooks/twilio/status?attempt={ATTEMPT}",
        f"{BASE}/webhooks/twilio/status?attempt={ATTEMPT}&sig=wrong",
        callback_url(BASE, "twilio", "answer", ATTEMPT, KEYS).replace("/answer", "/status"),
        callback_url(BASE, "twilio", "status", ATTEMPT, KEYS).replace(str(ATTEMPT), str(uuid4())),
        callback_url(BASE, "plivo", "status", ATTEMPT, KEYS),
        callback_url(BASE, "twilio", "status", None, KEYS),
        f"{BASE}/elsewhere",
    ],
)
def test_a_foreign_url_signed_by_twilio_is_forged(twilio: Twilio, url: str) -> None:
    assert isinstance(twilio.parse_webhook(webhook(COMPLETED, url=url)), Forged)


def test_a_json_webhook_is_read_after_its_hash_was_checked(twilio: Twilio) -> None:
    from hashlib import sha256

    body = b'{"CallSid": "CA1", "CallStatus": "completed", "SequenceNumber": 4}'
    url = callback_url(BASE, "twilio", "status", ATTEMPT, KEYS) + f"&bodySHA256={sha256(body).hexdigest()}"
    headers = {"content-type": "application/json", HEADER: signature(TOKEN, url)}
    event = event_of(twilio.parse_webhook(WebhookRequest("POST", url, headers, body)))
    assert (event.kind, event.sequence) == ("ended", 4)
    tampered = WebhookRequest("POST", url, headers, body.replace(b"CA1", b"CA2"))
    assert isinstance(twilio.parse_webhook(tampered), Forged)


STREAM = {
    "AccountSid": "AC00000000000000000000000000000001",
    "CallSid": "CA0123456789abcdef0123456789abcdef",
    "StreamSid": "MZ0123456789abcdef0123456789abcdef",
    "StreamName": "MZ0123456789abcdef0123456789abcdef",
    "StreamEvent": "stream-started",
    "Timestamp": "2025-11-15T07:59:30.250Z",
}


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("stream-started", "stream_began"),
        ("stream-error", "stream_failed"),
        ("stream-stopped", "stream_ended"),
    ],
)
def test_what_becomes_of_a_stream_is_a_fact_of_its_call(twilio: Twilio, word: str, kind: str) -> None:
    event = event_of(twilio.parse_webhook(webhook(STREAM | {"StreamEvent": word}, "stream")))
    assert (event.kind, event.callback, event.attempt_id) == (kind, "stream", ATTEMPT)
    assert (event.call_id, event.at) == (STREAM["CallSid"], NOW - timedelta(seconds=29.75))
    assert event.raw["StreamEvent"] == word


def test_a_streams_events_are_told_apart_and_their_repetitions_are_not(twilio: Twilio) -> None:
    def key(**other: str) -> str:
        return event_of(twilio.parse_webhook(webhook(STREAM | other, "stream"))).dedupe_key

    later = "2025-11-15T07:59:35Z"
    assert key() == key(Timestamp=later)
    assert len({key(), key(StreamEvent="stream-stopped"), key(StreamSid="MZ2")}) == 3


def test_a_new_word_about_streams_is_kept_aside(twilio: Twilio) -> None:
    said = twilio.parse_webhook(webhook(STREAM | {"StreamEvent": "stream-paused"}, "stream"))
    assert said == Unreadable("stream event unknown")
