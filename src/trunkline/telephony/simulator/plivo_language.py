"""Plivo's protocol, the carrier's side: sends signed webhook forms, reads Plivo XML."""

from collections.abc import Iterator, Mapping
from secrets import randbelow
from uuid import uuid4
from xml.etree.ElementTree import Element

from trunkline.telephony.carrier import EndReason
from trunkline.telephony.forms import FORM
from trunkline.telephony.plivo_signature import signature_v2, signature_v3
from trunkline.telephony.simulator import retries
from trunkline.telephony.simulator.bodies import form_of, read_xml
from trunkline.telephony.simulator.calls import SimulatedCall
from trunkline.telephony.simulator.durations import duration_s, moment
from trunkline.telephony.simulator.frames import PlivoFrames
from trunkline.telephony.simulator.webhook_client import Outgoing
from trunkline.telephony.simulator.wire import (
    Event,
    Forward,
    HangUpOrder,
    Letter,
    Pause,
    Redirect,
    Say,
    StreamEvent,
    StreamOrder,
    Verb,
)

STATUSES: Mapping[str, str] = {
    "queued": "queued",
    "initiated": "queued",
    "ringing": "ringing",
    "answered": "in-progress",
}
END_STATUSES: Mapping[EndReason, str] = {
    "completed": "completed",
    "busy": "busy",
    "no_answer": "no-answer",
    "failed": "failed",
    "canceled": "cancel",
}
_STREAM_EVENTS: Mapping[StreamEvent, str] = {
    "started": "StartStream",
    "stopped": "StopStream",
    "failed": "DroppedStream",
}
CAUSES: Mapping[EndReason, tuple[str, str, int]] = {
    "completed": ("NORMAL_CLEARING", "Normal Hangup", 4000),
    "busy": ("USER_BUSY", "Busy Line", 3010),
    "no_answer": ("NO_ANSWER", "No Answer", 3000),
    "failed": ("UNALLOCATED_NUMBER", "Invalid Destination Address", 2000),
    "canceled": ("ORIGINATOR_CANCEL", "Cancelled", 1000),
}


def status_of(call: SimulatedCall) -> str:
    return END_STATUSES[call.reason] if call.reason else STATUSES[call.state]


def bare(number: str) -> str:
    """Plivo leaves the plus out of numbers."""
    return number.removeprefix("+")


class PlivoLanguage:
    """The `Wire` of calls that were ordered from Plivo."""

    def new_call_id(self) -> str:
        return str(uuid4())

    def letters(self, call: SimulatedCall, event: Event) -> list[Letter]:
        letters = [self._event(call, event, url)] if (url := call.order.event_urls.get(event)) else []
        if event == "answered" and call.order.machine_url:
            machine = {
                "CallUUID": call.sid,
                "Machine": str(call.fate.machine).lower(),
                "Event": "MachineDetection",
            }
            letters.append(_signed(call, "POST", call.order.machine_url, machine))
        return letters

    def _event(self, call: SimulatedCall, event: Event, url: str) -> Letter:
        fields = _about(call) | {"Event": "Hangup" if event == "ended" else "Ring"}
        if event == "ended" and call.reason:
            cause, name, code = CAUSES[call.reason]
            fields |= {
                "Duration": str(duration_s(call)),
                "BillDuration": str(-(-duration_s(call) // 60) * 60),
                "TotalCost": f"{0.01 * -(-duration_s(call) // 60):.5f}",
                "HangupCause": cause,
                "HangupCauseName": name,
                "HangupCauseCode": str(code),
                "HangupSource": "Callee",
                "EndTime": f"{moment(call.updated_at):%Y-%m-%d %H:%M:%S}",
            }
        return _signed(call, "POST", url, fields)

    def stream_letters(self, call: SimulatedCall, stream: StreamOrder, event: StreamEvent) -> list[Letter]:
        """They name the call by its call id alone, and tell no status and no direction."""
        if not stream.status_url:
            return []
        fields = {
            "CallUUID": call.sid,
            "Event": _STREAM_EVENTS[event],
            "From": bare(call.order.from_),
            "To": bare(call.order.to),
            "ServiceURL": stream.url,
            "StreamID": stream.id,
        }
        return [_signed(call, stream.status_method, stream.status_url, fields)]

    def is_refusal(self, status: int) -> bool:
        return False

    def question(self, call: SimulatedCall, url: str, failed_url: str = "") -> Letter:
        return _signed(call, call.order.answer_method, url, _about(call) | {"Event": "StartApp"})

    def read_document(self, body: bytes) -> list[Verb]:
        return list(_verbs(read_xml(body)))

    def stream_headers(self, call: SimulatedCall, url: str) -> dict[str, str]:
        return {}

    def frames(self, call: SimulatedCall, stream: StreamOrder) -> PlivoFrames:
        return PlivoFrames(call, stream)


def _about(call: SimulatedCall) -> dict[str, str]:
    order = call.order
    fields = {
        "CallUUID": call.sid,
        "CallStatus": status_of(call),
        "Direction": order.direction,
        "From": bare(order.from_),
        "To": bare(order.to),
        "SessionStart": f"{moment(call.created_at):%Y-%m-%d %H:%M:%S.%f}",
        "BillRate": "0.0055",
    }
    if order.direction == "outbound":
        fields |= {"RequestUUID": call.sid, "ALegUUID": call.sid, "ALegRequestUUID": call.sid}
    return fields


def _signed(call: SimulatedCall, method: str, url: str, fields: dict[str, str]) -> Letter:
    """Sends both versions, as Plivo does. The fragment holds retry orders and is not signed."""
    target, _, fragment = url.partition("#")
    form = form_of(fields)
    if method == "GET":
        target += ("&" if "?" in target else "?") + form
    token, nonce = call.account.auth_token, str(randbelow(10**20)).zfill(20)
    signed = list(fields.items()) if method == "POST" else []
    headers = (
        ("User-Agent", "Plivo"),
        ("Content-Type", FORM),
        ("X-Plivo-Signature-V2", signature_v2(token, target, nonce)),
        ("X-Plivo-Signature-V2-Nonce", nonce),
        ("X-Plivo-Signature-V3", signature_v3(token, method, target, signed, nonce)),
        ("X-Plivo-Signature-V3-Nonce", nonce),
    )
    body = form.encode() if method == "POST" else b""
    request = Outgoing(method, f"{target}#{fragment}" if fragment else target, headers, body)
    return Letter(request, retries.PLIVO.ordered_by(url))


def _verbs(root: Element) -> Iterator[Verb]:
    for element in root:
        text = (element.text or "").strip()
        match element.tag:
            case "Speak":
                yield Say(text)
            case "Wait":
                yield Pause(float(element.get("length", "1")))
            case "Redirect":
                yield Redirect(text)
            case "Hangup":
                yield HangUpOrder(unanswered=element.get("reason") in ("busy", "rejected"))
            case "Dial":
                yield Forward("".join(element.itertext()).strip())
            case "Stream":
                yield StreamOrder(
                    text,
                    id=str(uuid4()),
                    status_url=element.get("statusCallbackUrl", ""),
                    status_method=element.get("statusCallbackMethod", "POST"),
                )
