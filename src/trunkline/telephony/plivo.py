"""Plivo: places, follows and ends calls over its REST API, verifies webhooks, answers with Plivo XML."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from trunkline.clock import Clock
from trunkline.http.connections import HttpReply, basic
from trunkline.moments import read_moment
from trunkline.telephony.carrier import (
    Accepted,
    AlreadyOver,
    CallbackTag,
    CallOrder,
    CallView,
    Direction,
    Document,
    EndReason,
    Forged,
    HangUpAsked,
    HangUpResult,
    Limits,
    ListPages,
    ListResult,
    LookUpResult,
    NoSuchCall,
    PlaceResult,
    Unavailable,
    WebhookRequest,
    WebhookResult,
)
from trunkline.telephony.carrier_registry import CarrierAccount
from trunkline.telephony.forms import JSON, cost_of, json_object, whole
from trunkline.telephony.http_carrier import (
    ACCOUNT_PAGES_MAX,
    CarrierError,
    HttpCarrier,
    ListPage,
    calls_since,
    chained,
    ok_body,
    quoted,
    rows_of,
    unavailable,
    whole_list,
    with_query,
)
from trunkline.telephony.plivo_webhooks import STATUSES, e164, read_event, verified_fields
from trunkline.telephony.reply_rules import our_fault
from trunkline.telephony.xml_documents import ASK_AGAIN, SEND_AGAIN, XmlDocuments, redirect, verb

# The audio format in both directions: the same as at Twilio, so agents need one format.
AUDIO = "audio/x-mulaw;rate=8000"
# The largest page size of Plivo's lists.
LIST_PAGE_SIZE = 20
LIST_PAGES_MAX = 50
# Queued calls are listed by id alone, and each takes a query. More than these take too long.
QUEUED_MAX = 200
TIME_LIMIT_MAX_S = 86_400


class PlivoDocuments(XmlDocuments):
    """Plivo takes retry orders only in certain URLs. Those of documents are not among them, so they have none."""

    name = "plivo"
    speak, wait = "Speak", "Wait"

    def answer_document(
        self, stream_url: str, parameters: Mapping[str, str], then_url: str = "", status_url: str = ""
    ) -> Document:
        """The URL is the element's text. Extra headers allow letters and digits only, so parameters go into the query.

        Because the call is kept alive, Plivo goes on with the next element when the stream ends.
        """
        url = with_query(stream_url, parameters) if parameters else stream_url
        told = {"statusCallbackUrl": status_url, "statusCallbackMethod": "POST"} if status_url else {}
        stream = verb("Stream", url, bidirectional="true", keepCallAlive="true", contentType=AUDIO, **told)
        return self.document(stream, *([redirect(then_url)] if then_url else []))

    def reject_document(self) -> Document:
        return self.document(verb("Hangup", reason="busy"))

    def redirect_document(self, to: str) -> Document:
        return self.document(verb("Dial", "", verb("Number", to.lstrip("+"))))

    def redirect_sip(self, uri: str) -> Document:
        return self.document(verb("Dial", "", verb("User", uri)))


class Plivo(PlivoDocuments, HttpCarrier):
    """One Plivo account or subaccount."""

    api_url = "https://api.plivo.com"
    media_domains = ("plivo.com",)
    # An account may send 3,600 requests a minute.
    limits = Limits(starts_per_s=2.0, queues_excess=True, list_lag_s=120.0, looks_per_min=600, lists="none")
    terminal_statuses = frozenset(STATUSES.ended)

    def __init__(self, account: CarrierAccount, *, clock: Clock | None = None) -> None:
        auth_id, token = account.given("auth_id", "auth_token")
        super().__init__(account, basic(auth_id, token), clock)
        self._auth_tokens = account.given("auth_token", "previous_auth_token", "main_auth_token")
        self._account_url = f"{self._base_url}/v1/Account/{auth_id}"
        self._calls_url = f"{self._account_url}/Call/"

    async def place(self, order: CallOrder) -> PlaceResult:
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
        content, send_by_s = msgspec.json.encode(body), order.send_by_boottime_s
        return self.classify(await self._session.post(self._calls_url, JSON, content, send_by_s))

    async def hang_up(self, call_id: str, *, only_unanswered: bool = False) -> HangUpResult:
        """Cancelling the request does not affect an answered call; deleting the call hangs it up."""
        what = "Request" if only_unanswered else "Call"
        exchange = await self._session.delete(f"{self._account_url}/{what}/{_safe(call_id)}/")
        match exchange:
            case HttpReply(status=204 | 200 | 202):
                return HangUpAsked("")
            case HttpReply(status=404) if self.error(exchange) is not None:
                return _nothing_to_hang_up(await self.look_up(call_id), only_unanswered)
            case _:
                return unavailable(exchange)

    async def look_up(self, call_id: str) -> LookUpResult:
        """Three views, in the order in which a call passes through them, so that none misses it."""
        for status in ("queued", "live", ""):
            row = await self._fetch(self._call_url(call_id), {"status": status} if status else None)
            if isinstance(row, dict):
                return (live_view(row) if status else ended_view(row)) or Unavailable("not a call")
            if isinstance(row, Unavailable):
                return row
        return NoSuchCall()

    async def list_calls(self, to: str, from_: str, since: datetime) -> ListResult:
        """The same three views. Ended calls can be filtered by the time of their end only. Filters match prefixes of
        numbers too, and queued calls have none."""
        pair = {"to_number": to.lstrip("+"), "from_number": from_.lstrip("+")}
        listed = await whole_list(self._views(pair, since, LIST_PAGES_MAX, QUEUED_MAX))
        if isinstance(listed, Unavailable):
            return listed
        return [call for call in listed if (call.to, call.from_) == (to, from_)]

    def account_calls(self, since: datetime) -> ListPages:
        return self._views({}, since, ACCOUNT_PAGES_MAX, ACCOUNT_PAGES_MAX)

    def _views(self, wanted: dict[str, str], since: datetime, pages_max: int, waiting_max: int) -> ListPages:
        since_utc = f"{since.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
        paging = {"limit": str(LIST_PAGE_SIZE), "offset": "0"}
        ended = with_query(self._calls_url, wanted | {"end_time__gte": since_utc} | paging)
        views = (
            self._waiting({"status": "queued"}, waiting_max),
            self._waiting(wanted | {"status": "live"}, waiting_max),
            self._pages(ended, self._read_ended, pages_max),
        )
        return calls_since(chained(views), since, lambda call: call.created_at)

    async def _waiting(self, query: dict[str, str], most: int) -> ListPages:
        """Queued or live calls: their ids first, then a query for each."""
        status = query["status"]
        ids = await self._ids(query, most)
        if isinstance(ids, Unavailable):
            yield ids
            return
        views = []
        for call_id in ids:
            row = await self._fetch(self._call_url(call_id), {"status": status})
            if isinstance(row, NoSuchCall):
                continue  # it has moved on, into a view that is read later
            view = live_view(row) if isinstance(row, dict) else None
            if view is None:
                reason = row.reason if isinstance(row, Unavailable) else "status 200"
                yield Unavailable(f"a {status} call that cannot be read: {reason}")
                return
            views.append(view)
        yield views

    async def _ids(self, query: dict[str, str], most: int) -> list[str] | Unavailable:
        ids: dict[str, None] = {}
        while len(ids) <= most:
            paging = {"limit": str(LIST_PAGE_SIZE), "offset": str(len(ids))}
            exchange = await self._session.get(self._calls_url, query | paging)
            calls = json_object(ok_body(exchange) or b"").get("calls")
            if not isinstance(calls, list) or not all(isinstance(call, str) for call in calls):
                return unavailable(exchange)
            new = [call for call in calls if call not in ids]
            ids |= dict.fromkeys(new)
            # Not every list of ids is paged: a page with nothing new, or a short one, is the last.
            if not new or len(calls) < LIST_PAGE_SIZE:
                return list(ids)
        return Unavailable(f"more than {most} calls")

    def _read_ended(self, body: bytes) -> ListPage[CallView] | None:
        page = json_object(body)
        rows, meta = page.get("objects"), page.get("meta")
        if not isinstance(rows, list) or not isinstance(meta, dict):
            return None
        following = parse_qsl(urlsplit(str(meta.get("next") or "")).query)
        next_url = f"{self._calls_url}?{urlencode(following)}" if meta.get("next") else ""
        return ListPage([ended_view(row) for row in rows], next_url)

    def _numbers_url(self) -> str:
        return f"{self._account_url}/Number/?limit={LIST_PAGE_SIZE}&offset=0"

    def _read_numbers(self, body: bytes) -> ListPage[str] | None:
        page = json_object(body)
        rows, meta = rows_of(page, "objects"), page.get("meta")
        if rows is None or not isinstance(meta, dict):
            return None
        # A number for messages alone cannot call.
        voice = [e164(str(row.get("number"))) for row in rows if row.get("voice_enabled") is not False]
        return ListPage(voice, self._next_url(meta.get("next")))

    def _call_url(self, call_id: str) -> str:
        return f"{self._calls_url}{_safe(call_id)}/"

    def _read(self, request: WebhookRequest, tag: CallbackTag) -> WebhookResult:
        fields = verified_fields(request, self._auth_tokens)
        return Forged("carrier signature wrong") if fields is None else read_event(dict(fields), tag)

    @staticmethod
    def accepted(reply: HttpReply) -> Accepted | None:
        request_id = json_object(reply.body).get("request_uuid")
        return Accepted(request_id) if isinstance(request_id, str) and request_id else None

    @staticmethod
    def error(reply: HttpReply) -> CarrierError | None:
        """Plivo's own errors have `error`, a sentence or an object, and the id of the request."""
        body = json_object(reply.body)
        error = body.get("error")
        return None if error is None or "api_id" not in body else CarrierError(str(reply.status), str(error))


