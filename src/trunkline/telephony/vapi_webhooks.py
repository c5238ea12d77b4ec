"""Verifies a Vapi message, and parses it into a carrier-neutral event: its hundreds of end reasons by prefix, and the
analysis of its assistant as an agent's report.

It has the shared secret in a header, or an HMAC over time and body: by Vapi's defaults hex(HMAC-SHA256(secret,
"{timestamp}.{body}")) in `x-signature`, the time in `x-timestamp`. If there is a signature it must fit: the secret
beside it proves nothing then.

The assistant is the agent here, and its analysis is the report: the fields of an agent's report, if its structured data
or a structured output has them, and all of it as data. The transcript stays at Vapi; the report has its URL.
"""

import hmac
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from trunkline.model import CallReport
from trunkline.moments import read_moment
from trunkline.telephony.carrier import (
    CallbackTag,
    CallEvent,
    CallState,
    EndReason,
    EventKind,
    Unreadable,
    WebhookRequest,
    WebhookResult,
)
from trunkline.telephony.forms import KINDS, cost_of, json_object
from trunkline.telephony.reply_rules import our_fault

SIGNATURE = "x-signature"
TIMESTAMP = "x-timestamp"
SECRET = "x-vapi-secret"  # noqa: S105 - the name of a header

AGE_MAX_S = 300.0
DATA_BYTES_MAX = 64 * 1024
WORD_MAX, REFERENCE_MAX = 100, 2000

STATES: Mapping[str, CallState] = {
    "scheduled": "queued",
    "queued": "queued",
    "ringing": "ringing",
    "in-progress": "answered",
    "forwarding": "answered",
    "ended": "ended",
    "not-found": "ended",
    "deletion-failed": "ended",
}
REPORT = "end-of-call-report"
TERMINAL = frozenset(status for status, state in STATES.items() if state == "ended")

# The first prefix that matches. New reasons fall under a prefix without a change here; others count as failed.
_FAMILIES: tuple[tuple[str, EndReason], ...] = (
    ("customer-busy", "busy"),
    ("customer-did-not-answer", "no_answer"),
    ("customer-did-not-give-microphone-permission", "failed"),
    ("manually-canceled", "canceled"),
    ("scheduled-call-deleted", "canceled"),
    ("voicemail", "completed"),
    ("customer-ended-call", "completed"),
    ("assistant-ended-call", "completed"),
    ("assistant-said-", "completed"),
    ("assistant-forwarded-call", "completed"),
    ("assistant-join-timed-out", "failed"),
    ("silence-timed-out", "completed"),
    ("exceeded-max-duration", "completed"),
    ("vonage-completed", "completed"),
    ("vonage-disconnected", "completed"),
    ("call.in-progress.", "completed"),
    ("call.forwarding.", "completed"),
    ("call.ringing.", "failed"),
    ("call.start.", "failed"),
)


def signature(secret: str, timestamp: str, body: bytes) -> str:
    return hmac.digest(secret.encode(), timestamp.encode() + b"." + body, "sha256").hex()


def is_verified(
    request: WebhookRequest, secrets: Sequence[str], now: datetime, *, only_hmac: bool = False
) -> bool:
    given = request.headers.get(SIGNATURE, "").removeprefix("sha256=")
    if not given and not only_hmac:
        return _any_equal(secrets, request.headers.get(SECRET, ""))
    timestamp = request.headers.get(TIMESTAMP, "")
    expected = [signature(secret, timestamp, request.body) for secret in secrets]
    return _any_equal(expected, given.lower()) and _is_fresh(timestamp, now)


def _any_equal(expected: Sequence[str], given: str) -> bool:
    matches = [hmac.compare_digest(proof.encode(), given.encode("utf-8", "replace")) for proof in expected]
    return bool(given) and any(matches)


def _is_fresh(timestamp: str, now: datetime) -> bool:
    """Seconds or milliseconds since 1970: thirteen digits are milliseconds until the year 2286."""
    if not timestamp.isascii() or not timestamp.isdecimal() or len(timestamp) > 13:
        return False
    seconds = int(timestamp) / (1000 if len(timestamp) == 13 else 1)
    return abs(now.timestamp() - seconds) <= AGE_MAX_S


def end_reason(text: str) -> EndReason:
    return next((reason for prefix, reason in _FAMILIES if text.startswith(prefix)), "failed")


