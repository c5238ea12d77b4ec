"""Vapi's protocol, the carrier's side: sends messages with a secret or a signature, reads an assistant."""

import time
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import msgspec

from trunkline.telephony.carrier import EndReason
from trunkline.telephony.simulator import retries
from trunkline.telephony.simulator.calls import SimulatedCall
from trunkline.telephony.simulator.durations import moment
from trunkline.telephony.simulator.webhook_client import Outgoing
from trunkline.telephony.simulator.wire import (
    Event,
    Forward,
    HangUpOrder,
    Letter,
    Say,
    StreamEvent,
    StreamOrder,
    Talk,
    Verb,
)
from trunkline.telephony.vapi_signature import SIGNATURE, TIMESTAMP, signature
from trunkline.value import replace

STATUSES: Mapping[str, str] = {
    "queued": "queued",
    "initiated": "queued",
    "ringing": "ringing",
    "answered": "in-progress",
    "ended": "ended",
}
ENDED_REASONS: Mapping[EndReason, str] = {
    "completed": "customer-ended-call",
    "busy": "customer-busy",
    "no_answer": "customer-did-not-answer",
    "failed": "twilio-failed-to-connect-call",
    "canceled": "manually-canceled",
}


def iso(instant: float | None) -> str | None:
    if instant is None:
        return None
    return moment(instant).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class VapiLanguage:
    """The `Wire` of calls that were ordered from Vapi."""

    def __init__(self, base_url: str = "") -> None:
        # The base of calls' control URLs and recordings: set when the simulator listens.
        self.base_url = base_url
        # The analysis that every call's report has.
        self.analysis: dict[str, Any] = {}

    def new_call_id(self) -> str:
        return str(uuid4())

    def letters(self, call: SimulatedCall, event: Event) -> list[Letter]:
        url = call.order.event_urls.get(event)
        if not url:
            return []
        update = {
            "type": "status-update",
            "status": STATUSES[event],
            "timestamp": round(call.updated_at * 1000),
        }
        if event != "ended":
            return [self._sent(call, url, update)]
        ended = ENDED_REASONS[call.reason or "failed"]
        report = {
            "type": "end-of-call-report",
            "endedReason": ended,
            "timestamp": round(call.updated_at * 1000),
            "startedAt": iso(call.dial.answered_at if call.dial else None),
            "endedAt": iso(call.updated_at),
            "cost": 0.05,
            "artifact": self._artifact(call),
            "analysis": dict(self.analysis) if call.reason == "completed" else {},
        }
        return [self._sent(call, url, update | {"endedReason": ended}), self._sent(call, url, report)]

    def _artifact(self, call: SimulatedCall) -> dict[str, str]:
        if call.reason != "completed":
            return {}
        return {
            "recordingUrl": f"{self.base_url}/recordings/{call.sid}.wav",
            "transcript": "AI: Hello. User: Goodbye.",
        }

    def stream_letters(self, call: SimulatedCall, stream: StreamOrder, event: StreamEvent) -> list[Letter]:
        return []

    def is_refusal(self, status: int) -> bool:
        return False

    def question(self, call: SimulatedCall, url: str, failed_url: str = "") -> Letter:
        letter = self._sent(
            call, url, {"type": "assistant-request", "timestamp": round(call.updated_at * 1000)}
        )
        return replace(letter, rule=retries.VAPI_QUESTION)

    def read_document(self, body: bytes) -> list[Verb]:
        """Outbound calls have no document: the assistant was ordered with the call."""
        if not body:
            return [Talk()]
        try:
            answer: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise ValueError("not an answer") from error
        if answer.get("assistantId") or answer.get("assistant"):
            return [Talk()]
        if answer.get("destination"):
            return [Forward(str(answer["destination"].get("number", "")))]
        if answer.get("error"):
            return [Say(str(answer["error"])), HangUpOrder()]
        raise ValueError("no assistant")

    def stream_headers(self, call: SimulatedCall, url: str) -> dict[str, str]:
        return {}

    def frames(self, call: SimulatedCall, stream: StreamOrder) -> None:
        return None

    def resource(self, call: SimulatedCall) -> dict[str, Any]:
        """The call as REST shows it and as every message carries it."""
        order, dial = call.order, call.dial
        shown: dict[str, Any] = {
            "id": call.sid,
            "orgId": call.account.sid,
            "type": "outboundPhoneCall" if order.direction == "outbound" else "inboundPhoneCall",
            "createdAt": iso(call.created_at),
            "updatedAt": iso(call.updated_at),
            "status": STATUSES[call.state],
            "customer": {"number": order.to if order.direction == "outbound" else order.from_},
            "phoneNumber": {"number": order.from_ if order.direction == "outbound" else order.to},
            "cost": 0,
            "monitor": {
                "listenUrl": f"{self.base_url.replace('http', 'ws')}/{call.sid}/listen",
                "controlUrl": f"{self.base_url}/{call.sid}/control",
            },
            **order.custom,
        }
        if dial is not None and dial.answered_at is not None:
            shown["startedAt"] = iso(dial.answered_at)
        if call.reason:
            shown |= {"endedAt": iso(call.updated_at), "endedReason": ENDED_REASONS[call.reason]}
        return shown

    def _sent(self, call: SimulatedCall, url: str, message: dict[str, Any]) -> Letter:
        shown = self.resource(call)
        if message.get("startedAt"):
            message["startedAt"] = shown.get("startedAt")
        content = {
            **message,
            "call": shown,
            "customer": shown["customer"],
            "phoneNumber": shown["phoneNumber"],
        }
        body = msgspec.json.encode({"message": content})
        headers = {"Content-Type": "application/json", **call.order.headers}
        secret = call.order.hmac_secret
        if secret:
            timestamp = str(int(time.time()))
            headers |= {SIGNATURE: signature(secret, timestamp, body), TIMESTAMP: timestamp}
        return Letter(Outgoing("POST", url, tuple(headers.items()), body), call.order.rule or retries.VAPI)
