"""Exotel's protocol, the carrier's side: sends unsigned webhooks, reads an applet's JSON."""

from base64 import b64encode
from collections.abc import Mapping
from secrets import token_hex
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit
from zoneinfo import ZoneInfo

import msgspec

from trunkline.telephony.carrier import EndReason
from trunkline.telephony.simulator import retries
from trunkline.telephony.simulator.calls import SimulatedCall
from trunkline.telephony.simulator.durations import duration_s, moment
from trunkline.telephony.simulator.frames import ExotelFrames
from trunkline.telephony.simulator.webhook_client import Outgoing
from trunkline.telephony.simulator.wire import Event, Letter, StreamEvent, StreamOrder, Verb
from trunkline.value import replace

ZONE = ZoneInfo("Asia/Kolkata")
END_STATUSES: Mapping[EndReason, str] = {
    "completed": "completed",
    "busy": "busy",
    "no_answer": "no-answer",
    "failed": "failed",
    "canceled": "canceled",
}


def status_of(call: SimulatedCall) -> str:
    """From the request on a call is in progress."""
    if call.reason:
        return END_STATUSES[call.reason]
    return "queued" if call.state == "queued" else "in-progress"


def local(instant: float) -> str:
    return f"{moment(instant).astimezone(ZONE):%Y-%m-%d %H:%M:%S}"


class ExotelLanguage:
    """The `Wire` of calls that were ordered from Exotel."""

    def new_call_id(self) -> str:
        return token_hex(16)

    def letters(self, call: SimulatedCall, event: Event) -> list[Letter]:
        url = call.order.event_urls.get(event)
        return [_sent("POST", url, self._about(call, event))] if url else []

    def _about(self, call: SimulatedCall, event: Event) -> dict[str, Any]:
        order, talked_s = call.order, duration_s(call)
        is_inbound = order.direction == "inbound"
        return {
            "CallSid": call.sid,
            "EventType": "terminal" if event == "ended" else event,
            "DateCreated": local(call.created_at),
            "DateUpdated": local(call.updated_at),
            "Status": status_of(call),
            "To": order.to if is_inbound else None,
            "From": order.from_ if is_inbound else order.to,
            "PhoneNumberSid": order.to if is_inbound else order.from_,
            "StartTime": local(call.created_at),
            "EndTime": local(call.updated_at) if event == "ended" else None,
            "Direction": "inbound" if is_inbound else "outbound-api",
            "ConversationDuration": 0,
            "CustomField": order.custom.get("CustomField", ""),
            "RecordingUrl": None,
            "Legs": [{"OnCallDuration": talked_s, "Status": status_of(call), "AnsweredBy": "NA"}],
        }

    def stream_letters(self, call: SimulatedCall, stream: StreamOrder, event: StreamEvent) -> list[Letter]:
        return []

    def is_refusal(self, status: int) -> bool:
        return status == 503

    def question(self, call: SimulatedCall, url: str, failed_url: str = "") -> Letter:
        """The Voicebot applet requests the stream's URL with a GET."""
        order = call.order
        is_inbound = order.direction == "inbound"
        query = {
            "CallSid": call.sid,
            "CallFrom": order.from_ if is_inbound else order.to,
            "CallTo": order.to if is_inbound else order.from_,
            "Direction": "incoming" if is_inbound else "outbound-api",
            "Created": local(call.created_at),
            "CustomField": str(order.custom.get("CustomField", "")),
        }
        letter = _sent("GET", f"{url}{'&' if '?' in url else '?'}{urlencode(query)}", None)
        return replace(letter, rule=retries.NEVER)

    def read_document(self, body: bytes) -> list[Verb]:
        try:
            url = msgspec.json.decode(body, type=dict[str, str])["url"]
        except (msgspec.DecodeError, msgspec.ValidationError, KeyError) as error:
            raise ValueError("no URL of a stream") from error
        return [StreamOrder(url)]

    def stream_headers(self, call: SimulatedCall, url: str) -> dict[str, str]:
        return {}

    def frames(self, call: SimulatedCall, stream: StreamOrder) -> ExotelFrames:
        return ExotelFrames(call, stream)


def _sent(method: str, url: str, body: dict[str, Any] | None) -> Letter:
    """User name and password in the URL become a header, as in HTTP clients."""
    parts = urlsplit(url)
    userinfo, _, host = parts.netloc.rpartition("@")
    headers = [("User-Agent", "Exotel"), ("Content-Type", "application/json")]
    if userinfo:
        headers.append(("Authorization", "Basic " + b64encode(userinfo.encode()).decode()))
    target = urlunsplit(parts._replace(netloc=host))
    content = msgspec.json.encode(body) if body is not None else b""
    return Letter(Outgoing(method, target, tuple(headers), content), retries.EXOTEL)
