"""Plivo: places, follows and ends calls over its REST API, verifies webhooks, answers with Plivo XML."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeGuard
from urllib.parse import parse_qsl, quote, urlsplit

import msgspec

from trunkline.clock import Clock, SystemClock
from trunkline.telephony.callbacks import CallbackKeys, tag_of
from trunkline.telephony.carrier import (
    Accepted,
    AlreadyOver,
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
from trunkline.telephony.events import accept_event
from trunkline.telephony.forms import JSON, json_object
from trunkline.telephony.http_exchange import Dialect, Exchange, HttpReply, classify, why
from trunkline.telephony.listing import ACCOUNT_PAGES_MAX, whole_list
from trunkline.telephony.media import is_carriers_own
from trunkline.telephony.own_numbers import NumbersPage, read_all, rows_of, text_or_none
from trunkline.telephony.plivo_records import ended_view, live_view
from trunkline.telephony.plivo_signature import verified_fields
from trunkline.telephony.plivo_webhooks import END_REASONS, e164, read_event
from trunkline.telephony.plivo_xml import PlivoDocuments
from trunkline.telephony.reply_rules import judge
from trunkline.telephony.retry_orders import ASK_AGAIN, SEND_AGAIN
from trunkline.telephony.session import CarrierSession, basic

BASE_URL = "https://api.plivo.com"
# The largest page size of Plivo's lists.
LIST_PAGE_SIZE = 20
LIST_PAGES_MAX = 50
# Queued calls are listed by id alone, and each takes a query. More than these take too long.
QUEUED_MAX = 200
TIME_LIMIT_MAX_S = 86_400
# Where recordings are that only the account may fetch.
MEDIA_DOMAINS = ("plivo.com",)


class Plivo(PlivoDocuments):
    """One Plivo account or subaccount."""

    # An account may send 3,600 requests a minute.
    limits = Limits(starts_per_s=2.0, queues_excess=True, list_lag_s=120.0, looks_per_min=600, lists="none")
    terminal_statuses = frozenset(END_REASONS)

    def __init__(
        self,
        auth_id: str,
        auth_token: str,
        callback_keys: CallbackKeys,
        *,
        base_url: str = BASE_URL,
        # The previous token during a rotation, and the main account's if this is a subaccount.
        other_auth_tokens: Sequence[str] = (),
        clock: Clock | None = None,
        session: CarrierSession | None = None,
    ) -> None:
        self._auth_tokens = (auth_token, *other_auth_tokens)
        self._callback_keys = callback_keys
        self._account_url = f"{base_url.rstrip('/')}/v1/Account/{auth_id}"
        self._base_url = base_url.rstrip("/")
        self._clock = clock or SystemClock()
        self._authorization = basic(auth_id, auth_token)
        self._session = session or CarrierSession(self._authorization)

    async def place(self, order: CallOrder) -> PlaceResult:
        exchange = await self._session.post(
            f"{self._account_url}/Call/", JSON, _create_body(order), order.send_by_boottime_s
        )
        return classify(exchange, DIALECT)

    async def hang_up(self, call_id: str, *, only_unanswered: bool = False) -> HangUpResult:
        """Cancelling the request does not affect an answered call; deleting the call hangs it up."""
        what = "Request" if only_unanswered else "Call"
        exchange = await self._session.delete(f"{self._account_url}/{what}/{_safe(call_id)}/")
        match exchange:
            case HttpReply(status=204 | 200 | 202):
                return HangUpAsked("")
            case HttpReply(status=404) if _error(exchange) is not None:
                return _nothing_to_hang_up(await self.look_up(call_id), only_unanswered)
            case _:
                return HangUpUnavailable(why(exchange))

    async def look_up(self, call_id: str) -> LookUpResult:
        """Three views, in the order in which a call passes through them, so that none misses it."""
        for status in ("queued", "live", ""):
            exchange = await self._session.get(
                self._call_url(call_id), {"status": status} if status else None
            )
            match exchange:
                case HttpReply(status=200):
                    row = json_object(exchange.body)
                    return (live_view(row) if status else ended_view(row)) or LookUpUnavailable("not a call")
                case HttpReply(status=404) if _error(exchange) is not None:
                    continue
                case _:
                    return LookUpUnavailable(why(exchange))
        return NoSuchCall()

    async def list_calls(self, to: str, from_: str, since: datetime) -> ListResult:
        """The same three views. Ended calls can be filtered by the time of their end only. Filters match prefixes of
        numbers too, and queued calls have none."""
        pair = {"to_number": to.lstrip("+"), "from_number": from_.lstrip("+")}
        listed = await whole_list(self._views(pair, since, LIST_PAGES_MAX, QUEUED_MAX))
        if isinstance(listed, ListUnavailable):
            return listed
        return [call for call in listed if (call.to, call.from_) == (to, from_)]

    def account_calls(self, since: datetime) -> ListPages:
        return self._views({}, since, ACCOUNT_PAGES_MAX, ACCOUNT_PAGES_MAX)

    def live_calls(self, since: datetime) -> ListPages:
        return self.account_calls(since)

    def ended_calls(self, since: datetime, until: datetime) -> ListPages:
        return self.account_calls(since)

    async def own_numbers(self) -> NumbersResult:
        first = f"{self._account_url}/Number/?limit={LIST_PAGE_SIZE}&offset=0"
        return await read_all(
            lambda following: self._session.get(
                f"{self._base_url}/{following.lstrip('/')}" if following else first
            ),
            _numbers,
        )

    def parse_webhook(self, request: WebhookRequest) -> WebhookResult:
        fields = verified_fields(request, self._auth_tokens)
        if fields is None:
            return Forged("carrier signature wrong")
        tag = tag_of(request, self._callback_keys, self.name)
        if isinstance(tag, Forged):
            return tag
        return accept_event(read_event(dict(fields), tag), tag, self._clock.now())

    def entry_url(self, url: str) -> str:
        return url

    def media_authorization(self, url: str) -> str | None:
        return self._authorization if is_carriers_own(url, self._base_url, MEDIA_DOMAINS) else None

    async def aclose(self) -> None:
        await self._session.aclose()

    def _call_url(self, call_id: str) -> str:
        return f"{self._account_url}/Call/{_safe(call_id)}/"

    async def _views(
        self, wanted: Mapping[str, str], since: datetime, pages_max: int, waiting_max: int
    ) -> ListPages:
        for status in ("queued", "live"):
            query = {**(wanted if status == "live" else {}), "status": status}
            page = await self._waiting(query, waiting_max)
            if isinstance(page, ListUnavailable):
                yield page
                return
            yield [call for call in page if _is_since(call, since)]
        async for page in self._ended(wanted, since, pages_max):
            yield (
                page
                if isinstance(page, ListUnavailable)
                else [call for call in page if _is_since(call, since)]
            )

    async def _waiting(self, query: Mapping[str, str], most: int) -> ListResult:
        """Queued or live calls: their ids first, then a query for each."""
        status = query["status"]
        ids = await self._ids(query, most)
        if isinstance(ids, ListUnavailable):
            return ids
        views = []
        for call_id in ids:
            exchange = await self._session.get(self._call_url(call_id), {"status": status})
            if isinstance(exchange, HttpReply) and exchange.status == 404 and _error(exchange) is not None:
                continue  # it has moved on, into a view that is read later
            view = live_view(json_object(exchange.body)) if _is_ok(exchange) else None
            if view is None:
                return ListUnavailable(f"a {status} call that cannot be read: {why(exchange)}")
            views.append(view)
        return views

    async def _ids(self, query: Mapping[str, str], most: int) -> list[str] | ListUnavailable:
        ids: dict[str, None] = {}
        while len(ids) <= most:
            paging = {"limit": str(LIST_PAGE_SIZE), "offset": str(len(ids))}
            exchange = await self._session.get(f"{self._account_url}/Call/", {**query, **paging})
            calls = json_object(exchange.body).get("calls") if _is_ok(exchange) else None
            if not isinstance(calls, list) or not all(isinstance(call, str) for call in calls):
                return ListUnavailable(why(exchange))
            new = [call for call in calls if call not in ids]
            ids |= dict.fromkeys(new)
            # Not every list of ids is paged: a page with nothing new, or a short one, is the last.
            if not new or len(calls) < LIST_PAGE_SIZE:
                return list(ids)
        return ListUnavailable(f"more than {most} calls")

    async def _ended(self, wanted: Mapping[str, str], since: datetime, pages_max: int) -> ListPages:
        query: dict[str, str] = {
            **wanted,
            "end_time__gte": f"{since.astimezone(UTC):%Y-%m-%d %H:%M:%S}",
            "limit": str(LIST_PAGE_SIZE),
            "offset": "0",
        }
        for _ in range(pages_max):
            exchange = await self._session.get(f"{self._account_url}/Call/", query)
            page = json_object(exchange.body) if _is_ok(exchange) else {}
            rows, meta = page.get("objects"), page.get("meta")
            if not isinstance(rows, list) or not isinstance(meta, dict):
                yield ListUnavailable(why(exchange))
                return
            views = [ended_view(row) for row in rows]
            if None in views:
                yield ListUnavailable("a call that cannot be read")
                return
            yield [view for view in views if view]
            following = meta.get("next")
            if not following:
                return
            query = dict(parse_qsl(urlsplit(str(following)).query))
        yield ListUnavailable(f"more than {pages_max} pages")


def _create_body(order: CallOrder) -> bytes:
    body: dict[str, Any] = {
        "from": order.from_.lstrip("+"),
        "to": order.to.lstrip("+"),
        "answer_url": order.answer_url + ASK_AGAIN,
        "answer_method": "POST",
        "ring_url": order.status_url + SEND_AGAIN,
        "ring_method": "POST",
        # Without it Plivo would send the end to the answer URL.
        "hangup_url": order.status_url + SEND_AGAIN,
        "hangup_method": "POST",
        "ring_timeout": order.ring_timeout_s,
        "time_limit": min(order.time_limit_s, TIME_LIMIT_MAX_S),
    }
    if order.fallback_url:
        body |= {"fallback_url": order.fallback_url + ASK_AGAIN, "fallback_method": "POST"}
    if order.machine_url:
        body |= {
            "machine_detection": "true",
            "machine_detection_url": order.machine_url + SEND_AGAIN,
            "machine_detection_method": "POST",
        }
    return msgspec.json.encode(body)


def _accepted(reply: HttpReply) -> Accepted | None:
    request_id = json_object(reply.body).get("request_uuid")
    return Accepted(request_id) if isinstance(request_id, str) and request_id else None


def _refused(reply: HttpReply) -> Rejected | Throttled | None:
    error = _error(reply)
    return None if error is None else judge("plivo", reply.status, str(reply.status), error)


DIALECT = Dialect(accepted=_accepted, refused=_refused)


def _error(reply: HttpReply) -> str | None:
    """Plivo's own errors have `error`, a sentence or an object, and the id of the request."""
    body = json_object(reply.body)
    error = body.get("error")
    return None if error is None or "api_id" not in body else str(error)


