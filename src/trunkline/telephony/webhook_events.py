"""What the webhooks of carriers share: the words for states and kinds, and the checks after a webhook is parsed."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from trunkline.telephony.carrier import (
    CallbackTag,
    CallEvent,
    CallState,
    EndReason,
    EventKind,
    Forged,
    Unreadable,
    WebhookRequest,
    WebhookResult,
)
from trunkline.telephony.forms import Fields, read_fields, read_query
from trunkline.value import replace

# Clocks differ by less. A time further ahead is in another time zone than assumed.
AHEAD_MAX_S = 60.0
AGE_MAX_S = 86_400.0

KINDS: Mapping[CallState, EventKind] = {
    "queued": "initiated",
    "ringing": "ringing",
    "answered": "answered",
    "ended": "ended",
}


@dataclass(frozen=True, slots=True)
class Statuses:
    """A carrier's words for the states of a call."""

    live: Mapping[str, CallState]
    ended: Mapping[str, EndReason]

    def state(self, status: str) -> CallState | None:
        return "ended" if status in self.ended else self.live.get(status)


@dataclass(frozen=True, slots=True)
class EventFields:
    """The fields by which Twilio and Plivo say what a webhook is about."""

    statuses: Statuses
    # Webhooks about recordings have this one, whatever their URL.
    recording: str
    stream: str
    stream_kinds: Mapping[str, EventKind]
    # What distinguishes events of one kind, by callback. `status` is for all others.
    marks: Mapping[str, tuple[str, ...]]

    def kind(self, fields: Mapping[str, str], tag: CallbackTag) -> EventKind | Unreadable:
        if tag.kind == "recording" or self.recording in fields:
            return "recording"
        if tag.kind == "machine":
            return "machine"
        if tag.kind == "stream":
            return self.stream_kinds.get(fields.get(self.stream, "")) or Unreadable("stream event unknown")
        state = self.statuses.state(fields.get("CallStatus", ""))
        return KINDS[state] if state else Unreadable("call status unknown")

    def dedupe_key(self, call_id: str, kind: EventKind, fields: Mapping[str, str], tag: CallbackTag) -> str:
        about = "recording" if kind == "recording" else tag.kind
        names = self.marks.get(about) or self.marks["status"]
        return f"{call_id}:{tag.kind}:{kind}:{':'.join([fields.get(name, '') for name in names])}"


def fields_of(request: WebhookRequest) -> Fields | None:
    """The fields of a query or of a body; None for a body that does not match its content type."""
    if request.method != "POST":
        return read_query(request.url)
    return read_fields(request.headers.get("content-type", ""), request.body)


def accept_event(event: WebhookResult, tag: CallbackTag, now: datetime) -> WebhookResult:
    """Refuse stale events, and outbound events without an attempt."""
    if not isinstance(event, CallEvent):
        return event
    if event.at is not None and (now - event.at).total_seconds() > AGE_MAX_S:
        return Forged("stale")
    if event.attempt_id is None and event.direction == "outbound" and tag.kind != "inbound":
        return Forged("callback without its attempt")
    if event.at is not None and (event.at - now).total_seconds() > AHEAD_MAX_S:
        return replace(event, at=None)  # then the time of its arrival counts
    return event
