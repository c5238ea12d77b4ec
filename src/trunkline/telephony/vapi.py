"""Vapi: it runs the agent itself. Starts and follows its calls, and names the assistant for inbound ones."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import msgspec

from trunkline.clock import Clock
from trunkline.http.connections import CarrierSession, Exchange, HttpReply, why
from trunkline.telephony.carrier import (
    Accepted,
    AlreadyOver,
    AnswerFallback,
    CallbackTag,
    CallOrder,
    CallView,
    Document,
    Forged,
    HangUpAsked,
    HangUpResult,
    Limits,
    ListPages,
    ListResult,
    LookUpResult,
    PlaceResult,
    Rejected,
    Unavailable,
    WebhookRequest,
    WebhookResult,
)
from trunkline.telephony.carrier_registry import CarrierAccount
from trunkline.telephony.forms import JSON, cost_of, json_object
from trunkline.telephony.http_carrier import (
    ACCOUNT_PAGES_MAX,
    CarrierError,
    HttpCarrier,
    ListPage,
    ok_body,
    quoted,
    unavailable,
    whole_list,
    with_query,
)
from trunkline.telephony.reply_rules import our_fault
from trunkline.telephony.vapi_webhooks import (
    REPORT,
    SECRET,
    STATES,
    TERMINAL,
    attempt_of,
    end_reason,
    is_verified,
    moment,
    read_event,
    seconds_between,
)

LIST_PAGE_SIZE = 1000
LIST_PAGES_MAX = 20
TIME_LIMIT_S = (10, 43_200)
RING_TIMEOUT_MAX_S = 600
MESSAGES = ("status-update", REPORT)
# Vapi sends a webhook once, unless the order has a retry plan.
BACKOFF = {"type": "exponential", "maxRetries": 5, "baseDelaySeconds": 1}
# Other types are inbound: by phone, or from a web page.
OUTBOUND = "outboundPhoneCall"


class VapiDocuments:
    """Responses to Vapi's request for the assistant of an inbound call."""

    name = "vapi"
    streams = False
    can_hold = False
    # The assistant of an account, which the carrier's name alone does not give.
    _assistant_id = ""

    def answer_document(
        self, stream_url: str, parameters: Mapping[str, str], then_url: str = "", status_url: str = ""
    ) -> Document:
        """Names the assistant of an inbound call, with the parameters. There is no stream."""
        overrides = {"variableValues": dict(parameters), "metadata": dict(parameters)}
        return _json({"assistantId": self._assistant_id, "assistantOverrides": overrides})

    def hold_document(self, wait_s: int, again_url: str) -> Document:
        return self.busy_document("Please call again in a moment.")

    def busy_document(self, message: str) -> Document:
        """Vapi speaks the error and hangs up."""
        return _json({"error": message})

    def hang_up_document(self) -> Document:
        return self.busy_document("Goodbye.")

    def reject_document(self) -> Document:
        return self.busy_document("All lines are busy.")

    def redirect_document(self, to: str) -> Document:
        return _json({"destination": {"type": "number", "number": to}})

    def fallback_document(self, fallback: AnswerFallback) -> Document:
        scheme, _, rest = fallback.url.partition(":")
        match scheme:
            case "tel":
                return self.redirect_document(rest)
            case "sip" | "sips":
                return _json({"destination": {"type": "sip", "sipUri": fallback.url}})
            case _:
                return self.busy_document(fallback.message)