def _nothing_to_hang_up(seen: LookUpResult, only_unanswered: bool) -> HangUpResult:
    match seen:
        case CallView(state="ended"):
            return AlreadyOver()
        case CallView(state="answered", status=status) if only_unanswered:
            return HangUpAsked(status)  # it was answered, and answered calls are to go on
        case CallView(status=status):
            return Unavailable(f"still {status}")
        case _:
            return seen


def _safe(call_id: str) -> str:
    # An empty id would address every call of the account.
    return quoted(call_id) or "-"


# Calls as the REST API shows them: queued and live ones by status, ended ones by the cause of their end.


def live_view(row: Mapping[str, Any]) -> CallView | None:
    status = str(row.get("call_status", ""))
    state = STATUSES.state(status)
    call_id = row.get("request_uuid") or row.get("call_uuid")
    if not isinstance(call_id, str) or state is None or state == "ended":
        return None
    return CallView(
        call_id=call_id,
        to=e164(str(row.get("to", ""))),
        from_=e164(str(row.get("from", ""))),
        status=status,
        state=state,
        created_at=read_moment(row.get("session_start"), UTC),
        direction=_direction(row.get("direction")),
    )


def ended_view(row: object) -> CallView | None:
    if not isinstance(row, dict) or not isinstance(row.get("call_uuid"), str):
        return None
    reason = _reason(row)
    return CallView(
        call_id=row["call_uuid"],
        to=e164(str(row.get("to_number", ""))),
        from_=e164(str(row.get("from_number", ""))),
        status=_STATUSES[reason],
        state="ended",
        reason=reason,
        fault=our_fault("plivo", str(row.get("hangup_cause_code") or "")),
        # In the console's time zone, with its offset. A time without an offset is ambiguous.
        created_at=read_moment(row.get("initiation_time")),
        ended_at=read_moment(row.get("end_time")),
        duration_s=whole(row.get("call_duration")) if reason == "completed" else None,
        direction=_direction(row.get("call_direction")),
        cost=cost_of(row.get("total_amount")),
    )


_STATUSES: Mapping[EndReason, str] = {
    "completed": "completed",
    "busy": "busy",
    "no_answer": "no-answer",
    "failed": "failed",
    "canceled": "cancel",
}


def _direction(word: object) -> Direction:
    return "inbound" if word == "inbound" else "outbound"


def _reason(row: Mapping[str, Any]) -> EndReason:
    """A record of a call has its cause, never its status: it was answered if it has an answer time."""
    if row.get("answer_time"):
        return "completed"
    cause = str(row.get("hangup_cause_name", "")).lower()
    if "busy" in cause:
        return "busy"
    if "no answer" in cause or "timeout" in cause:
        return "no_answer"
    return "canceled" if "cancel" in cause else "failed"
