"""Vapi: it runs the agent itself. Starts and follows its calls, and names the assistant for inbound ones."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec

from trunkline.clock import Clock, SystemClock
from trunkline.telephony.callbacks import CallbackKeys, tag_of
from trunkline.telephony.carrier import (
    Accepted,
    AlreadyOver,
    CallOrder,
    Forged,
    HangUpAsked,
    HangUpResult,
    HangUpUnavailable,
    Limits,
    ListPages,
    ListResult,
    ListUnavailable,
    LookUpResult,
    LookUpUnavailable,
    NoSuchCall,
    NumbersResult,
    PlaceResult,
    Rejected,
    Throttled,
    WebhookRequest,
    WebhookResult,
)
from trunkline.telephony.events import accept_event
from trunkline.telephony.forms import JSON, json_object
from trunkline.telephony.http_exchange import Dialect, Exchange, HttpReply, classify, why
from trunkline.telephony.listing import ACCOUNT_PAGES_MAX, whole_list
from trunkline.telephony.own_numbers import NumbersPage, read_all
from trunkline.telephony.reply_rules import judge
from trunkline.telephony.session import CarrierSession
from trunkline.telephony.vapi_documents import VapiDocuments
from trunkline.telephony.vapi_records import control_url, view_of
from trunkline.telephony.vapi_signature import SECRET, is_verified
from trunkline.telephony.vapi_webhooks import REPORT, STATES, TERMINAL, read_event

BASE_URL = "https://api.vapi.ai"
LIST_PAGE_SIZE = 1000
LIST_PAGES_MAX = 20
TIME_LIMIT_S = (10, 43_200)
RING_TIMEOUT_MAX_S = 600
MESSAGES = ("status-update", REPORT)
# Vapi sends a webhook once, unless the order has a retry plan.
BACKOFF = {"type": "exponential", "maxRetries": 5, "baseDelaySeconds": 1}


class Vapi(VapiDocuments):
    """One Vapi organisation."""

    limits = Limits(starts_per_s=10.0, queues_excess=True, list_lag_s=60.0)
    terminal_statuses = TERMINAL

    def __init__(
        self,
        api_key: str,
        webhook_secrets: Sequence[str],
        callback_keys: CallbackKeys,
        *,
        assistant_id: str = "",
        # With a credential stored at Vapi, messages are signed; without one they carry the secret itself.
        credential_id: str = "",
        base_url: str = BASE_URL,
        clock: Clock | None = None,
        session: CarrierSession | None = None,
    ) -> None:
        self._webhook_secrets = tuple(webhook_secrets)
        self._callback_keys = callback_keys
        self._assistant_id = assistant_id
        self._credential_id = credential_id
        self._base_url = base_url.rstrip("/")
        self._clock = clock or SystemClock()
        self._session = session or CarrierSession(f"Bearer {api_key}")
        self._control = CarrierSession(None)
        self._numbers: dict[str, str] = {}

    async def place(self, order: CallOrder) -> PlaceResult:
        assistant_id = order.metadata.get("assistant_id") or self._assistant_id
        if not assistant_id:
            return Rejected(
                "refused",
                "no_assistant",
                retryable=True,
                blames="account",
                why="neither lead nor account names an assistant",
            )
        number_id = await self._number_id(order.from_)
        if isinstance(number_id, Rejected):
            return number_id
        body = msgspec.json.encode(self._create_body(order, assistant_id, number_id))
        exchange = await self._session.post(f"{self._base_url}/call", JSON, body, order.send_by_boottime_s)
        return classify(exchange, DIALECT)

    async def hang_up(self, call_id: str, *, only_unanswered: bool = False) -> HangUpResult:
        call = await self._call(call_id)
        if isinstance(call, NoSuchCall):
            return call
        if isinstance(call, LookUpUnavailable):
            return HangUpUnavailable(call.reason)
        status = str(call.get("status", ""))
        match STATES.get(status):
            case "ended":
                return AlreadyOver()
            case "answered" if only_unanswered:
                return HangUpAsked(status)
            case "queued":
                exchange = await self._session.delete(self._call_url(call_id))
            case _:
                url = control_url(call, self._base_url)
                if url is None:
                    return HangUpUnavailable("no control URL")
                exchange = await self._control.post(url, JSON, b'{"type":"end-call"}')
        is_taken = isinstance(exchange, HttpReply) and 200 <= exchange.status < 300
        return HangUpAsked(status) if is_taken else HangUpUnavailable(why(exchange))

    async def look_up(self, call_id: str) -> LookUpResult:
        call = await self._call(call_id)
        if isinstance(call, NoSuchCall | LookUpUnavailable):
            return call
        await self._learn_numbers()
        return view_of(call, self._numbers) or LookUpUnavailable("not a call")

    async def list_calls(self, to: str, from_: str, since: datetime) -> ListResult:
        """One view has every state, newest first. It cannot filter by the person's number."""
        number_id = await self._number_id(from_)
        if isinstance(number_id, Rejected):
            return ListUnavailable(number_id.code)
        listed = await whole_list(self._pages({"phoneNumberId": number_id}, since, LIST_PAGES_MAX))
        return listed if isinstance(listed, ListUnavailable) else [call for call in listed if call.to == to]

    async def account_calls(self, since: datetime) -> ListPages:
        exchange = await self._learn_numbers(again=True)
        if exchange is not None:
            yield ListUnavailable(f"numbers unknown: {why(exchange)}")
            return
        async for page in self._pages({}, since, ACCOUNT_PAGES_MAX):
            yield page

    async def _pages(self, wanted: Mapping[str, str], since: datetime, pages_max: int) -> ListPages:
        query = {
            **wanted,
            "createdAtGe": _iso(since.replace(microsecond=0)),
            "limit": str(LIST_PAGE_SIZE),
        }
        before: set[str] = set()
        for _ in range(pages_max):
            exchange = await self._session.get(f"{self._base_url}/call", query)
            rows = _list(exchange) if isinstance(exchange, HttpReply) and exchange.status == 200 else None
            views = [view_of(row, self._numbers) for row in rows or ()]
            if rows is None or None in views:
                yield ListUnavailable(why(exchange) if rows is None else "a call that cannot be read")
                return
            page = [view for view in views if view]
            yield page
            # Pages overlap by the calls of one instant: a page with nothing new is the last.
            shown = {view.call_id for view in page}
            oldest = min((view.created_at for view in page if view.created_at), default=None)
            if len(views) < LIST_PAGE_SIZE or shown <= before or oldest is None:
                return
            before, query["createdAtLe"] = shown, _iso(oldest)
        yield ListUnavailable(f"more than {pages_max} pages")

    def live_calls(self, since: datetime) -> ListPages:
        return self.account_calls(since)

    def ended_calls(self, since: datetime, until: datetime) -> ListPages:
        return self.account_calls(since)

    async def own_numbers(self) -> NumbersResult:
        query = {"limit": str(LIST_PAGE_SIZE)}
        return await read_all(
            lambda _: self._session.get(f"{self._base_url}/phone-number", query), _numbers_page
        )

    def parse_webhook(self, request: WebhookRequest) -> WebhookResult:
        only_hmac = bool(self._credential_id)
        if not is_verified(request, self._webhook_secrets, self._clock.now(), only_hmac=only_hmac):
            return Forged("carrier signature wrong or stale")
        tag = tag_of(request, self._callback_keys, self.name)
        if isinstance(tag, Forged):
            return tag
        return accept_event(read_event(request.body, tag, self._base_url), tag, self._clock.now())

    def entry_url(self, url: str) -> str:
        return url

    def media_authorization(self, url: str) -> str | None:
        return None  # the addresses of its recordings are secrets themselves

    async def aclose(self) -> None:
        await self._session.aclose()
        await self._control.aclose()

    def _create_body(self, order: CallOrder, assistant_id: str, number_id: str) -> dict[str, Any]:
        shortest_s, longest_s = TIME_LIMIT_S
        attempt = str(order.attempt_id)
        return {
            "assistantId": assistant_id,
            "phoneNumberId": number_id,
            "customer": {"number": order.to, "externalId": attempt},
            "name": attempt,
            "assistantOverrides": {
                "variableValues": {**order.metadata, "attempt": attempt},
                "metadata": {"attempt": attempt} | _key(order),
                "maxDurationSeconds": min(max(order.time_limit_s, shortest_s), longest_s),
                "transportConfigurations": [
                    {"provider": "twilio", "timeout": min(order.ring_timeout_s, RING_TIMEOUT_MAX_S)}
                ],
                "serverMessages": list(MESSAGES),
                "server": self._server(order.status_url),
            },
        }

    def _server(self, url: str) -> dict[str, Any]:
        proof: dict[str, Any] = {"headers": {SECRET: self._webhook_secrets[0]}}
        if self._credential_id:
            proof = {"credentialId": self._credential_id}
        return {"url": url, "timeoutSeconds": 20, "backoffPlan": BACKOFF, **proof}

    async def _call(self, call_id: str) -> dict[str, Any] | NoSuchCall | LookUpUnavailable:
        exchange = await self._session.get(self._call_url(call_id))
        match exchange:
            case HttpReply(status=200):
                return json_object(exchange.body)
            case HttpReply(status=404) if _error(exchange) is not None:
                return NoSuchCall()
            case _:
                return LookUpUnavailable(why(exchange))

    async def _number_id(self, e164: str) -> str | Rejected:
        """Vapi has its own id for each number, which is queried once."""
        if e164 not in self._numbers:
            exchange = await self._learn_numbers(again=True)
            if exchange is not None:
                return _numbers_unknown(exchange)
        return self._numbers.get(e164) or Rejected(
            "refused",
            "number_unknown",
            retryable=True,
            blames="number",
            why="the organisation has no such number",
        )

    async def _learn_numbers(self, *, again: bool = False) -> Exchange | None:
        """Query the numbers. Returns the exchange if it failed."""
        if self._numbers and not again:
            return None
        exchange = await self._session.get(f"{self._base_url}/phone-number", {"limit": str(LIST_PAGE_SIZE)})
        rows = _list(exchange) if isinstance(exchange, HttpReply) and exchange.status == 200 else None
        if rows is None:
            return exchange
        self._numbers = {
            str(row["number"]): str(row["id"]) for row in rows if row.get("number") and row.get("id")
        }
        return None

    def _call_url(self, call_id: str) -> str:
        return f"{self._base_url}/call/{quote(call_id, safe='')}"


