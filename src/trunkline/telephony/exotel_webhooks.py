"""Parses a verified Exotel webhook into a carrier-neutral event.

Exotel dials `From` and shows `PhoneNumberSid` (the ExoPhone); its times are local times without a zone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from trunkline.moments import read_moment
from trunkline.telephony.callbacks import CallbackKeys, verified_attempt
from trunkline.telephony.carrier import CallbackTag, CallEvent, EventKind, Unreadable, WebhookResult
from trunkline.telephony.forms import Fields, Statuses, json_object, whole

# `in-progress` is the status from the request on: it proves that a call is live, not that it was answered.
STATUSES = Statuses(
    live={"queued": "queued", "ringing": "ringing", "in-progress": "ringing"},
    ended={
        "completed": "completed",
        "busy": "busy",
        "no-answer": "no_answer",
        "failed": "failed",
        "canceled": "canceled",
    },
)
_EVENTS: Mapping[str, EventKind] = {"ringing": "ringing", "answered": "answered", "terminal": "ended"}

# An allow-list: no phone number is in it.
_SAFE_FIELDS = frozenset(
    {
        "CallSid", "EventType", "Status", "Direction", "DateCreated", "DateUpdated", "StartTime", "EndTime",
        "ConversationDuration", "RecordingUrl", "CallType", "CurrentTime",
    }
)  # fmt: skip


INDIA = ZoneInfo("Asia/Kolkata")


@dataclass(frozen=True, slots=True)
class Locale:
    """How an account writes times and numbers."""

    zone: ZoneInfo = INDIA
    country_code: str = "91"

    def moment(self, text: object) -> datetime | None:
        return read_moment(text, self.zone)

    def local(self, moment: datetime) -> str:
        return f"{moment.astimezone(self.zone):%Y-%m-%d %H:%M:%S}"

    def e164(self, number: str) -> str:
        """Numbers come with a plus, with their country code alone, or in national format with a leading zero."""
        digits = number.lstrip("+")
        if not digits.isascii() or not digits.isdecimal():
            return number
        if number.startswith("0"):
            return f"+{self.country_code}{number.lstrip('0')}"
        return f"+{digits}"


def read_event(
    fields: Mapping[str, str], tag: CallbackTag, keys: CallbackKeys, locale: Locale
) -> WebhookResult:
    """`CustomField` is the signed attempt, for URLs that do not name one."""
    call_id = fields.get("CallSid", "")
    if not call_id:
        return Unreadable("no CallSid")
    kind = _kind(fields, tag)
    if kind is None:
        return Unreadable("call status unknown")
    stored = verified_attempt(fields.get("CustomField", ""), "exotel", keys)
    attempt_id = tag.attempt_id or (stored.attempt_id if stored else None)
    status = fields.get("Status", "")
    is_inbound = fields.get("Direction", "").startswith("in") or tag.kind == "inbound"
    person = locale.e164(fields.get("CallFrom") or fields.get("From", ""))
    ours = locale.e164(fields.get("CallTo") or fields.get("PhoneNumberSid") or fields.get("To", ""))
    return CallEvent(
        call_id=call_id,
        kind=kind,
        callback=tag.kind,
        dedupe_key=f"{call_id}:{tag.kind}:{kind}:{fields.get('EventType', '')}:{status}",
        attempt_id=attempt_id,
        agent=stored.agent if stored and stored.attempt_id == attempt_id else None,
        carrier_status=status,
        reason=STATUSES.ended.get(status) if kind == "ended" else None,
        duration_s=whole(fields.get("ConversationDuration")),
        answered_by=fields.get("AnsweredBy"),
        direction="inbound" if is_inbound else "outbound",
        # In both directions `From` is the person and the ExoPhone is the platform's number.
        to=ours if is_inbound else person,
        from_=person if is_inbound else ours,
        at=locale.moment(fields.get("DateUpdated")),
        raw={name: value for name, value in fields.items() if name in _SAFE_FIELDS},
    )


def with_legs(fields: Fields, body: bytes) -> dict[str, str]:
    """A JSON body also has its legs. The first is the person's, with the time on the call and what answered."""
    read = dict(fields)
    legs = json_object(body).get("Legs") if body.startswith(b"{") else None
    leg: Any = legs[0] if isinstance(legs, list) and legs else None
    if isinstance(leg, dict):
        duration = whole(leg.get("OnCallDuration"))
        if not whole(read.get("ConversationDuration")) and duration is not None:
            read["ConversationDuration"] = str(duration)
        if str(leg.get("AnsweredBy", "NA")) != "NA":
            read["AnsweredBy"] = str(leg["AnsweredBy"]).lower()
    return read


def _kind(fields: Mapping[str, str], tag: CallbackTag) -> EventKind | None:
    match tag.kind:
        case "answer":
            return "answered"
        case "inbound":
            return "ringing"
        case "recording":
            return "recording"
    named = _EVENTS.get(fields.get("EventType", ""))
    if named and named != "ended":
        return named
    return "ended" if fields.get("Status", "") in STATUSES.ended else None