class Vapi(VapiDocuments, HttpCarrier):
    """One Vapi organisation."""

    api_url = "https://api.vapi.ai"
    limits = Limits(starts_per_s=10.0, queues_excess=True, list_lag_s=60.0)
    terminal_statuses = TERMINAL

    def __init__(self, account: CarrierAccount, *, clock: Clock | None = None) -> None:
        given = account.credentials
        super().__init__(account, f"Bearer {given['api_key']}", clock)
        self._webhook_secrets = account.given("webhook_secret", "previous_webhook_secret")
        self._assistant_id = given.get("assistant_id", "")
        self._credential_id = given.get("credential_id", "")
        self._calls_url = f"{self._base_url}/call"
        # For the control URLs of calls, at hosts that must not get the credentials.
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
        return self.classify(await self._session.post(self._calls_url, JSON, body, order.send_by_boottime_s))

    def _create_body(self, order: CallOrder, assistant_id: str, number_id: str) -> dict[str, Any]:
        attempt, (shortest_s, longest_s) = str(order.attempt_id), TIME_LIMIT_S
        key = {"idempotency_key": order.idempotency_key} if order.idempotency_key else {}
        proof: dict[str, Any] = {"headers": {SECRET: self._webhook_secrets[0]}}
        if self._credential_id:
            proof = {"credentialId": self._credential_id}
        return {
            "assistantId": assistant_id,
            "phoneNumberId": number_id,
            "customer": {"number": order.to, "externalId": attempt},
            "name": attempt,
            "assistantOverrides": {
                "variableValues": {**order.metadata, "attempt": attempt},
                "metadata": {"attempt": attempt} | key,
                "maxDurationSeconds": min(max(order.time_limit_s, shortest_s), longest_s),
                "transportConfigurations": [
                    {"provider": "twilio", "timeout": min(order.ring_timeout_s, RING_TIMEOUT_MAX_S)}
                ],
                "serverMessages": list(MESSAGES),
                "server": {"url": order.status_url, "timeoutSeconds": 20, "backoffPlan": BACKOFF, **proof},
            },
        }

    async def hang_up(self, call_id: str, *, only_unanswered: bool = False) -> HangUpResult:
        call = await self._fetch(self._call_url(call_id))
        if not isinstance(call, dict):
            return call
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
                    return Unavailable("no control URL")
                exchange = await self._control.post(url, JSON, b'{"type":"end-call"}')
        is_taken = isinstance(exchange, HttpReply) and 200 <= exchange.status < 300
        return HangUpAsked(status) if is_taken else unavailable(exchange)

    async def look_up(self, call_id: str) -> LookUpResult:
        call = await self._fetch(self._call_url(call_id))
        if not isinstance(call, dict):
            return call
        await self._learn_numbers()
        return view_of(call, self._numbers) or Unavailable("not a call")

    async def list_calls(self, to: str, from_: str, since: datetime) -> ListResult:
        """One view has every state, newest first. It cannot filter by the person's number."""
        number_id = await self._number_id(from_)
        if isinstance(number_id, Rejected):
            return Unavailable(number_id.code)
        listed = await whole_list(self._listed({"phoneNumberId": number_id}, since, LIST_PAGES_MAX))
        return listed if isinstance(listed, Unavailable) else [call for call in listed if call.to == to]

    async def account_calls(self, since: datetime) -> ListPages:
        exchange = await self._learn_numbers(again=True)
        if exchange is not None:
            yield Unavailable(f"numbers unknown: {why(exchange)}")
            return
        async for page in self._listed({}, since, ACCOUNT_PAGES_MAX):
            yield page

    def _listed(self, wanted: dict[str, str], since: datetime, pages_max: int) -> ListPages:
        query = wanted | {"createdAtGe": _iso(since.replace(microsecond=0)), "limit": str(LIST_PAGE_SIZE)}
        before: set[str] = set()

        def read(body: bytes) -> ListPage[CallView] | None:
            nonlocal before
            rows = _rows(body)
            if rows is None:
                return None
            views = [view_of(row, self._numbers) for row in rows]
            # Pages overlap by the calls of one instant: a page with nothing new is the last.
            shown = {view.call_id for view in views if view}
            oldest = min((view.created_at for view in views if view and view.created_at), default=None)
            if len(views) < LIST_PAGE_SIZE or shown <= before or oldest is None:
                return ListPage(views)
            before = shown
            return ListPage(views, with_query(self._calls_url, query | {"createdAtLe": _iso(oldest)}))

        return self._pages(with_query(self._calls_url, query), read, pages_max)

    def _numbers_url(self) -> str:
        return f"{self._base_url}/phone-number?limit={LIST_PAGE_SIZE}"

    def _read_numbers(self, body: bytes) -> ListPage[str] | None:
        rows = _rows(body)
        return None if rows is None else ListPage([str(row["number"]) for row in rows if row.get("number")])

    def _read(self, request: WebhookRequest, tag: CallbackTag) -> WebhookResult:
        only_hmac = bool(self._credential_id)
        if not is_verified(request, self._webhook_secrets, self._clock.now(), only_hmac=only_hmac):
            return Forged("carrier signature wrong or stale")
        return read_event(request.body, tag, self._base_url)

    def media_authorization(self, url: str) -> str | None:
        return None  # the addresses of its recordings are secrets themselves

    async def aclose(self) -> None:
        await super().aclose()
        await self._control.aclose()

    async def _number_id(self, e164: str) -> str | Rejected:
        """Vapi has its own id for each number, which is queried once."""
        if e164 not in self._numbers:
            exchange = await self._learn_numbers(again=True)
            if exchange is not None:
                return self._numbers_unknown(exchange)
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
        exchange = await self._session.get(self._numbers_url())
        rows = _rows(ok_body(exchange) or b"")
        if rows is None:
            return exchange
        self._numbers = {
            str(row["number"]): str(row["id"]) for row in rows if row.get("number") and row.get("id")
        }
        return None

    @classmethod
    def _numbers_unknown(cls, exchange: Exchange) -> Rejected:
        """Nothing was dialled, whatever the answer: only the numbers were queried."""
        refused = cls.refused(exchange) if isinstance(exchange, HttpReply) else None
        if isinstance(refused, Rejected):
            return refused
        code = f"numbers unknown: {why(exchange)}"
        return Rejected("not_connected", code, retryable=True, blames="network")

    def _call_url(self, call_id: str) -> str:
        return f"{self._calls_url}/{quoted(call_id)}"

    @staticmethod
    def accepted(reply: HttpReply) -> Accepted | None:
        call = json_object(reply.body)
        call_id, limits = call.get("id"), call.get("subscriptionLimits")
        if not isinstance(call_id, str) or not call_id:
            return None
        # Over the organisation's limit the call exists and waits: Vapi does not say for how long.
        is_blocked = isinstance(limits, dict) and limits.get("concurrencyBlocked") is True
        return Accepted(call_id, None if is_blocked else 0)

    @staticmethod
    def error(reply: HttpReply) -> CarrierError | None:
        """Vapi's own errors repeat their status, and have one message or several."""
        body = json_object(reply.body)
        is_theirs = body.get("statusCode") == reply.status
        return CarrierError(str(reply.status), str(body.get("message", ""))) if is_theirs else None


