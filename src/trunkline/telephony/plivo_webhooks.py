"""Parses a verified Plivo webhook into a carrier-neutral event.

A call made by API is identified by its request's id, which the create returned; `CallUUID` is an alias. Plivo's
webhooks have no sequence number and no time: two are equal if call and status are.
"""

from collections.abc import Mapping

from trunkline.telephony.carrier import (
    CallbackTag,
    CallEvent,
    CallState,
    Direction,
    EndReason,
    EventKind,
    Unreadable,
    WebhookResult,
)
from trunkline.telephony.costs import cost_of
from trunkline.telephony.forms import whole
from trunkline.telephony.reply_rules import our_fault

END_REASONS: Mapping[str, EndReason] = {
    "completed": "completed",
    "busy": "busy",
    "no-answer": "no_answer",
    "timeout": "no_answer",
    "failed": "failed",
    "cancel": "canceled",
}
_STATES: Mapping[str, CallState] = {"queued": "queued", "ringing": "ringing", "in-progress": "answered"}
# What is slow, has played or was cleared streams.
_STREAM_KINDS: Mapping[str, EventKind] = {
    "StartStream": "stream_began",
    "DegradedStream": "stream_began",
    "PlayedStream": "stream_began",
    "ClearedAudio": "stream_began",
    "DroppedStream": "stream_failed",
    "StopStream": "stream_ended",
}
_KINDS: Mapping[CallState, EventKind] = {
    "queued": "initiated",
    "ringing": "ringing",
    "answered": "answered",
    "ended": "ended",
}

# An allow-list: no phone number and no caller name is in it.
_SAFE_FIELDS = frozenset(
    {
        "CallUUID", "RequestUUID", "ALegRequestUUID", "ALegUUID", "CallStatus", "Direction", "Event", "Duration",
        "BillDuration", "HangupCause", "HangupCauseCode", "HangupCauseName", "HangupSource", "StartTime", "AnswerTime",
        "EndTime", "SessionStart", "Machine", "RecordUrl", "RecordingID", "RecordingDuration", "RecordingDurationMs",
        "STIRVerification", "StreamID",
    }
)  # fmt: skip


def state_of(status: str) -> CallState | None:
    return "ended" if status in END_REASONS else _STATES.get(status)


def e164(number: str) -> str:
    """Plivo leaves the plus out of numbers."""
    return f"+{number}" if number.isascii() and number.isdecimal() else number


def read_event(fields: Mapping[str, str], tag: CallbackTag) -> WebhookResult:
    names = [fields.get(name, "") for name in ("RequestUUID", "ALegRequestUUID", "CallUUID")]
    call_id, *others = list(dict.fromkeys(name for name in names if name)) or [""]
    if not call_id:
        return Unreadable("no CallUUID")
    kind = _kind(fields, tag)
    if kind is None:
        return Unreadable("stream event unknown" if tag.kind == "stream" else "call status unknown")
    status = fields.get("CallStatus", "")
    return CallEvent(
        call_id=call_id,
        kind=kind,
        callback=tag.kind,
        dedupe_key=_dedupe_key(call_id, kind, fields, tag),
        attempt_id=tag.attempt_id,
        alias_ids=tuple(others),
        is_leg_id=not any(names[:2]),
        cost=cost_of(fields.get("TotalCost")) if kind == "ended" else None,
        carrier_status=status,
        reason=END_REASONS.get(status),
        fault=our_fault("plivo", fields.get("HangupCauseCode")),
        duration_s=whole(fields.get("Duration")),
        answered_by=_ANSWERED_BY.get(fields.get("Machine", "").lower()),
        direction=_direction(fields),
        to=e164(fields.get("To", "")),
        from_=e164(fields.get("From", "")),
        raw={name: value for name, value in fields.items() if name in _SAFE_FIELDS},
    )


_ANSWERED_BY: Mapping[str, str] = {"true": "machine", "false": "human"}


def _kind(fields: Mapping[str, str], tag: CallbackTag) -> EventKind | None:
    if tag.kind == "recording" or "RecordUrl" in fields:
        return "recording"
    if tag.kind == "machine":
        return "machine"
    if tag.kind == "stream":
        return _STREAM_KINDS.get(fields.get("Event", ""))
    state = state_of(fields.get("CallStatus", ""))
    return _KINDS[state] if state else None


def _dedupe_key(call_id: str, kind: EventKind, fields: Mapping[str, str], tag: CallbackTag) -> str:
    match kind:
        case "recording":
            mark = fields.get("RecordingID", "")
        case "machine":
            mark = fields.get("Machine", "")
        case "stream_began" | "stream_failed" | "stream_ended":
            mark = fields.get("StreamID", "")
        case _:
            mark = fields.get("CallStatus", "")
    return f"{call_id}:{tag.kind}:{kind}:{mark}"


def _direction(fields: Mapping[str, str]) -> Direction:
    return "inbound" if fields.get("Direction") == "inbound" else "outbound"