def _is_ok(exchange: Exchange) -> TypeGuard[HttpReply]:
    return isinstance(exchange, HttpReply) and exchange.status == 200


def _is_since(call: CallView, since: datetime) -> bool:
    return call.created_at is None or call.created_at >= since.replace(microsecond=0)


def _nothing_to_hang_up(seen: LookUpResult, only_unanswered: bool) -> HangUpResult:
    match seen:
        case CallView(state="ended"):
            return AlreadyOver()
        case CallView(state="answered", status=status) if only_unanswered:
            return HangUpAsked(status)  # it was answered, and answered calls are to go on
        case CallView(status=status):
            return HangUpUnavailable(f"still {status}")
        case NoSuchCall():
            return seen
        case LookUpUnavailable(reason=reason):
            return HangUpUnavailable(reason)


def _safe(call_id: str) -> str:
    # An empty id would address every call of the account.
    return quote(call_id, safe="") or "-"


def _numbers(body: bytes) -> NumbersPage | None:
    page = json_object(body)
    rows, meta = rows_of(page, "objects"), page.get("meta")
    if rows is None or not isinstance(meta, dict):
        return None
    # A number for messages alone cannot call.
    voice = [row for row in rows if row.get("voice_enabled") is not False]
    return NumbersPage([e164(str(row.get("number"))) for row in voice], text_or_none(meta.get("next")))
