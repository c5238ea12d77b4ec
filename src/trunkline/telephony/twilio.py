"""Twilio: places, follows and ends calls over its REST API, verifies webhooks, answers with TwiML."""

from collections.abc import Mapping
from datetime import UTC, datetime

from trunkline.clock import Clock
from trunkline.http.connections import HttpReply, basic
from trunkline.telephony.carrier import (
    Accepted,
    AlreadyOver,
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
    NoSuchCall,
    PlaceResult,
    Unavailable,
    WebhookRequest,
    WebhookResult,
)
from trunkline.telephony.carrier_registry import CarrierAccount
from trunkline.telephony.forms import FORM, cost_of, json_object, whole, write_form
from trunkline.telephony.http_carrier import (
    ACCOUNT_PAGES_MAX,
    CarrierError,
    HttpCarrier,
    ListPage,
    calls_since,
    chained,
    quoted,
    rows_of,
    unavailable,
    whole_list,
    with_query,
)
from trunkline.telephony.twilio_webhooks import STATUSES, moment, read_event, verified_fields
from trunkline.telephony.xml_documents import ASK_AGAIN, SEND_AGAIN, XmlDocuments, redirect, verb

# One field per event. Twilio takes events joined by spaces as one unknown event and sends nothing.
STATUS_EVENTS = [
    ("StatusCallbackEvent", event) for event in ("initiated", "ringing", "answered", "completed")
]
LIVE_STATUSES = ("queued", "ringing", "in-progress")
RING_TIMEOUT_MAX_S = 600
LIST_PAGE_SIZE = 1000
LIST_PAGES_MAX = 20

CODE_CALL_NOT_LIVE = "21220"


class TwilioDocuments(XmlDocuments):
    name = "twilio"
    declaration = '<?xml version="1.0" encoding="UTF-8"?>'
    speak, wait = "Say", "Pause"
    ask_again = ASK_AGAIN

    def answer_document(
        self, stream_url: str, parameters: Mapping[str, str], then_url: str = "", status_url: str = ""
    ) -> Document:
        """Connect the call to a socket, both ways. Twilio refuses a query string here (31920): use parameters.

        When the socket closes, or never opened, Twilio goes on with the next verb; without one it hangs up.
        """
        told = (
            {"statusCallback": status_url + SEND_AGAIN, "statusCallbackMethod": "POST"} if status_url else {}
        )
        named = [verb("Parameter", name=name, value=value) for name, value in parameters.items()]
        connect = verb("Connect", "", verb("Stream", "", *named, url=stream_url, **told))
        return self.document(connect, *([redirect(then_url + ASK_AGAIN)] if then_url else []))

    def reject_document(self) -> Document:
        """Busy, and not billed: Twilio does not answer a call whose first verb is this one."""
        return self.document(verb("Reject", reason="busy"))

    def redirect_document(self, to: str) -> Document:
        return self.document(verb("Dial", to))

    def redirect_sip(self, uri: str) -> Document:
        return self.document(verb("Dial", "", verb("Sip", uri)))


