"""Vapi's messages as facts, and what proves them. The payloads have the shape of its SDK's own types."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from uuid import UUID

import pytest
from vapi.core.unchecked_base_model import construct_type
from vapi.types.call_ended_reason import CallEndedReason
from vapi.types.call_status import CallStatus
from vapi.types.server_message_end_of_call_report import ServerMessageEndOfCallReport
from vapi.types.server_message_status_update import ServerMessageStatusUpdate

from trunkline.model import CallReport
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
from trunkline.telephony.vapi import Vapi
from trunkline.telephony.vapi_webhooks import (
    SECRET,
    SIGNATURE,
    STATES,
    TIMESTAMP,
    end_reason,
    read_report,
    signature,
)
from trunkline.testing.clock import ManualClock
from trunkline.value import replace

KEYS = CallbackKeys.from_secrets(["a secret of the tests"])
BASE = "https://calls.example.com"
TOKEN = "the shared secret"
NOW = datetime(2025, 11, 15, 8, 0, tzinfo=UTC)
ATTEMPT = UUID("0190a5b8-8d3b-7c11-8000-1234567890ab")
CALL = {
    "id": "7420f27a-30fd-4f49-a995-5549ae7cc00d",
    "orgId": "eb166faa-7145-46ef-8044-589b47ae3b56",
    "type": "outboundPhoneCall",
    "createdAt": "2025-11-15T07:58:40.339Z",
    "updatedAt": "2025-11-15T07:59:29.339Z",
    "startedAt": "2025-11-15T07:58:47.000Z",
    "endedAt": "2025-11-15T07:59:29.000Z",
    "status": "ended",
    "customer": {"number": "+15005551001", "name": "A. Person"},
    "phoneNumber": {"number": "+15005559901"},
}
MILLISECONDS = int(NOW.timestamp() * 1000) - 30_000


def status_update(status: str, **more: Any) -> dict[str, Any]:
    return {"type": "status-update", "status": status, "timestamp": MILLISECONDS, "call": CALL, **more}


REPORT = {
    "type": "end-of-call-report",
    "endedReason": "customer-ended-call",
    "timestamp": MILLISECONDS,
    "startedAt": "2025-11-15T07:58:47.000Z",
    "endedAt": "2025-11-15T07:59:29.000Z",
    "cost": 0.12,
    "artifact": {
        "recordingUrl": "https://storage.vapi.ai/1.wav",
        "transcript": "AI: Hello. User: My secret is 42.",
    },
    "analysis": {"summary": "Somebody told a secret."},
    "call": CALL,
}


def account(**credentials: str) -> CarrierAccount:
    return CarrierAccount({"api_key": "key", "webhook_secret": TOKEN, **credentials}, KEYS)


@pytest.fixture
def vapi() -> Vapi:
    return Vapi(account(), clock=ManualClock(NOW))


def webhook(
    message: object, kind: CallbackKind = "status", attempt: UUID | None = ATTEMPT, **headers: str
) -> WebhookRequest:
    named = {name.replace("_", "-"): value for name, value in headers.items()} or {SECRET: TOKEN}
    body = json.dumps({"message": message}).encode()
    return WebhookRequest("POST", callback_url(BASE, "vapi", kind, attempt, KEYS), named, body)


def signed(request: WebhookRequest, timestamp: str, secret: str = TOKEN) -> WebhookRequest:
    proof = signature(secret, timestamp, request.body)
    return replace(request, headers={SIGNATURE: proof, TIMESTAMP: timestamp})


def event_of(result: WebhookResult) -> CallEvent:
    assert isinstance(result, CallEvent), result
    return result


def test_our_samples_are_what_the_official_sdk_calls_messages() -> None:
    update: Any = construct_type(
        type_=ServerMessageStatusUpdate, object_=status_update("ended", endedReason="customer-busy")
    )
    assert (update.status, update.ended_reason, update.call.id) == ("ended", "customer-busy", CALL["id"])
    assert (update.call.org_id, update.call.customer.number) == (CALL["orgId"], "+15005551001")
    report: Any = construct_type(type_=ServerMessageEndOfCallReport, object_=REPORT)
    assert (report.ended_reason, report.artifact.recording_url) == (
        "customer-ended-call",
        "https://storage.vapi.ai/1.wav",
    )
    assert (report.ended_at - report.started_at).total_seconds() == 42


def test_a_report_becomes_an_end(vapi: Vapi) -> None:
    event = event_of(vapi.parse_webhook(webhook(REPORT)))
    assert (event.attempt_id, event.call_id) == (ATTEMPT, CALL["id"])
    assert (event.kind, event.reason, event.duration_s) == ("ended", "completed", 42)
    assert event.at == NOW - timedelta(seconds=30)
    assert event.raw["recordingUrl"] == "https://storage.vapi.ai/1.wav"


def reported(**more: Any) -> CallReport | None:
    message = {"artifact": {}, "analysis": {}} | more
    return read_report(message, "c-1", "https://api.vapi.ai")


def test_an_assistants_structured_data_becomes_an_agent_report(vapi: Vapi) -> None:
    told = {
        "disposition": "interested",
        "opt_out": True,
        "callback_at": "2030-05-01T09:30:00+02:00",
        "budget": 7,
    }
    report = REPORT | {"analysis": {"summary": "She wants one.", "structuredData": told}}
    construct_type(type_=ServerMessageEndOfCallReport, object_=report)
    assert event_of(vapi.parse_webhook(webhook(report))).report == CallReport(
        "interested",
        True,
        datetime(2030, 5, 1, 7, 30, tzinfo=UTC),
        f"https://api.vapi.ai/call/{CALL['id']}",
        "https://storage.vapi.ai/1.wav",
        {"summary": "She wants one.", **told},
    )


def test_structured_outputs_become_an_agent_report() -> None:
    outputs = {
        "id-1": {"name": "disposition", "result": "sold"},
        "id-2": {"name": "Wishes", "result": {"optOut": "true", "callbackAt": "2030-05-01T09:30:00Z"}},
    }
    report = reported(artifact={"structuredOutputs": outputs})
    assert report is not None
    assert (report.disposition, report.opt_out) == ("sold", True)
    assert report.callback_at == datetime(2030, 5, 1, 9, 30, tzinfo=UTC)


def test_a_message_without_an_analysis_has_no_agent_report(vapi: Vapi) -> None:
    assert reported() is None
    assert event_of(vapi.parse_webhook(webhook(status_update("ended")))).report is None


@pytest.mark.parametrize(
    "told",
    [
        {"disposition": 7, "opt_out": 1, "callback_at": 7},
        {"disposition": "", "opt_out": "no", "callback_at": "tomorrow"},
        {"disposition": "x" * 101, "opt_out": None, "callback_at": "2030-05-01T09:30:00"},
        {"disposition": "a\nb", "opt_out": [], "callback_at": ""},
    ],
)
def test_malformed_disposition_opt_out_and_callback_are_ignored(told: dict[str, Any]) -> None:
    report = reported(analysis={"structuredData": told})
    assert report is not None
    assert (report.disposition, report.opt_out, report.callback_at) == (None, False, None)


@pytest.mark.parametrize("summary", ["x" * 70_000, "a\x00b"])
def test_report_data_that_cannot_be_stored_is_dropped_and_the_report_stays(summary: str) -> None:
    report = reported(analysis={"summary": summary, "structuredData": {"disposition": "sold"}})
    assert report == CallReport("sold", data={"disposition": "sold"})
    report = reported(analysis={"structuredData": {"disposition": "sold", "more": summary}})
    assert report == CallReport("sold")


@pytest.mark.parametrize(
    "broken", [{"analysis": []}, {"artifact": "x"}, {"artifact": {"structuredOutputs": [1]}}]
)
def test_a_malformed_end_of_call_report_is_still_an_end(vapi: Vapi, broken: dict[str, Any]) -> None:
    assert event_of(vapi.parse_webhook(webhook(REPORT | broken))).kind == "ended"


@pytest.mark.parametrize("status", get_args(get_args(CallStatus)[0]))
def test_every_status_that_the_sdk_knows_has_its_kind(vapi: Vapi, status: str) -> None:
    event = event_of(vapi.parse_webhook(webhook(status_update(status))))
    kinds = {"queued": "initiated", "ringing": "ringing", "answered": "answered", "ended": "ended"}
    assert event.kind == kinds[STATES[status]]
    assert (status in vapi.terminal_statuses) == (event.kind == "ended")


FAMILIES = {
    "customer-busy": "busy",
    "customer-did-not-answer": "no_answer",
    "manually-canceled": "canceled",
    "voicemail": "completed",
    "customer-ended-call": "completed",
    "assistant-ended-call": "completed",
    "assistant-forwarded-call": "completed",
    "silence-timed-out": "completed",
    "exceeded-max-duration": "completed",
    "call.in-progress.error-vapifault-openai-llm-failed": "completed",
    "call.start.error-subscription-concurrency-limit-reached": "failed",
    "call.start.error-get-phone-number": "failed",
    "twilio-failed-to-connect-call": "failed",
    "vonage-rejected": "failed",
    "a-word-of-next-year": "failed",
}


@pytest.mark.parametrize(("text", "reason"), FAMILIES.items())
def test_a_reason_belongs_to_its_family(text: str, reason: str) -> None:
    assert end_reason(text) == reason


def test_no_reason_that_the_sdk_knows_is_taken_for_a_busy_or_unanswered_call_by_chance() -> None:
    reasons = get_args(get_args(CallEndedReason)[0])
    assert len(reasons) > 500
    by_reason: dict[str, list[str]] = {}
    for text in reasons:
        by_reason.setdefault(end_reason(text), []).append(text)
    assert by_reason["busy"] == ["customer-busy"]
    assert by_reason["no_answer"] == ["customer-did-not-answer"]
    assert all(
        text.startswith(("call.in-progress", "call.forwarding"))
        for text in by_reason["completed"]
        if "." in text
    )


def test_the_stored_raw_payload_contains_no_personal_data_and_no_transcript(vapi: Vapi) -> None:
    kept = repr(event_of(vapi.parse_webhook(webhook(REPORT))))
    for personal in ("+15005551001", "+15005559901", "A. Person", "secret is 42", "told a secret"):
        assert personal not in kept


def test_voicemail_is_an_answer_by_a_machine(vapi: Vapi) -> None:
    event = event_of(vapi.parse_webhook(webhook(status_update("ended", endedReason="voicemail"))))
    assert (event.reason, event.answered_by) == ("completed", "machine")


def test_a_report_and_a_status_of_one_end_have_different_dedupe_keys(vapi: Vapi) -> None:
    ended, again, report = (
        event_of(vapi.parse_webhook(webhook(message)))
        for message in (status_update("ended"), status_update("ended"), REPORT)
    )
    assert ended.dedupe_key == again.dedupe_key
    assert ended.dedupe_key != report.dedupe_key


def test_an_assistant_request_is_an_inbound_call(vapi: Vapi) -> None:
    call = {"id": "1", "type": "inboundPhoneCall", "customer": {"number": "+15005551001"}}
    message = {"type": "assistant-request", "call": call, "phoneNumber": {"number": "+15005559901"}}
    event = event_of(vapi.parse_webhook(webhook(message, "inbound", None)))
    assert (event.direction, event.kind, event.attempt_id) == ("inbound", "ringing", None)
    assert (event.to, event.from_) == ("+15005559901", "+15005551001")


@pytest.mark.parametrize(
    "message",
    [
        None,
        [],
        {"type": "status-update"},
        {"type": "status-update", "call": {"id": 7}},
        status_update("dozing"),
        {"type": "speech-update", "call": CALL},
    ],
)
def test_a_genuine_message_that_cannot_be_parsed_is_unreadable(vapi: Vapi, message: object) -> None:
    assert isinstance(vapi.parse_webhook(webhook(message)), Unreadable)


# --- what proves a message


def test_a_message_with_the_shared_secret_verifies(vapi: Vapi) -> None:
    assert isinstance(vapi.parse_webhook(webhook(REPORT, x_vapi_secret=TOKEN)), CallEvent)
    for wrong in ("", "guess", TOKEN[:-1], "é"):
        assert isinstance(vapi.parse_webhook(webhook(REPORT, x_vapi_secret=wrong)), Forged)


@pytest.mark.parametrize("timestamp", [str(int(NOW.timestamp())), str(int(NOW.timestamp() * 1000))])
def test_a_message_with_a_signature_over_time_and_body_verifies(vapi: Vapi, timestamp: str) -> None:
    good = signed(webhook(REPORT), timestamp)
    assert isinstance(vapi.parse_webhook(good), CallEvent)
    assert isinstance(vapi.parse_webhook(replace(good, body=good.body + b" ")), Forged)
    assert isinstance(vapi.parse_webhook(signed(webhook(REPORT), timestamp, "guess")), Forged)


@pytest.mark.parametrize("seconds", [-301, 301, -86_400 * 400])
def test_a_signature_of_another_time_is_stale(vapi: Vapi, seconds: int) -> None:
    moment = str(int(NOW.timestamp()) + seconds)
    assert isinstance(vapi.parse_webhook(signed(webhook(REPORT), moment)), Forged)


@pytest.mark.parametrize("timestamp", ["", "now", "-1", "9" * 40, "１７６３"])
def test_a_signature_over_a_time_that_is_none_is_refused(vapi: Vapi, timestamp: str) -> None:
    assert isinstance(vapi.parse_webhook(signed(webhook(REPORT), timestamp)), Forged)


def test_the_secret_does_not_stand_in_for_a_signature_that_is_wrong(vapi: Vapi) -> None:
    both = webhook(REPORT, x_vapi_secret=TOKEN, x_signature="00", x_timestamp=str(int(NOW.timestamp())))
    assert isinstance(vapi.parse_webhook(both), Forged)


def test_with_a_credential_only_a_signature_verifies() -> None:
    strict = Vapi(account(credential_id="cred_1"), clock=ManualClock(NOW))
    assert isinstance(strict.parse_webhook(webhook(REPORT)), Forged)
    assert isinstance(strict.parse_webhook(signed(webhook(REPORT), str(int(NOW.timestamp())))), CallEvent)


def test_while_secrets_are_rotated_both_verify_and_no_third() -> None:
    changing = Vapi(account(webhook_secret="new", previous_webhook_secret=TOKEN), clock=ManualClock(NOW))
    assert isinstance(changing.parse_webhook(webhook(REPORT)), CallEvent)
    assert isinstance(changing.parse_webhook(webhook(REPORT, x_vapi_secret="new")), CallEvent)
    assert isinstance(changing.parse_webhook(webhook(REPORT, x_vapi_secret="third")), Forged)


def test_the_right_secret_at_a_foreign_url_is_forged(vapi: Vapi) -> None:
    good = webhook(REPORT)
    for url in (good.url + "x", callback_url(BASE, "twilio", "status", ATTEMPT, KEYS), f"{BASE}/elsewhere"):
        assert isinstance(vapi.parse_webhook(replace(good, url=url)), Forged)