def read_event(body: bytes, tag: CallbackTag, base_url: str) -> WebhookResult:
    message = json_object(body).get("message")
    if not isinstance(message, dict):
        return Unreadable("no message")
    call = _object(message, "call")
    call_id = call.get("id")
    if not isinstance(call_id, str) or not call_id:
        return Unreadable("no call id")
    kind_status = _kind(message, call)
    if kind_status is None:
        return Unreadable("message of a type that is not used")
    kind, status = kind_status
    ended = str(message.get("endedReason") or call.get("endedReason") or "")
    is_inbound = call.get("type") == "inboundPhoneCall" or tag.kind == "inbound"
    person = str(_object(message, "customer").get("number") or _object(call, "customer").get("number") or "")
    ours = str(
        _object(message, "phoneNumber").get("number") or _object(call, "phoneNumber").get("number") or ""
    )
    return CallEvent(
        call_id=call_id,
        kind=kind,
        callback=tag.kind,
        dedupe_key=f"{call_id}:{tag.kind}:{message.get('type')}:{status}",
        attempt_id=tag.attempt_id,
        carrier_status=status,
        reason=end_reason(ended) if kind == "ended" else None,
        fault=our_fault("vapi", ended),
        duration_s=_duration_s(message, call) if kind == "ended" else None,
        answered_by="machine" if ended == "voicemail" else None,
        direction="inbound" if is_inbound else "outbound",
        to=ours if is_inbound else person,
        from_=person if is_inbound else ours,
        at=_instant(message.get("timestamp")),
        raw=_raw(message, call_id, status, ended),
        report=read_report(message, call_id, base_url) if message.get("type") == REPORT else None,
        # Before that report the cost is not complete.
        cost=cost_of(message.get("cost")) if message.get("type") == REPORT else None,
    )


def moment(text: object) -> datetime | None:
    return read_moment(text, UTC)


def seconds_between(began: object, ended: object) -> int | None:
    start, end = moment(began), moment(ended)
    return max(0, round((end - start).total_seconds())) if start and end else None


def attempt_of(call: Mapping[str, Any]) -> UUID | None:
    """The attempt stored with the call, unsigned: only to find a call whose account is verified."""
    try:
        return UUID(str(_object(_object(call, "assistantOverrides"), "metadata").get("attempt")))
    except ValueError:
        return None


def _kind(message: Mapping[str, Any], call: Mapping[str, Any]) -> tuple[EventKind, str] | None:
    match message.get("type"):
        case "status-update":
            status = str(message.get("status", ""))
            state = STATES.get(status)
            return (KINDS[state], status) if state else None
        case type_ if type_ == REPORT:
            return "ended", "ended"
        case "assistant-request":
            return "ringing", str(call.get("status") or "ringing")
        case _:
            return None


def _duration_s(message: Mapping[str, Any], call: Mapping[str, Any]) -> int | None:
    began = message.get("startedAt") or call.get("startedAt")
    return seconds_between(began, message.get("endedAt") or call.get("endedAt"))


def _raw(message: Mapping[str, Any], call_id: str, status: str, ended: str) -> dict[str, str]:
    """Without transcript, number and name: only the course of the call and its recording."""
    found = {
        "id": call_id,
        "type": str(message.get("type", "")),
        "status": status,
        "endedReason": ended,
        "recordingUrl": str(_object(message, "artifact").get("recordingUrl") or ""),
        "cost": str(message.get("cost") or ""),
    }
    return {name: value for name, value in found.items() if value}


def _instant(value: object) -> datetime | None:
    """Milliseconds since 1970."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e14:
        return None
    return datetime.fromtimestamp(value / 1000, UTC)


def _object(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = holder.get(name)
    return value if isinstance(value, dict) else {}


def read_report(message: Mapping[str, Any], call_id: str, base_url: str) -> CallReport | None:
    """None if there is nothing to report: the call was not answered, or there is no analysis, recording or
    transcript."""
    artifact, analysis = _object(message, "artifact"), _object(message, "analysis")
    fields = _fields(analysis, artifact)
    report = CallReport(
        disposition=_text(fields.get("disposition"), WORD_MAX),
        opt_out=_is_true(fields.get("opt_out", fields.get("optOut"))),
        callback_at=read_moment(fields.get("callback_at", fields.get("callbackAt"))),
        transcript_ref=f"{base_url}/call/{call_id}" if artifact.get("transcript") else None,
        recording_ref=_text(artifact.get("recordingUrl"), REFERENCE_MAX),
        data=_bounded(analysis, fields),
    )
    return report if report != CallReport() else None


def _fields(analysis: Mapping[str, Any], artifact: Mapping[str, Any]) -> dict[str, Any]:
    """Structured outputs have a name and a result each; a result that is an object has fields of its own."""
    fields = dict(_object(analysis, "structuredData"))
    for output in _object(artifact, "structuredOutputs").values():
        if isinstance(output, dict):
            result = output.get("result")
            fields |= result if isinstance(result, dict) else {str(output.get("name")): result}
    return fields


def _bounded(analysis: Mapping[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """All of it, or as much as fits. Values that Postgres cannot store are omitted."""
    words = {name: analysis.get(name) for name in ("summary", "successEvaluation")}
    found = {name: value for name, value in (words | fields).items() if value is not None}
    for data in (found, fields):
        encoded = msgspec.json.encode(data)
        if len(encoded) <= DATA_BYTES_MAX and b"\\u0000" not in encoded:
            return data
    return {}


def _is_true(value: object) -> bool:
    return value is True or (isinstance(value, str) and value.lower() == "true")


def _text(value: object, length_max: int) -> str | None:
    is_text = isinstance(value, str) and 0 < len(value) <= length_max and value.isprintable()
    return str(value) if is_text else None
