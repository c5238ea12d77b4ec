"""Twilio's language as the carrier speaks it: signed webhook forms out, TwiML in."""

from collections.abc import Iterator, Mapping
from email.utils import formatdate
from urllib.parse import urldefrag, urlencode
from xml.etree import ElementTree

from trunkline.telephony.carrier import EndReason
from trunkline.telephony.simulator.calls import Call
from trunkline.telephony.simulator.post import Outgoing
from trunkline.telephony.simulator.wire import Event, HangUp, Pause, Redirect, Say, Stream, Verb
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
_SIP_CODES: Mapping[EndReason, str] = {
    "completed": "200",
    "busy": "486",
    "no_answer": "487",
    "failed": "404",
    "canceled": "487",
}
_DOCUMENT_BYTES_MAX = 64 * 1024


def status_of(call: Call) -> str:
    return END_STATUSES[call.reason] if call.reason else STATUSES[call.state]


def duration_s(call: Call, time_scale: float) -> int:
    """In simulated seconds, rounded up as a bill is; 0 for a call that nobody answered."""
    dial = call.dial
    if dial is None or dial.answered_at is None or dial.ended_at is None:
        return 0
    return max(1, round((dial.ended_at - dial.answered_at) / time_scale))


def rfc2822(instant: float) -> str:
    return formatdate(instant).replace("-0000", "+0000")


class TwilioLanguage:
    """The `Wire` of calls that were ordered from Twilio."""

    def __init__(self, time_scale: float) -> None:
        self._time_scale = time_scale

    def status_request(self, call: Call, event: Event) -> Outgoing:
        fields = _about(call) | {
            "CallbackSource": "call-progress-events",
            "SequenceNumber": str(call.sequence),
            "Timestamp": rfc2822(call.updated_at),
        }
        if event == "ended" and call.reason:
            talked_s = duration_s(call, self._time_scale)
            fields |= {
                "CallDuration": str(talked_s),
                "Duration": str(-(-talked_s // 60)),
                "SipResponseCode": _SIP_CODES[call.reason],
            }
        return _signed(call, call.order.status_method, call.order.status_url, fields)

    def answer_request(self, call: Call, url: str) -> Outgoing:
        return _signed(call, call.order.answer_method, url, _about(call))

    def read_document(self, body: bytes) -> list[Verb]:
        if len(body) > _DOCUMENT_BYTES_MAX or b"<!DOCTYPE" in body:
            raise ValueError("not TwiML")
        try:
            root = ElementTree.fromstring(body)  # noqa: S314 - entities need a DOCTYPE, refused above
        except ElementTree.ParseError as error:
            raise ValueError("not XML") from error
        if root.tag != "Response":
            raise ValueError("not TwiML")
        return list(_verbs(root))

    def stream_headers(self, call: Call, url: str) -> dict[str, str]:
        return {"X-Twilio-Signature": signature(call.account.auth_token, url)}


def _about(call: Call) -> dict[str, str]:
    order = call.order
    fields = {
        "AccountSid": call.account.sid,
        "ApiVersion": "2010-04-01",
        "CallSid": call.sid,
        "CallStatus": status_of(call),
        "Called": order.to,
        "Caller": order.from_,
        "Direction": "outbound-api",
        "From": order.from_,
        "To": order.to,
    }
    if order.machine_detection and call.dial is not None and call.dial.answered_at is not None:
        fields["AnsweredBy"] = "machine_start" if call.fate.machine else "human"
    return fields


def _signed(call: Call, method: str, url: str, fields: dict[str, str]) -> Outgoing:
    """The fragment holds orders to the carrier; it is neither sent nor signed."""
    target, fragment = urldefrag(url)
    form = urlencode(fields)
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
    return Outgoing(method, f"{target}#{fragment}" if fragment else target, headers, body)


def _verbs(root: ElementTree.Element) -> Iterator[Verb]:
    for element in root:
        match element.tag:
            case "Say":
                yield Say((element.text or "").strip())
            case "Pause":
                yield Pause(float(element.get("length", "1")))
            case "Redirect":
                yield Redirect((element.text or "").strip())
            case "Hangup" | "Reject":
                yield HangUp()
            case "Connect":
                yield from (_stream(one) for one in element.iter("Stream"))


def _stream(element: ElementTree.Element) -> Stream:
    parameters = {one.get("name", ""): one.get("value", "") for one in element.iter("Parameter")}
    return Stream(element.get("url", ""), parameters)
