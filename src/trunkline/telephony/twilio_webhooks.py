"""Parses a verified Twilio webhook into a carrier-neutral event."""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache

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
from trunkline.telephony.forms import whole
from trunkline.telephony.reply_rules import our_fault

END_REASONS: Mapping[str, EndReason] = {
    "completed": "completed",
    "busy": "busy",
    "no-answer": "no_answer",
    "failed": "failed",
    "canceled": "canceled",
}
_STATES: Mapping[str, CallState] = {
    "queued": "queued",
    "initiated": "queued",
    "ringing": "ringing",
    "in-progress": "answered",
}
_STREAM_KINDS: Mapping[str, EventKind] = {
    "stream-started": "stream_began",
    "stream-error": "stream_failed",
    "stream-stopped": "stream_ended",
}
_KINDS: Mapping[CallState, EventKind] = {
    "queued": "initiated",
    "ringing": "ringing",
    "answered": "answered",
    "ended": "ended",
}

# An allow-list: no phone number, no caller name, no place is in it.
_SAFE_FIELDS = frozenset(
    {
        "CallSid", "CallStatus", "CallbackSource", "SequenceNumber", "Timestamp", "Direction", "ApiVersion",
        "CallDuration", "Duration", "SipResponseCode", "ErrorCode", "QueueTime", "AnsweredBy",
        "MachineDetectionDuration", "RecordingSid", "RecordingStatus", "RecordingDuration", "RecordingUrl",
        "StreamSid", "StreamEvent", "StreamError",
    }
)  # fmt: skip


def state_of(status: str) -> CallState | None:
    return "ended" if status in END_REASONS else _STATES.get(status)


def read_event(fields: Mapping[str, str], tag: CallbackTag) -> WebhookResult:
    call_id = fields.get("CallSid", "")
    if not call_id:
        return Unreadable("no CallSid")
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
        sequence=whole(fields.get("SequenceNumber")),
        carrier_status=status,
        reason=END_REASONS.get(status),
        fault=our_fault("twilio", fields.get("ErrorCode")),
        duration_s=whole(fields.get("CallDuration")),
        answered_by=fields.get("AnsweredBy") or None,
        direction=_direction(fields),
        to=fields.get("To", ""),
        from_=fields.get("From", ""),
        at=moment(fields.get("Timestamp")),
        raw={name: value for name, value in fields.items() if name in _SAFE_FIELDS},
    )


def moment(text: object) -> datetime | None:
    return _moment(text) if isinstance(text, str) and text else None


@lru_cache(maxsize=64)
def _moment(text: str) -> datetime | None:
    """Twilio's dates are RFC 2822, in whole seconds, UTC. Events of one second have the same date. Those of streams are
    ISO 8601."""
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            date = read(text)
            break
        except ValueError:
            continue
    else:
        return None
    return date.replace(tzinfo=UTC) if date.tzinfo is None else date


def _kind(fields: Mapping[str, str], tag: CallbackTag) -> EventKind | None:
    if tag.kind == "recording" or "RecordingStatus" in fields:
        return "recording"
    if tag.kind == "machine":
        return "machine"
    if tag.kind == "stream":
        return _STREAM_KINDS.get(fields.get("StreamEvent", ""))
    state = state_of(fields.get("CallStatus", ""))
    return _KINDS[state] if state else None


def _dedupe_key(call_id: str, kind: EventKind, fields: Mapping[str, str], tag: CallbackTag) -> str:
    """The signature covers no time stamp, so two webhooks are equal if call, event and sequence number are."""
    match kind:
        case "recording":
            mark = f"{fields.get('RecordingSid', '')}:{fields.get('RecordingStatus', '')}"
        case "machine":
            mark = fields.get("AnsweredBy", "")
        case "stream_began" | "stream_failed" | "stream_ended":
            mark = fields.get("StreamSid", "")
        case _:
            mark = f"{fields.get('CallStatus', '')}:{fields.get('SequenceNumber', '')}"
    return f"{call_id}:{tag.kind}:{kind}:{mark}"


def _direction(fields: Mapping[str, str]) -> Direction:
    return "inbound" if fields.get("Direction") == "inbound" else "outbound"
