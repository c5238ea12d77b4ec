"""Twilio's protocol, the carrier's side: sends signed webhook forms, reads TwiML."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from functools import lru_cache
from secrets import token_hex
from xml.etree.ElementTree import Element

from trunkline.telephony.carrier import EndReason
from trunkline.telephony.simulator import retries
from trunkline.telephony.simulator.bodies import form_of, read_xml
from trunkline.telephony.simulator.calls import SimulatedCall
from trunkline.telephony.simulator.durations import duration_s
from trunkline.telephony.simulator.frames import TwilioFrames
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
from trunkline.telephony.twilio_signature import FORM, signature

STATUSES: Mapping[str, str] = {
    "queued": "queued",
    "initiated": "initiated",
    "ringing": "ringing",
    "answered": "in-progress",
}
END_STATUSES: Mapping[EndReason, str] = {
    "completed": "completed",
    "busy": "busy",
    "no_answer": "no-answer",
    "failed": "failed",
    "canceled": "canceled",
}
_STREAM_EVENTS: Mapping[StreamEvent, str] = {
    "started": "stream-started",
    "stopped": "stream-stopped",
    "failed": "stream-error",
}
_SIP_CODES: Mapping[EndReason, str] = {
    "completed": "200",
    "busy": "486",
    "no_answer": "487",
    "failed": "404",
    "canceled": "487",
}


def status_of(call: SimulatedCall) -> str:
    return END_STATUSES[call.reason] if call.reason else STATUSES[call.state]


def rfc2822(instant: float) -> str:
    return _second(int(instant))


@lru_cache(maxsize=1024)  # under load, many things happen in one second
def _second(instant: int) -> str:
    return formatdate(instant).replace("-0000", "+0000")


class TwilioLanguage:
    """The `Wire` of calls that were ordered from Twilio."""

    def __init__(self) -> None:
        # The base of recordings' URLs: set when the simulator listens.
        self.base_url = "https://api.twilio.com"

    def new_call_id(self) -> str:
        return f"CA{token_hex(16)}"

    def letters(self, call: SimulatedCall, event: Event) -> list[Letter]:
        letters = [self._status(call, event, url)] if (url := call.order.event_urls.get(event)) else []
        if event == "answered" and call.order.machine_url:
            letters.append(_post(call, call.order.machine_url, _machine(call)))
        if event == "ended" and call.order.recording_url and call.reason == "completed":
            letters.append(_post(call, call.order.recording_url, self._recording(call)))
        return letters

    def _status(self, call: SimulatedCall, event: Event, url: str) -> Letter:
        fields = _about(call) | {
            "CallbackSource": "call-progress-events",
            "SequenceNumber": str(call.sequence),
            "Timestamp": rfc2822(call.updated_at),
        }
        if event == "ended" and call.reason:
            talked_s = duration_s(call)
            fields |= {
                "CallDuration": str(talked_s),
                "Duration": str(-(-talked_s // 60)),
                "SipResponseCode": _SIP_CODES[call.reason],
            }
        return _signed(call, call.order.status_method, url, fields)

    def _recording(self, call: SimulatedCall) -> dict[str, str]:
        sid = f"RE{call.sid[2:]}"
        return {
            "AccountSid": call.account.sid,
            "CallSid": call.sid,
            "RecordingSid": sid,
            "RecordingStatus": "completed",
            "RecordingUrl": f"{self.base_url}/2010-04-01/Accounts/{call.account.sid}/Recordings/{sid}",
            "RecordingDuration": str(duration_s(call)),
        }

    def stream_letters(self, call: SimulatedCall, stream: StreamOrder, event: StreamEvent) -> list[Letter]:
        if not stream.status_url:
            return []
        fields = {
            "AccountSid": call.account.sid,
            "CallSid": call.sid,
            "StreamSid": stream.id,
            "StreamName": stream.id,
            "StreamEvent": _STREAM_EVENTS[event],
            "Timestamp": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}Z",
        }
        if event == "failed":
            fields["StreamError"] = "31920: Stream - WebSocket - Handshake Error"
        return [_signed(call, stream.status_method, stream.status_url, fields)]

    def question(self, call: SimulatedCall, url: str, failed_url: str = "") -> Letter:
        failed = {"ErrorCode": "11200", "ErrorUrl": failed_url.partition("#")[0]} if failed_url else {}
        return _signed(call, call.order.answer_method, url, _about(call) | failed)

    def is_refusal(self, status: int) -> bool:
        return False

    def read_document(self, body: bytes) -> list[Verb]:
        return list(_verbs(read_xml(body)))

    def frames(self, call: SimulatedCall, stream: StreamOrder) -> TwilioFrames | None:
        """31920: query strings are not supported."""
        return None if "?" in stream.url else TwilioFrames(call, stream)

    def stream_headers(self, call: SimulatedCall, url: str) -> dict[str, str]:
        return {"X-Twilio-Signature": signature(call.account.auth_token, url)}


def _about(call: SimulatedCall) -> dict[str, str]:
    order = call.order
    fields = {
        "AccountSid": call.account.sid,
        "ApiVersion": "2010-04-01",
        "CallSid": call.sid,
        "CallStatus": status_of(call),
        "Called": order.to,
        "Caller": order.from_,
        "Direction": "outbound-api" if order.direction == "outbound" else "inbound",
        "From": order.from_,
        "To": order.to,
    }
    is_known = (
        order.machine_detection and not order.machine_url
    )  # asynchronous detection has a webhook of its own
    if is_known and call.dial is not None and call.dial.answered_at is not None:
        fields["AnsweredBy"] = _answered_by(call)
    return fields


def _answered_by(call: SimulatedCall) -> str:
    return "machine_start" if call.fate.machine else "human"


def _machine(call: SimulatedCall) -> dict[str, str]:
    return {
        "AccountSid": call.account.sid,
        "CallSid": call.sid,
        "AnsweredBy": _answered_by(call),
        "MachineDetectionDuration": "4200",
    }


def _post(call: SimulatedCall, url: str, fields: dict[str, str]) -> Letter:
    return _signed(call, "POST", url, fields)


def _signed(call: SimulatedCall, method: str, url: str, fields: dict[str, str]) -> Letter:
    """The fragment holds retry orders; it is neither sent nor signed."""
    target, _, fragment = url.partition("#")
    form = form_of(fields)
    if method == "GET":
        target += ("&" if "?" in target else "?") + form
    proof = signature(call.account.auth_token, target, fields.items() if method == "POST" else ())
    headers = (
        ("User-Agent", "TwilioProxy/1.1"),
        ("Accept", "*/*"),
        ("Content-Type", FORM),
        ("X-Twilio-Signature", proof),
    )
    body = form.encode() if method == "POST" else b""
    request = Outgoing(method, f"{target}#{fragment}" if fragment else target, headers, body)
    return Letter(request, retries.TWILIO.ordered_by(url))


def _verbs(root: Element) -> Iterator[Verb]:
    for element in root:
        match element.tag:
            case "Say":
                yield Say((element.text or "").strip())
            case "Pause":
                yield Pause(float(element.get("length", "1")))
            case "Redirect":
                yield Redirect((element.text or "").strip())
            case "Hangup":
                yield HangUpOrder()
            case "Reject":
                yield HangUpOrder(unanswered=True)
            case "Dial":
                yield Forward((element.text or "").strip())
            case "Connect":
                yield from (_stream(child) for child in element.iter("Stream"))


def _stream(element: Element) -> StreamOrder:
    parameters = {child.get("name", ""): child.get("value", "") for child in element.iter("Parameter")}
    return StreamOrder(
        element.get("url", ""),
        parameters,
        f"MZ{token_hex(16)}",
        element.get("statusCallback", ""),
        element.get("statusCallbackMethod", "POST"),
    )
