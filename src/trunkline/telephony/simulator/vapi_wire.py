"""Vapi's REST API for calls: create, get, list, delete, and the control URL of a live one. And its phone numbers."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from hashlib import sha256
from hmac import compare_digest
from typing import Any
from uuid import UUID

import msgspec
from aiohttp import web

from trunkline.telephony.callbacks import attempt_in
from trunkline.telephony.simulator import retries
from trunkline.telephony.simulator.bodies import json_reply
from trunkline.telephony.simulator.calls import SimulatedCall, SimulatedCalls
from trunkline.telephony.simulator.config import SimulatedAccount
from trunkline.telephony.simulator.magic import REFUSALS
from trunkline.telephony.simulator.placing import Replies, place
from trunkline.telephony.simulator.vapi_language import VapiLanguage
from trunkline.telephony.simulator.wire import CreateRequest, Event
from trunkline.value import replace

Handler = Callable[[web.Request, SimulatedAccount], Awaitable[web.StreamResponse]]
PAGE_SIZE, PAGE_SIZE_MAX = 100, 1000
STATUS_EVENTS: tuple[Event, ...] = ("initiated", "ringing", "answered", "ended")


class VapiWire:
    """`numbers` are those that the organisation has; `credentials` the secrets that its messages are signed with."""

    def __init__(
        self,
        calls: SimulatedCalls,
        accounts: tuple[SimulatedAccount, ...],
        numbers: set[str],
        credentials: Mapping[str, str],
    ) -> None:
        self._calls = calls
        self._numbers = numbers
        self._credentials = credentials
        self.language = VapiLanguage()
        self._accounts = [account for account in accounts if account.carrier == "vapi"]
        self._replies = Replies(
            created=lambda call: json_reply(self._created(call), status=201),
            throttled=lambda wait_s: _error(429, "Too Many Requests", {"Retry-After": str(wait_s)}),
            error=lambda: _error(500, "Internal Server Error"),
            queue_full=lambda: _error(400, "Over the limit of queued calls"),
            too_many=lambda: _error(400, "Over Concurrency Limit"),
        )

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/call", self._authenticated(self._create)),
            web.get("/call", self._authenticated(self._list)),
            web.get("/call/{call}", self._authenticated(self._fetch)),
            web.delete("/call/{call}", self._authenticated(self._delete)),
            web.get("/phone-number", self._authenticated(self._list_numbers)),
            # The URL alone authorises control of the call, as at Vapi by default.
            web.post("/{call}/control", self._control),
        ]

    async def _create(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        order = self._read_order(await request.read())
        if isinstance(order, str):
            return _error(400, order)
        return await place(self._calls, request, account, order, self.language, self._replies)

    def _created(self, call: SimulatedCall) -> dict[str, Any]:
        limit = call.account.max_concurrent or 10
        limits = {"concurrencyBlocked": False, "concurrencyLimit": limit, "remainingConcurrentCalls": limit}
        return {**self.language.resource(call), "subscriptionLimits": limits}

    def _read_order(self, body: bytes) -> CreateRequest | str:
        """An order, or what is wrong with it."""
        try:
            form: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
            to = str(form["customer"]["number"])
            overrides: dict[str, Any] = form.get("assistantOverrides") or {}
            server: dict[str, Any] = overrides.get("server") or {}
            ring_timeout_s = float(
                next(iter(overrides.get("transportConfigurations") or [{}])).get("timeout", 60)
            )
            time_limit_s = float(overrides.get("maxDurationSeconds", 600))
        except (
            msgspec.DecodeError,
            msgspec.ValidationError,
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
        ):
            return "customer.number must be a valid phone number in the E.164 format"
        number = self._number(str(form.get("phoneNumberId", "")))
        if to in REFUSALS or not to.startswith("+") or not to[1:].isdecimal() or not 8 <= len(to) <= 16:
            return "customer.number must be a valid phone number in the E.164 format"
        if number is None:
            return "Couldn't get phone number"
        if not (form.get("assistantId") or form.get("assistant")):
            return "Need either assistant or assistantId"
        if "metadata" in form:
            return "property metadata should not exist"
        url = str(server.get("url", ""))
        return CreateRequest(
            to=to,
            from_=number,
            event_urls=dict.fromkeys(STATUS_EVENTS, url) if url else {},
            ring_timeout_s=ring_timeout_s,
            time_limit_s=time_limit_s,
            attempt=attempt_in(url),
            headers={str(name): str(value) for name, value in (server.get("headers") or {}).items()},
            hmac_secret=self._credentials.get(str(server.get("credentialId", "")), ""),
            rule=_rule(server.get("backoffPlan")),
            custom={
                name: form[name]
                for name in ("assistantId", "phoneNumberId", "name", "assistantOverrides")
                if name in form
            },
        )

    async def _fetch(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        call = self._call(request, account)
        return json_reply(self.language.resource(call)) if call else _error(404, "Not Found")

    async def _delete(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        call = self._call(request, account)
        if call is None:
            return _error(404, "Not Found")
        if call.state in ("queued", "initiated"):
            self._calls.hang_up(call, only_unanswered=True)
        return json_reply(self.language.resource(call))

    async def _control(self, request: web.Request) -> web.StreamResponse:
        call = self._calls.by_sid.get(request.match_info["call"])
        if call is None or call.state == "ended":
            return _error(404, "Not Found")
        try:
            kind = msgspec.json.decode(await request.read(), type=dict[str, Any]).get("type")
        except (msgspec.DecodeError, msgspec.ValidationError):
            kind = None
        if kind != "end-call":
            return _error(400, "unknown message")
        self._calls.hang_up(call, only_unanswered=False)
        return json_reply({})

    async def _list(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        if self._calls.faults.list_down:
            return web.Response(status=503, text="Service Unavailable")
        query = request.query
        try:
            size = min(int(float(query.get("limit", PAGE_SIZE))), PAGE_SIZE_MAX)
            after, before = _instant(query.get("createdAtGe")), _instant(query.get("createdAtLe"))
        except ValueError:
            return _error(400, "a parameter cannot be read")
        number = self._number(query["phoneNumberId"]) if "phoneNumberId" in query else None
        calls = [
            call
            for call in self._calls.newest_first(None)
            if call.account is account
            and (after is None or round(call.created_at, 3) >= after)
            and (before is None or round(call.created_at, 3) <= before)
            and (number is None or call.order.from_ == number)
        ]
        return json_reply([self.language.resource(call) for call in calls[:size]])

    async def _list_numbers(self, request: web.Request, account: SimulatedAccount) -> web.StreamResponse:
        rows = [
            {
                "id": number_id(number),
                "orgId": account.sid,
                "number": number,
                "provider": "twilio",
                "status": "active",
            }
            for number in sorted(self._numbers)
        ]
        return json_reply(rows)

    def _number(self, wanted: str) -> str | None:
        return next((number for number in self._numbers if number_id(number) == wanted), None)

    def _call(self, request: web.Request, account: SimulatedAccount) -> SimulatedCall | None:
        call = self._calls.by_sid.get(request.match_info["call"])
        return call if call and call.account is account else None

    def _authenticated(self, handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            given = request.headers.get("Authorization", "").encode()
            for account in self._accounts:
                if compare_digest(given, f"Bearer {account.auth_token}".encode()):
                    return await handler(request, account)
            return _error(
                401, "Invalid Key. Hot tip, you may be using the private key instead of the public key"
            )

        return handle


def number_id(number: str) -> str:
    """Always the same for the same number."""
    return str(UUID(bytes=sha256(number.encode()).digest()[:16], version=4))


def _rule(plan: Any) -> retries.WebhookRetryRule | None:
    times = plan.get("maxRetries") if isinstance(plan, dict) else None
    if not isinstance(times, int):
        return None
    return replace(retries.VAPI, retries=min(times, 10), policy=frozenset({"all"}))


def _instant(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    body = {"message": message, "error": "Bad Request" if status == 400 else "Error", "statusCode": status}
    return json_reply(body, status=status, headers=headers)
