"""Exotel's webhooks as facts. The payloads are those of its documentation; the numbers are nobody's."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID, uuid4

import pytest

from trunkline.http.connections import basic
from trunkline.telephony.callbacks import CallbackKeys, basic_password, callback_url, signed_attempt
from trunkline.telephony.carrier import (
    CallbackKind,
    CallEvent,
    Forged,
    Unreadable,
    WebhookRequest,
    WebhookResult,
)
from trunkline.telephony.carrier_registry import CarrierAccount
from trunkline.telephony.exotel import BASIC_USER, Exotel
from trunkline.telephony.exotel_webhooks import Locale
from trunkline.telephony.forms import FORM, JSON
from trunkline.testing.clock import ManualClock
from trunkline.value import replace

KEYS = CallbackKeys.from_secrets(["a secret of the tests"])
BASE = "https://calls.example.com"
ATTEMPT = UUID("0190a5b8-8d3b-7c11-8000-1234567890ab")
# 14:30:45 in Mumbai.
NOW = datetime(2024, 1, 15, 9, 1, tzinfo=UTC)

TERMINAL: dict[str, Any] = {
    "CallSid": "80bfbec2d78bbbf10fb851f4fa165211",
    "EventType": "terminal",
    "DateCreated": "2024-01-15 14:25:10",
    "DateUpdated": "2024-01-15 14:30:45",
    "To": None,
    "From": "09876543210",
    "PhoneNumberSid": "08047491899",
    "StartTime": "2024-01-15 14:25:12",
    "EndTime": "2024-01-15 14:30:45",
    "Status": "completed",
    "ConversationDuration": 320,
    "Direction": "outbound-api",
    "CustomField": "order_12345",
    "RecordingUrl": "https://s3-ap-southeast-1.amazonaws.com/recordings/abc123.mp3",
    "Legs": [{"OnCallDuration": 335, "Status": "completed", "AnsweredBy": "HUMAN"}],
}


def account(keys: CallbackKeys = KEYS, name: str = "default", **credentials: str) -> CarrierAccount:
    given = {"sid": "sid", "api_key": "key", "api_token": "token", **credentials}
    return CarrierAccount(given, keys, name=name)


@pytest.fixture
def exotel() -> Exotel:
    return Exotel(account(), clock=ManualClock(NOW))


def webhook(
    body: bytes | dict[str, Any],
    kind: CallbackKind = "status",
    attempt: UUID | None = ATTEMPT,
    content_type: str = JSON,
) -> WebhookRequest:
    password = basic_password("exotel", "default", KEYS.keys[0])
    headers = {"content-type": content_type, "authorization": basic(BASIC_USER, password)}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return WebhookRequest("POST", callback_url(BASE, "exotel", kind, attempt, KEYS), headers, data)


def event_of(result: WebhookResult) -> CallEvent:
    assert isinstance(result, CallEvent), result
    return result


def test_a_terminal_event_becomes_an_end(exotel: Exotel) -> None:
    event = event_of(exotel.parse_webhook(webhook(TERMINAL)))
    assert (event.attempt_id, event.call_id) == (ATTEMPT, TERMINAL["CallSid"])
    assert (event.kind, event.reason, event.duration_s) == ("ended", "completed", 320)
    assert (event.to, event.from_) == ("+919876543210", "+918047491899")
    assert event.answered_by == "human"
    # Exotel's clock shows Indian time: read as UTC it would be five and a half hours late.
    assert event.at == datetime(2024, 1, 15, 9, 0, 45, tzinfo=UTC)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (urlencode({"CallSid": "1", "Status": "busy", "DateUpdated": "2024-01-15 14:30:45"}).encode(), FORM),
        (
            b'--x\r\nContent-Disposition: form-data; name="CallSid"\r\n\r\n1\r\n'
            b'--x\r\nContent-Disposition: form-data; name="Status"\r\n\r\nbusy\r\n--x--\r\n',
            "multipart/form-data; boundary=x",
        ),
        (b'{"CallSid": "1", "Status": "busy", "RecordingUrl": null}', JSON),
    ],
)
def test_the_default_payload_is_read_in_every_type_it_comes_in(
    exotel: Exotel, body: bytes, content_type: str
) -> None:
    event = event_of(exotel.parse_webhook(webhook(body, content_type=content_type)))
    assert (event.call_id, event.kind, event.reason) == ("1", "ended", "busy")


def test_an_answered_event_is_no_end_whatever_its_status(exotel: Exotel) -> None:
    event = event_of(
        exotel.parse_webhook(webhook(TERMINAL | {"EventType": "answered", "Status": "in-progress"}))
    )
    assert (event.kind, event.reason) == ("answered", None)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("completed", "completed"),
        ("busy", "busy"),
        ("no-answer", "no_answer"),
        ("failed", "failed"),
        ("canceled", "canceled"),
    ],
)
def test_every_terminal_status_has_its_reason(exotel: Exotel, status: str, reason: str) -> None:
    event = event_of(exotel.parse_webhook(webhook(TERMINAL | {"Status": status})))
    assert (event.kind, event.reason) == ("ended", reason)
    assert status in exotel.terminal_statuses


def test_the_stored_raw_payload_contains_no_personal_data(exotel: Exotel) -> None:
    kept = repr(event_of(exotel.parse_webhook(webhook(TERMINAL))))
    for personal in ("9876543210", "8047491899", "order_12345"):
        assert personal not in kept


def test_a_webhook_without_the_password_is_answered_401(exotel: Exotel) -> None:
    good = webhook(TERMINAL)
    for wrong in ("", "Basic", basic(BASIC_USER, "guess"), basic("other", "x"), "Bearer x", "é"):
        headers = {**good.headers, "authorization": wrong}
        assert exotel.parse_webhook(replace(good, headers=headers)) == Forged(
            "password missing or wrong", status=401
        )


def test_the_password_of_one_account_does_not_open_another() -> None:
    other = Exotel(account(name="other"), clock=ManualClock(NOW))
    assert isinstance(other.parse_webhook(webhook(TERMINAL)), Forged)


def test_the_password_survives_a_rotation_of_the_secret() -> None:
    both = CallbackKeys.from_secrets(["new", "a secret of the tests"])
    rotated = Exotel(account(keys=both), clock=ManualClock(NOW))
    assert isinstance(rotated.parse_webhook(webhook(TERMINAL)), CallEvent)


def test_with_asks_password_off_a_webhook_is_verified_by_its_url_alone() -> None:
    lax = Exotel(account(webhook_password="off"), clock=ManualClock(NOW))
    good = webhook(TERMINAL)
    assert isinstance(lax.parse_webhook(replace(good, headers={"content-type": JSON})), CallEvent)
    forged = replace(good, headers={"content-type": JSON}, url=good.url + "x")
    assert isinstance(lax.parse_webhook(forged), Forged)


def applet(query: dict[str, str], kind: CallbackKind = "answer") -> WebhookRequest:
    """The Voicebot applet asks with a GET, at a URL that is the same for every call."""
    known = webhook(b"", kind, None)
    return replace(known, method="GET", url=f"{known.url}&{urlencode(query)}", body=b"")


def test_an_applet_request_carries_the_signed_attempt_in_custom_field(exotel: Exotel) -> None:
    kept = signed_attempt(ATTEMPT, "exotel", KEYS)
    assert len(kept) <= 128
    asked = {"CallSid": "1", "CallFrom": "09876543210", "CallTo": "08047491899", "CustomField": kept}
    event = event_of(exotel.parse_webhook(applet(asked)))
    assert (event.kind, event.callback, event.attempt_id) == ("answered", "answer", ATTEMPT)


@pytest.mark.parametrize("kept", ["", str(ATTEMPT), f"{ATTEMPT}.x", signed_attempt(ATTEMPT, "plivo", KEYS)])
def test_an_unsigned_attempt_is_not_accepted(exotel: Exotel, kept: str) -> None:
    request = applet({"CallSid": "1", "CustomField": kept, "Direction": "outbound-api"})
    assert isinstance(exotel.parse_webhook(request), Forged)


def test_the_signature_of_custom_field_does_not_verify_a_url(exotel: Exotel) -> None:
    proof = signed_attempt(ATTEMPT, "exotel", KEYS).partition(".")[2]
    url = f"{BASE}/webhooks/exotel/status?attempt={ATTEMPT}&sig={proof}"
    assert isinstance(exotel.parse_webhook(replace(webhook(TERMINAL), url=url)), Forged)


def test_an_inbound_call_has_numbers_and_no_attempt(exotel: Exotel) -> None:
    asked = {"CallSid": "1", "CallFrom": "09876543210", "CallTo": "08047491899", "Direction": "incoming"}
    event = event_of(exotel.parse_webhook(applet(asked, "inbound")))
    assert (event.direction, event.attempt_id, event.kind) == ("inbound", None, "ringing")
    assert (event.to, event.from_) == ("+918047491899", "+919876543210")


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"\xff", b'{"CallSid": "1"}', b'{"Status": "busy"}'])
def test_a_genuine_webhook_that_cannot_be_parsed_is_unreadable(exotel: Exotel, body: bytes) -> None:
    assert isinstance(exotel.parse_webhook(webhook(body)), Unreadable)


def test_a_webhook_older_than_a_day_is_stale() -> None:
    later = Exotel(account(), clock=ManualClock(NOW + timedelta(days=1)))
    assert later.parse_webhook(webhook(TERMINAL)) == Forged("stale")


def test_an_event_time_in_the_future_is_ignored() -> None:
    early = Exotel(account(), clock=ManualClock(NOW - timedelta(hours=2)))
    assert event_of(early.parse_webhook(webhook(TERMINAL))).at is None


@pytest.mark.parametrize(
    ("written", "e164"),
    [
        ("+919876543210", "+919876543210"),
        ("919876543210", "+919876543210"),
        ("09876543210", "+919876543210"),
        ("sip:agent", "sip:agent"),
        ("", ""),
    ],
)
def test_numbers_are_read_however_they_are_written(written: str, e164: str) -> None:
    assert Locale().e164(written) == e164


def test_a_url_with_another_attempt_is_forged(exotel: Exotel) -> None:
    good = webhook(TERMINAL)
    assert isinstance(
        exotel.parse_webhook(replace(good, url=good.url.replace(str(ATTEMPT), str(uuid4())))), Forged
    )
