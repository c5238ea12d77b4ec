"""Vapi, simulated: its REST API for calls and numbers, the control URL of a live call, messages with a secret or a
signature, and assistants."""

import time
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any, ClassVar
from uuid import UUID, uuid4

import msgspec
from aiohttp import web

from trunkline.telephony.callbacks import attempt_in
from trunkline.telephony.carrier import EndReason
from trunkline.telephony.simulator import webhooks
from trunkline.telephony.simulator.bodies import json_reply, moment
from trunkline.telephony.simulator.calls import SimulatedCall, SimulatedCalls
from trunkline.telephony.simulator.config import SimulatedAccount
from trunkline.telephony.simulator.magic import REFUSALS
from trunkline.telephony.simulator.rest import Refusals, Refused, RestApi
from trunkline.telephony.simulator.webhooks import Letter, Outgoing, WebhookRetryRule
from trunkline.telephony.simulator.wire import (
    STATUSES,
    CreateRequest,
    Event,
    Forward,
    HangUpOrder,
    Say,
    Talk,
    Verb,
)
from trunkline.telephony.vapi_webhooks import SIGNATURE, TIMESTAMP, signature
from trunkline.value import replace

PAGE_SIZE, PAGE_SIZE_MAX = 100, 1000
STATUS_EVENTS: tuple[Event, ...] = ("initiated", "ringing", "answered", "ended")
NOT_E164 = "customer.number must be a valid phone number in the E.164 format"
ENDED_REASONS: Mapping[EndReason, str] = {
    "completed": "customer-ended-call",
    "busy": "customer-busy",
    "no_answer": "customer-did-not-answer",
    "failed": "twilio-failed-to-connect-call",
    "canceled": "manually-canceled",
}