def view_of(call: Mapping[str, Any], numbers: Mapping[str, str]) -> CallView | None:
    """`numbers` are Vapi's ids of the account's numbers, by number."""
    status = str(call.get("status", ""))
    state = STATES.get(status)
    if not isinstance(call.get("id"), str) or state is None:
        return None
    customer = call.get("customer")
    ended = str(call.get("endedReason") or "") if state == "ended" else ""
    by_id = {number_id: number for number, number_id in numbers.items()}
    return CallView(
        call_id=call["id"],
        to=str(customer.get("number", "")) if isinstance(customer, dict) else "",
        from_=by_id.get(str(call.get("phoneNumberId")), ""),
        status=status,
        state=state,
        reason=end_reason(ended) if state == "ended" else None,
        fault=our_fault("vapi", ended),
        created_at=moment(call.get("createdAt")),
        started_at=moment(call.get("startedAt")),
        ended_at=moment(call.get("endedAt")),
        duration_s=seconds_between(call.get("startedAt"), call.get("endedAt")),
        attempt_id=attempt_of(call),
        # 0 until the figure is complete.
        cost=cost_of(call.get("cost") or None),
        direction="outbound" if call.get("type", OUTBOUND) == OUTBOUND else "inbound",
    )


def control_url(call: Mapping[str, Any], base_url: str) -> str | None:
    """Each live call has a control URL on a host of its own. It is used only if the host is the carrier's."""
    monitor = call.get("monitor")
    url = monitor.get("controlUrl") if isinstance(monitor, dict) else None
    try:
        host, home = urlsplit(str(url)).hostname or "", urlsplit(base_url).hostname or ""
    except ValueError:
        return None
    is_theirs = host == home or host.endswith(f".{home.removeprefix('api.')}")
    return str(url) if url and is_theirs else None


def _rows(body: bytes) -> list[dict[str, Any]] | None:
    try:
        return msgspec.json.decode(body, type=list[dict[str, Any]])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        return None


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _json(value: object) -> Document:
    return Document(JSON, msgspec.json.encode(value).decode())
