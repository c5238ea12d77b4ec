"""Parses a verified Vapi message into a carrier-neutral event, and maps its hundreds of end reasons by prefix."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from trunkline.moments import read_moment
from trunkline.telephony.carrier import (
    CallbackTag,
    CallEvent,
    CallState,
    EndReason,
    EventKind,
    Unreadable,
    WebhookResult,
)
from trunkline.telephony.costs import cost_of
from trunkline.telephony.forms import json_object
from trunkline.telephony.reply_rules import our_fault
from trunkline.telephony.vapi_reports import read_report

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
_KINDS: Mapping[CallState, EventKind] = {
    "queued": "initiated",
    "ringing": "ringing",
    "answered": "answered",
    "ended": "ended",
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
            return (_KINDS[state], status) if state else None
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
