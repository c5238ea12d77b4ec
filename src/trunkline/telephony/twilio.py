"""Twilio: places, follows and ends calls over its REST API, verifies webhooks, answers with TwiML."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import quote

from trunkline.clock import Clock, SystemClock
from trunkline.telephony.callbacks import CallbackKeys, tag_of
from trunkline.telephony.carrier import (
    Accepted,
    AlreadyOver,
    CallbackTag,
    CallOrder,
    CallView,
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
from trunkline.telephony.costs import cost_of
from trunkline.telephony.events import accept_event
from trunkline.telephony.forms import json_object, whole, write_form
from trunkline.telephony.http_exchange import Dialect, HttpReply, classify, why
from trunkline.telephony.listing import ACCOUNT_PAGES_MAX, whole_list
from trunkline.telephony.media import is_carriers_own
from trunkline.telephony.own_numbers import NumbersPage, read_all, rows_of, text_or_none
from trunkline.telephony.reply_rules import judge
from trunkline.telephony.retry_orders import ASK_AGAIN, SEND_AGAIN
from trunkline.telephony.session import CarrierSession, basic
from trunkline.telephony.twilio_signature import FORM, verified_fields
from trunkline.telephony.twilio_webhooks import END_REASONS, moment, read_event, state_of
from trunkline.telephony.twiml import TwilioDocuments

BASE_URL = "https://api.twilio.com"
STATUS_EVENTS = ("initiated", "ringing", "answered", "completed")
LIVE_STATUSES = ("queued", "ringing", "in-progress")
RING_TIMEOUT_MAX_S = 600
LIST_PAGE_SIZE = 1000
LIST_PAGES_MAX = 20

CODE_CALL_NOT_LIVE = 21220
# Where recordings are that only the account may fetch.
MEDIA_DOMAINS = ("twilio.com",)


class Twilio(TwilioDocuments):
    """One Twilio account or subaccount."""

    limits = Limits(
        starts_per_s=1.0,
        queues_excess=True,
        list_lag_s=60.0,
        looks_per_min=120,
        lists="live",
        prices_later=True,
    )
    terminal_statuses = frozenset(END_REASONS)

    def __init__(
        self,
        account_sid: str,
        auth_token: str,
        callback_keys: CallbackKeys,
        *,
        base_url: str = BASE_URL,
        # Webhooks are signed with the primary token; the previous one is accepted during a rotation.
        previous_auth_tokens: Sequence[str] = (),
        webhook_age_max_s: float = 86_400.0,
        clock: Clock | None = None,
        session: CarrierSession | None = None,
    ) -> None:
        self._account_sid = account_sid
        self._auth_tokens = (auth_token, *previous_auth_tokens)
        self._callback_keys = callback_keys
        self._base_url = base_url.rstrip("/")
        self._calls_url = f"{self._base_url}/2010-04-01/Accounts/{account_sid}/Calls"
        self._webhook_age_max_s = webhook_age_max_s
        self._clock = clock or SystemClock()
        self._authorization = basic(account_sid, auth_token)
        self._session = session or CarrierSession(self._authorization)

    async def place(self, order: CallOrder) -> PlaceResult:
        exchange = await self._session.post(
            f"{self._calls_url}.json", FORM, _create_form(order), order.send_by_boottime_s
        )
        return classify(exchange, DIALECT)

    async def hang_up(self, call_id: str, *, only_unanswered: bool = False) -> HangUpResult:
        status = "canceled" if only_unanswered else "completed"
        exchange = await self._session.post(self._call_url(call_id), FORM, f"Status={status}".encode())
        match exchange:
            case HttpReply(status=200):
                return HangUpAsked(str(json_object(exchange.body).get("status", "")))
            case HttpReply(status=404) if _error_code(exchange) is not None:
                return NoSuchCall()
            case HttpReply() if _error_code(exchange) == CODE_CALL_NOT_LIVE:
                return AlreadyOver()
            case _:
                return HangUpUnavailable(why(exchange))

    async def look_up(self, call_id: str) -> LookUpResult:
        exchange = await self._session.get(self._call_url(call_id))
        match exchange:
            case HttpReply(status=200):
                return _view(json_object(exchange.body)) or LookUpUnavailable("not a call")
            case HttpReply(status=404) if _error_code(exchange) is not None:
                return NoSuchCall()
            case _:
                return LookUpUnavailable(why(exchange))

    async def list_calls(self, to: str, from_: str, since: datetime) -> ListResult:
        """Two views: a queued call has no start time, so the filter by start time does not show it.

        The queue is read first. A call that leaves it in between is in the second view.
        """
        return await whole_list(self._views({"To": to, "From": from_}, since, LIST_PAGES_MAX))

    def account_calls(self, since: datetime) -> ListPages:
        return self._views({}, since, ACCOUNT_PAGES_MAX)

    async def live_calls(self, since: datetime) -> ListPages:
        """States in the order in which a call passes through them, so that none misses it."""
        for status in LIVE_STATUSES:
            async for page in self._pages(
                {"Status": status, "PageSize": str(LIST_PAGE_SIZE)}, LIST_PAGES_MAX
            ):
                yield page
                if isinstance(page, ListUnavailable):
                    return

    def ended_calls(self, since: datetime, until: datetime) -> ListPages:
        window = {"EndTime>": _instant(since), "EndTime<": _instant(until), "PageSize": str(LIST_PAGE_SIZE)}
        return self._pages(window, ACCOUNT_PAGES_MAX)

    async def own_numbers(self) -> NumbersResult:
        first = (
            f"/2010-04-01/Accounts/{self._account_sid}/IncomingPhoneNumbers.json?PageSize={LIST_PAGE_SIZE}"
        )
        return await read_all(
            lambda following: self._session.get(f"{self._base_url}/{(following or first).lstrip('/')}"),
            _numbers,
        )

    def parse_webhook(self, request: WebhookRequest) -> WebhookResult:
        fields = verified_fields(request, self._auth_tokens)
        if fields is None:
            return Forged("carrier signature wrong")
        tag = tag_of(request, self._callback_keys, self.name)
        if isinstance(tag, Forged):
            return tag
        return self._read(dict(fields), request, tag)

    def entry_url(self, url: str) -> str:
        return url

    def media_authorization(self, url: str) -> str | None:
        return self._authorization if is_carriers_own(url, self._base_url, MEDIA_DOMAINS) else None

    async def aclose(self) -> None:
        await self._session.aclose()

    def _read(self, fields: Mapping[str, str], request: WebhookRequest, tag: CallbackTag) -> WebhookResult:
        if "json" in request.headers.get("content-type", ""):
            fields = {name: str(value) for name, value in json_object(request.body).items()}
        return accept_event(read_event(fields, tag), tag, self._clock.now(), self._webhook_age_max_s)

    def _call_url(self, call_id: str) -> str:
        return f"{self._calls_url}/{quote(call_id, safe='')}.json"

    async def _views(self, wanted: Mapping[str, str], since: datetime, pages_max: int) -> ListPages:
        for view in ({"Status": "queued"}, {"StartTime>": _instant(since)}):
            async for page in self._pages({**wanted, **view, "PageSize": str(LIST_PAGE_SIZE)}, pages_max):
                if isinstance(page, ListUnavailable):
                    yield page
                    return
                yield [call for call in page if _is_since(call, since)]

    async def _pages(self, query: Mapping[str, str], pages_max: int) -> ListPages:
        """Follow the list to its end."""
        exchange = await self._session.get(f"{self._calls_url}.json", query)
        for _ in range(pages_max):
            page = (
                json_object(exchange.body)
                if isinstance(exchange, HttpReply) and exchange.status == 200
                else {}
            )
            rows = page.get("calls")
            if not isinstance(rows, list):
                yield ListUnavailable(why(exchange))
                return
            views = [_view(row) for row in rows]
            if None in views:
                yield ListUnavailable("a call that cannot be read")
                return
            yield [view for view in views if view]
            following = page.get("next_page_uri")
            if not following:
                return
            exchange = await self._session.get(f"{self._base_url}/{str(following).lstrip('/')}")
        yield ListUnavailable(f"more than {pages_max} pages")


def _create_form(order: CallOrder) -> bytes:
    form = [
        ("To", order.to),
        ("From", order.from_),
        ("Url", order.answer_url + ASK_AGAIN),
        ("Method", "POST"),
        ("StatusCallback", order.status_url + SEND_AGAIN),
        ("StatusCallbackMethod", "POST"),
        ("Timeout", str(min(order.ring_timeout_s, RING_TIMEOUT_MAX_S))),
        ("TimeLimit", str(order.time_limit_s)),
    ]
    if order.fallback_url:
        form += [("FallbackUrl", order.fallback_url + ASK_AGAIN), ("FallbackMethod", "POST")]
    if order.machine_url:
        form += [
            ("MachineDetection", "Enable"),
            ("AsyncAmd", "true"),
            ("AsyncAmdStatusCallback", order.machine_url + SEND_AGAIN),
        ]
    if order.recording_url:
        form += [("Record", "true"), ("RecordingStatusCallback", order.recording_url + SEND_AGAIN)]
    # One field per event. Twilio takes events joined by spaces as one unknown event and sends nothing.
    form += [("StatusCallbackEvent", event) for event in STATUS_EVENTS]
    return write_form(form)


def _accepted(reply: HttpReply) -> Accepted | None:
    call = json_object(reply.body)
    sid = call.get("sid")
    if not isinstance(sid, str) or not sid:
        return None
    return Accepted(sid, whole(call.get("queue_time")) or 0)


def _refused(reply: HttpReply) -> Rejected | Throttled | None:
    code = _error_code(reply)
    return None if code is None else judge("twilio", reply.status, str(code))


def _instant(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


DIALECT = Dialect(accepted=_accepted, refused=_refused)


def _error_code(reply: HttpReply) -> int | None:
    """Twilio's own error body has a number for a code and a message."""
    body = json_object(reply.body)
    code = body.get("code")
    return code if isinstance(code, int) and "message" in body else None