def _numbers_unknown(exchange: Exchange) -> Rejected:
    """Nothing was dialled, whatever the answer: only the numbers were queried."""
    refused = _refused(exchange) if isinstance(exchange, HttpReply) else None
    if isinstance(refused, Rejected):
        return refused
    code = f"numbers unknown: {why(exchange)}"
    return Rejected("not_connected", code, retryable=True, blames="network")


def _key(order: CallOrder) -> dict[str, str]:
    return {"idempotency_key": order.idempotency_key} if order.idempotency_key else {}


def _accepted(reply: HttpReply) -> Accepted | None:
    call = json_object(reply.body)
    call_id, limits = call.get("id"), call.get("subscriptionLimits")
    if not isinstance(call_id, str) or not call_id:
        return None
    # Over the organisation's limit the call exists and waits: Vapi does not say for how long.
    is_blocked = isinstance(limits, dict) and limits.get("concurrencyBlocked") is True
    return Accepted(call_id, None if is_blocked else 0)


def _refused(reply: HttpReply) -> Rejected | Throttled | None:
    error = _error(reply)
    return None if error is None else judge("vapi", reply.status, str(reply.status), error)


DIALECT = Dialect(accepted=_accepted, refused=_refused)


def _error(reply: HttpReply) -> str | None:
    """Vapi's own errors repeat their status, and have one message or several."""
    body = json_object(reply.body)
    return str(body.get("message", "")) if body.get("statusCode") == reply.status else None


def _numbers_page(body: bytes) -> NumbersPage | None:
    rows = _rows(body)
    return None if rows is None else NumbersPage([str(row["number"]) for row in rows if row.get("number")])


def _list(reply: HttpReply) -> list[dict[str, Any]] | None:
    return _rows(reply.body)


def _rows(body: bytes) -> list[dict[str, Any]] | None:
    try:
        return msgspec.json.decode(body, type=list[dict[str, Any]])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        return None


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