class Twilio(TwilioDocuments, HttpCarrier):
    """One Twilio account or subaccount."""

    api_url = "https://api.twilio.com"
    media_domains = ("twilio.com",)
    limits = Limits(
        starts_per_s=1.0,
        queues_excess=True,
        list_lag_s=60.0,
        looks_per_min=120,
        lists="live",
        prices_later=True,
    )
    terminal_statuses = frozenset(STATUSES.ended)

    def __init__(self, account: CarrierAccount, *, clock: Clock | None = None) -> None:
        sid, token = account.given("account_sid", "auth_token")
        super().__init__(account, basic(sid, token), clock)
        # Webhooks are signed with the primary token; the previous one is accepted during a rotation.
        self._auth_tokens = account.given("auth_token", "previous_auth_token")
        self._account_url = f"{self._base_url}/2010-04-01/Accounts/{sid}"
        self._calls_url = f"{self._account_url}/Calls.json"

    async def place(self, order: CallOrder) -> PlaceResult:
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
        form += STATUS_EVENTS
        body, send_by_s = write_form(form), order.send_by_boottime_s
        return self.classify(await self._session.post(self._calls_url, FORM, body, send_by_s))

    async def hang_up(self, call_id: str, *, only_unanswered: bool = False) -> HangUpResult:
        status = "canceled" if only_unanswered else "completed"
        exchange = await self._session.post(self._call_url(call_id), FORM, f"Status={status}".encode())
        if isinstance(exchange, HttpReply):
            if exchange.status == 200:
                return HangUpAsked(str(json_object(exchange.body).get("status", "")))
            error = self.error(exchange)
            if error and exchange.status == 404:
                return NoSuchCall()
            if error and error.code == CODE_CALL_NOT_LIVE:
                return AlreadyOver()
        return unavailable(exchange)

    async def look_up(self, call_id: str) -> LookUpResult:
        call = await self._fetch(self._call_url(call_id))
        return (_view(call) or Unavailable("not a call")) if isinstance(call, dict) else call

    async def list_calls(self, to: str, from_: str, since: datetime) -> ListResult:
        return await whole_list(self._views({"To": to, "From": from_}, since, LIST_PAGES_MAX))

    def account_calls(self, since: datetime) -> ListPages:
        return self._views({}, since, ACCOUNT_PAGES_MAX)

    def live_calls(self, since: datetime) -> ListPages:
        """States in the order in which a call passes through them, so that none misses it."""
        return chained(self._listed({"Status": status}, LIST_PAGES_MAX) for status in LIVE_STATUSES)

    def ended_calls(self, since: datetime, until: datetime) -> ListPages:
        return self._listed({"EndTime>": _instant(since), "EndTime<": _instant(until)}, ACCOUNT_PAGES_MAX)

    def _views(self, wanted: dict[str, str], since: datetime, pages_max: int) -> ListPages:
        """Two views: a queued call has no start time, so the filter by start time does not show it.

        The queue is read first. A call that leaves it in between is in the second view.
        """
        views = ({"Status": "queued"}, {"StartTime>": _instant(since)})
        listed = chained(self._listed(wanted | view, pages_max) for view in views)
        return calls_since(listed, since, lambda call: call.started_at or call.created_at)

    def _listed(self, query: dict[str, str], pages_max: int) -> ListPages:
        first = with_query(self._calls_url, query | {"PageSize": str(LIST_PAGE_SIZE)})
        return self._pages(first, self._read_calls, pages_max)

    def _read_calls(self, body: bytes) -> ListPage[CallView] | None:
        page = json_object(body)
        rows = page.get("calls")
        if not isinstance(rows, list):
            return None
        return ListPage([_view(row) for row in rows], self._next_url(page.get("next_page_uri")))

    def _numbers_url(self) -> str:
        return f"{self._account_url}/IncomingPhoneNumbers.json?PageSize={LIST_PAGE_SIZE}"

    def _read_numbers(self, body: bytes) -> ListPage[str] | None:
        page = json_object(body)
        rows = rows_of(page, "incoming_phone_numbers")
        if rows is None:
            return None
        # A number for messages alone cannot call.
        voice = [row for row in rows if (row.get("capabilities") or {}).get("voice") is not False]
        numbers = [str(row.get("phone_number")) for row in voice]
        return ListPage(numbers, self._next_url(page.get("next_page_uri")))

    def _call_url(self, call_id: str) -> str:
        return f"{self._account_url}/Calls/{quoted(call_id)}.json"

    def _read(self, request: WebhookRequest, tag: CallbackTag) -> WebhookResult:
        fields = verified_fields(request, self._auth_tokens)
        if fields is None:
            return Forged("carrier signature wrong")
        if "json" in request.headers.get("content-type", ""):
            fields = [(name, str(value)) for name, value in json_object(request.body).items()]
        return read_event(dict(fields), tag)

    @staticmethod
    def accepted(reply: HttpReply) -> Accepted | None:
        call = json_object(reply.body)
        sid = call.get("sid")
        if not isinstance(sid, str) or not sid:
            return None
        return Accepted(sid, whole(call.get("queue_time")) or 0)

    @staticmethod
    def error(reply: HttpReply) -> CarrierError | None:
        """Twilio's own error body has a number for a code and a message."""
        body = json_object(reply.body)
        code = body.get("code")
        is_theirs = isinstance(code, int) and "message" in body
        return CarrierError(str(code), str(body["message"])) if is_theirs else None


def _instant(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _view(call: object) -> CallView | None:
    if not isinstance(call, dict) or not isinstance(call.get("sid"), str):
        return None
    status = str(call.get("status", ""))
    state = STATUSES.state(status)
    if state is None:
        return None
    return CallView(
        call_id=call["sid"],
        to=str(call.get("to", "")),
        from_=str(call.get("from", "")),
        status=status,
        state=state,
        reason=STATUSES.ended.get(status),
        created_at=moment(str(call.get("date_created") or "")),
        started_at=moment(str(call.get("start_time") or "")),
        ended_at=moment(str(call.get("end_time") or "")),
        duration_s=whole(call.get("duration")),
        direction="inbound" if call.get("direction") == "inbound" else "outbound",
        cost=cost_of(call.get("price"), call.get("price_unit")),
    )