def _view(call: object) -> CallView | None:
    if not isinstance(call, dict) or not isinstance(call.get("sid"), str):
        return None
    status = str(call.get("status", ""))
    state = state_of(status)
    if state is None:
        return None
    return CallView(
        call_id=call["sid"],
        to=str(call.get("to", "")),
        from_=str(call.get("from", "")),
        status=status,
        state=state,
        reason=END_REASONS.get(status),
        created_at=moment(call.get("date_created")),
        started_at=moment(call.get("start_time")),
        ended_at=moment(call.get("end_time")),
        duration_s=whole(call.get("duration")),
        direction="inbound" if call.get("direction") == "inbound" else "outbound",
        cost=cost_of(call.get("price"), call.get("price_unit")),
    )


def _numbers(body: bytes) -> NumbersPage | None:
    page = json_object(body)
    rows = rows_of(page, "incoming_phone_numbers")
    if rows is None:
        return None
    # A number for messages alone cannot call.
    voice = [row for row in rows if (row.get("capabilities") or {}).get("voice") is not False]
    return NumbersPage(
        [str(row.get("phone_number")) for row in voice], text_or_none(page.get("next_page_uri"))
    )


def _is_since(call: CallView, since: datetime) -> bool:
    began = call.started_at or call.created_at
    # Whole seconds: a call of 12:00:00.7 is written as 12:00:00.
    return began is None or began >= since.replace(microsecond=0)