class SimulatedVapi(RestApi):
    """`numbers` are those that the organisation has; `secrets` those that its messages are signed with, by
    credential."""

    carrier = "vapi"
    statuses: ClassVar[Mapping[str, str]] = {**STATUSES, "ended": "ended"}
    refusals = Refusals(
        unauthorized=Refused(
            401, "Invalid Key. Hot tip, you may be using the private key instead of the public key"
        ),
        not_found=Refused(404, "Not Found"),
        unreadable=Refused(400, "a parameter cannot be read"),
        throttled=Refused(429, "Too Many Requests"),
        error=Refused(500, "Internal Server Error"),
        queue_full=Refused(400, "Over the limit of queued calls"),
        too_many=Refused(400, "Over Concurrency Limit"),
    )

    def __init__(
        self,
        calls: SimulatedCalls,
        accounts: tuple[SimulatedAccount, ...],
        numbers: set[str],
        secrets: Mapping[str, str],
    ) -> None:
        super().__init__(calls, accounts)
        self._numbers = numbers
        self._secrets = secrets
        # The analysis that every call's report has.
        self.analysis: dict[str, Any] = {}

    def credentials(self, account: SimulatedAccount) -> tuple[str, str]:
        return "", f"Bearer {account.auth_token}"

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/call", self.authenticated(self.create_call)),
            web.get("/call", self.authenticated(self.list_calls)),
            web.get("/call/{call}", self.authenticated(self._fetch)),
            web.delete("/call/{call}", self.authenticated(self._delete)),
            web.get("/phone-number", self.authenticated(self._list_numbers)),
            # The URL alone authorises control of the call, as at Vapi by default.
            web.post("/{call}/control", self._control),
        ]

    async def _fetch(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        call = self.call_of(request, account)
        return json_reply(self._resource(call)) if call else self.refuse(self.refusals.not_found)

    async def _delete(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        call = self.call_of(request, account)
        if call is None:
            return self.refuse(self.refusals.not_found)
        if call.state in ("queued", "initiated"):
            self._calls.hang_up(call, only_unanswered=True)
        return json_reply(self._resource(call))

    async def _control(self, request: web.Request) -> web.StreamResponse:
        call = self._calls.by_sid.get(request.match_info["call"])
        if call is None or call.state == "ended":
            return self.refuse(self.refusals.not_found)
        try:
            kind = msgspec.json.decode(await request.read(), type=dict[str, Any]).get("type")
        except (msgspec.DecodeError, msgspec.ValidationError):
            kind = None
        if kind != "end-call":
            return self.error(400, "unknown message")
        self._calls.hang_up(call, only_unanswered=False)
        return json_reply({})

    async def _list_numbers(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        common = {"orgId": account.sid, "provider": "twilio", "status": "active"}
        return json_reply(
            [{"id": number_id(number), "number": number, **common} for number in sorted(self._numbers)]
        )

    def created(self, call: SimulatedCall) -> web.Response:
        limit = call.account.max_concurrent or 10
        limits = {"concurrencyBlocked": False, "concurrencyLimit": limit, "remainingConcurrentCalls": limit}
        return json_reply({**self._resource(call), "subscriptionLimits": limits}, status=201)

    def error(self, status: int, error: str, headers: Mapping[str, str] | None = None) -> web.Response:
        body = {"message": error, "error": "Bad Request" if status == 400 else "Error", "statusCode": status}
        return json_reply(body, status, headers)

    def listed(self, request: web.Request, account: SimulatedAccount) -> web.Response:
        query = request.query
        size = min(int(float(query.get("limit", PAGE_SIZE))), PAGE_SIZE_MAX)
        after, before = _instant(query.get("createdAtGe")), _instant(query.get("createdAtLe"))
        number = self._number(query["phoneNumberId"]) if "phoneNumberId" in query else None
        calls = [
            call
            for call in self.calls_of(account)
            if (after is None or round(call.created_at, 3) >= after)
            and (before is None or round(call.created_at, 3) <= before)
            and (number is None or call.order.from_ == number)
        ]
        return json_reply([self._resource(call) for call in calls[:size]])

    def read_order(self, body: bytes, account: SimulatedAccount) -> CreateRequest | str:
        try:
            form: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
            to = str(form["customer"]["number"])
            overrides: dict[str, Any] = form.get("assistantOverrides") or {}
            server: dict[str, Any] = overrides.get("server") or {}
            transport = next(iter(overrides.get("transportConfigurations") or [{}]))
            ring_timeout_s = float(transport.get("timeout", 60))
            time_limit_s = float(overrides.get("maxDurationSeconds", 600))
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError, AttributeError):
            return NOT_E164
        number = self._number(str(form.get("phoneNumberId", "")))
        if to in REFUSALS or not to.startswith("+") or not to[1:].isdecimal() or not 8 <= len(to) <= 16:
            return NOT_E164
        if number is None:
            return "Couldn't get phone number"
        if not (form.get("assistantId") or form.get("assistant")):
            return "Need either assistant or assistantId"
        if "metadata" in form:
            return "property metadata should not exist"
        url = str(server.get("url", ""))
        stored = ("assistantId", "phoneNumberId", "name", "assistantOverrides")
        return CreateRequest(
            to=to,
            from_=number,
            event_urls=dict.fromkeys(STATUS_EVENTS, url) if url else {},
            ring_timeout_s=ring_timeout_s,
            time_limit_s=time_limit_s,
            attempt=attempt_in(url),
            headers={str(name): str(value) for name, value in (server.get("headers") or {}).items()},
            hmac_secret=self._secrets.get(str(server.get("credentialId", "")), ""),
            rule=_rule(server.get("backoffPlan")),
            custom={name: form[name] for name in stored if name in form},
        )

    def _number(self, wanted: str) -> str | None:
        return next((number for number in self._numbers if number_id(number) == wanted), None)

    def _resource(self, call: SimulatedCall) -> dict[str, Any]:
        """The call as REST shows it and as every message carries it."""
        order, dial = call.order, call.dial
        shown: dict[str, Any] = {
            "id": call.sid,
            "orgId": call.account.sid,
            "type": "inboundPhoneCall" if order.is_inbound else "outboundPhoneCall",
            "createdAt": _iso(call.created_at),
            "updatedAt": _iso(call.updated_at),
            "status": self.statuses[call.state],
            "customer": {"number": order.person},
            "phoneNumber": {"number": order.own_number},
            "cost": 0,
            "monitor": {
                "listenUrl": f"{self.base_url.replace('http', 'ws')}/{call.sid}/listen",
                "controlUrl": f"{self.base_url}/{call.sid}/control",
            },
            **order.custom,
        }
        if dial is not None and dial.answered_at is not None:
            shown["startedAt"] = _iso(dial.answered_at)
        if call.reason:
            shown |= {"endedAt": _iso(call.updated_at), "endedReason": ENDED_REASONS[call.reason]}
        return shown

    # --- the wire of a call

    def new_call_id(self) -> str:
        return str(uuid4())

    def letters(self, call: SimulatedCall, event: Event) -> list[Letter]:
        url = call.order.event_urls.get(event)
        if not url:
            return []
        update = {"type": "status-update", "status": self.statuses[event]}
        if event != "ended":
            return [self._sent(call, url, update)]
        ended = ENDED_REASONS[call.reason or "failed"]
        report = {
            "type": "end-of-call-report",
            "endedReason": ended,
            "startedAt": _iso(call.dial.answered_at if call.dial else None),
            "endedAt": _iso(call.updated_at),
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

    def question(self, call: SimulatedCall, url: str, failed_url: str = "") -> Letter:
        return replace(self._sent(call, url, {"type": "assistant-request"}), rule=webhooks.VAPI_QUESTION)

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

    def _sent(self, call: SimulatedCall, url: str, message: dict[str, Any]) -> Letter:
        shown = self._resource(call)
        content = {
            **message,
            "timestamp": round(call.updated_at * 1000),
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
        return Letter(Outgoing("POST", url, tuple(headers.items()), body), call.order.rule or webhooks.VAPI)


def number_id(number: str) -> str:
    """Always the same for the same number."""
    return str(UUID(bytes=sha256(number.encode()).digest()[:16], version=4))


def _rule(plan: Any) -> WebhookRetryRule | None:
    times = plan.get("maxRetries") if isinstance(plan, dict) else None
    if not isinstance(times, int):
        return None
    return replace(webhooks.VAPI, retries=min(times, 10), policy=frozenset({"all"}))


def _instant(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None


def _iso(instant: float | None) -> str | None:
    if instant is None:
        return None
    return moment(instant).isoformat(timespec="milliseconds").replace("+00:00", "Z")
