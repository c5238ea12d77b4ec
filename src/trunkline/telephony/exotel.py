"""Exotel: places and follows calls over its REST API; verifies webhooks by a secret in their URL and a password.

An answered call runs through a flow of the account (`app_id`). Its Voicebot applet requests the stream's URL from the
answer URL, and `CustomField` carries the signed attempt. There is no hang-up request: a call ends with its stream.
"""

import hmac
from collections.abc import Mapping
from datetime import datetime
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from trunkline.clock import Clock, SystemClock
from trunkline.telephony.callbacks import (
    CallbackKeys,
    basic_password,
    signed_attempt,
    tag_of,
    verified_attempt,
)
from trunkline.telephony.carrier import (
    DEFAULT_ACCOUNT,
    Accepted,
    AlreadyOver,
    CallbackTag,
    CallEvent,
    CallOrder,
    CallView,
    Forged,
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
    Unreadable,
    WebhookRequest,
    WebhookResult,
)
from trunkline.telephony.events import accept_event
from trunkline.telephony.exotel_documents import ExotelDocuments
from trunkline.telephony.exotel_webhooks import END_REASONS, Locale, read_event, state_of, with_legs
from trunkline.telephony.forms import FORM, JSON, Fields, json_object, read_fields, read_query, whole
from trunkline.telephony.http_exchange import Dialect, HttpReply, classify, why
from trunkline.telephony.listing import ACCOUNT_PAGES_MAX, whole_list
from trunkline.telephony.media import is_carriers_own
from trunkline.telephony.own_numbers import NumbersPage, read_all, rows_of, text_or_none
from trunkline.telephony.reply_rules import judge
from trunkline.telephony.session import CarrierSession, basic
from trunkline.value import replace

BASE_URL = "https://api.exotel.com"
FLOW_URL = "http://my.exotel.com/{sid}/exoml/start_voice/{app_id}"
BASIC_USER = "trunkline"
TIME_LIMIT_MAX_S = 14_400
LIST_PAGE_SIZE = 100
LIST_PAGES_MAX = 20
# Where recordings are that only the account may fetch.
MEDIA_DOMAINS = ("exotel.com", "exotel.in")


class Exotel(ExotelDocuments):
    """One Exotel account."""

    # 200 requests a minute; details of a call follow its end by minutes.
    # Dials and queries share 200 requests a minute.
    limits = Limits(
        starts_per_s=200 / 60, queues_excess=False, list_lag_s=300.0, can_hang_up=False, looks_per_min=20
    )
    terminal_statuses = frozenset(END_REASONS)

    def __init__(
        self,
        sid: str,
        api_key: str,
        api_token: str,
        callback_keys: CallbackKeys,
        *,
        app_id: str = "",
        base_url: str = BASE_URL,
        account: str = DEFAULT_ACCOUNT,
        # False only for a flow that cannot send user name and password with its URLs.
        asks_password: bool = True,
        locale: Locale | None = None,
        clock: Clock | None = None,
        session: CarrierSession | None = None,
    ) -> None:
        self._sid = sid
        self._app_id = app_id
        self._callback_keys = callback_keys
        self._base_url = base_url.rstrip("/")
        self._calls_url = f"{self._base_url}/v1/Accounts/{sid}/Calls"
        self._passwords = [basic_password(self.name, account, key) for key in callback_keys.keys]
        self._asks_password = asks_password
        self._locale = locale or Locale()
        self._clock = clock or SystemClock()
        self._authorization = basic(api_key, api_token)
        self._session = session or CarrierSession(self._authorization)

    async def place(self, order: CallOrder) -> PlaceResult:
        if not self._app_id:
            return Rejected(
                "refused", "no_app_id", retryable=True, blames="account", why="the account names no app_id"
            )
        exchange = await self._session.post(
            f"{self._calls_url}/connect.json", FORM, self._create_form(order), order.send_by_boottime_s
        )
        return classify(exchange, DIALECT)

    async def hang_up(self, call_id: str, *, only_unanswered: bool = False) -> HangUpResult:
        match await self.look_up(call_id):
            case CallView(state="ended"):
                return AlreadyOver()
            case NoSuchCall() as missing:
                return missing
            case _:
                return HangUpUnavailable("Exotel has no such request: the call ends with its stream")

    async def look_up(self, call_id: str) -> LookUpResult:
        exchange = await self._session.get(f"{self._calls_url}/{quote(call_id, safe='')}.json")
        match exchange:
            case HttpReply(status=200):
                return self._view(json_object(exchange.body).get("Call")) or LookUpUnavailable("not a call")
            case HttpReply(status=404) if _error(exchange) is not None:
                return NoSuchCall()
            case _:
                return LookUpUnavailable(why(exchange))

    async def list_calls(self, to: str, from_: str, since: datetime) -> ListResult:
        """One view has every state. It can filter by the person's number and by the ExoPhone."""
        return await whole_list(self._pages({"From": to, "PhoneNumber": from_}, since, LIST_PAGES_MAX))

    def account_calls(self, since: datetime) -> ListPages:
        return self._pages({}, since, ACCOUNT_PAGES_MAX)

    async def _pages(self, wanted: Mapping[str, str], since: datetime, pages_max: int) -> ListPages:
        query = {
            **wanted,
            "DateCreated": f"gte:{self._locale.local(since)}",
            "PageSize": str(LIST_PAGE_SIZE),
        }
        exchange = await self._session.get(f"{self._calls_url}.json", query)
        for _ in range(pages_max):
            page = (
                json_object(exchange.body)
                if isinstance(exchange, HttpReply) and exchange.status == 200
                else {}
            )
            rows, metadata = page.get("Calls"), page.get("Metadata")
            if not isinstance(rows, list) or not isinstance(metadata, dict):
                yield ListUnavailable(why(exchange))
                return
            views = [self._view(row) for row in rows]
            if None in views:
                yield ListUnavailable("a call that cannot be read")
                return
            yield [view for view in views if view and _is_since(view, since)]
            following = metadata.get("NextPageUri")
            if not following:
                return
            exchange = await self._session.get(f"{self._base_url}/{str(following).lstrip('/')}")
        yield ListUnavailable(f"more than {pages_max} pages")

    def live_calls(self, since: datetime) -> ListPages:
        return self.account_calls(since)

    def ended_calls(self, since: datetime, until: datetime) -> ListPages:
        return self.account_calls(since)

    async def own_numbers(self) -> NumbersResult:
        """The URL of the next page is at another host of Exotel's: only its query is used."""
        url = f"{self._base_url}/v2_beta/Accounts/{self._sid}/IncomingPhoneNumbers"
        return await read_all(
            lambda following: self._session.get(f"{url}?{following}" if following else url), self._numbers
        )

    def _numbers(self, body: bytes) -> NumbersPage | None:
        page = json_object(body)
        rows = rows_of(page, "incoming_phone_numbers")
        if rows is None:
            return None
        following = text_or_none(page.get("next_page_uri"))
        numbers = [self._locale.e164(str(row.get("phone_number"))) for row in rows]
        return NumbersPage(numbers, urlsplit(following).query if following else None)

    def parse_webhook(self, request: WebhookRequest) -> WebhookResult:
        tag = tag_of(request, self._callback_keys, self.name)
        if isinstance(tag, Forged):
            return tag
        if not self._is_password_right(request):
            return Forged("password missing or wrong", status=401)
        fields = _fields(request)
        if fields is None:
            return Unreadable("not a form")
        return self._read(with_legs(fields, request.body), tag)

    def entry_url(self, url: str) -> str:
        if not self._asks_password:
            return url
        parts = urlsplit(url)
        return urlunsplit(parts._replace(netloc=f"{BASIC_USER}:{self._passwords[0]}@{parts.netloc}"))

    def media_authorization(self, url: str) -> str | None:
        return self._authorization if is_carriers_own(url, self._base_url, MEDIA_DOMAINS) else None

    async def aclose(self) -> None:
        await self._session.aclose()

    def _create_form(self, order: CallOrder) -> bytes:
        form = [
            ("From", order.to),
            ("CallerId", order.from_),
            ("Url", FLOW_URL.format(sid=self._sid, app_id=self._app_id)),
            ("CallType", "trans"),
            ("TimeLimit", str(min(order.time_limit_s, TIME_LIMIT_MAX_S))),
            ("TimeOut", str(order.ring_timeout_s)),
            ("CustomField", signed_attempt(order.attempt_id, self.name, self._callback_keys, order.agent)),
            ("StatusCallback", self.entry_url(order.status_url)),
            ("StatusCallbackEvents[]", "answered"),
            ("StatusCallbackEvents[]", "terminal"),
            ("StatusCallbackContentType", JSON),
        ]
        if order.recording_url:
            form.append(("Record", "true"))
        return urlencode(form).encode()

    def _is_password_right(self, request: WebhookRequest) -> bool:
        if not self._asks_password:
            return True
        given = request.headers.get("authorization", "").encode()
        matches = [
            hmac.compare_digest(basic(BASIC_USER, password).encode(), given) for password in self._passwords
        ]
        return any(matches)

    def _read(self, fields: Mapping[str, str], tag: CallbackTag) -> WebhookResult:
        kept = fields.get("CustomField", "")
        known = verified_attempt(kept, self.name, self._callback_keys)
        attempt_id = tag.attempt_id or (known.attempt_id if known else None)
        event = read_event(fields, tag, attempt_id, self._locale)
        if isinstance(event, CallEvent) and known and known.agent and known.attempt_id == attempt_id:
            event = replace(event, agent=known.agent)
        return accept_event(event, tag, self._clock.now())

    def _view(self, call: object) -> CallView | None:
        if not isinstance(call, dict) or not isinstance(call.get("Sid"), str):
            return None
        status = str(call.get("Status", ""))
        state = state_of(status)
        if state is None:
            return None
        is_answered = status == "completed"
        return CallView(
            call_id=call["Sid"],
            to=self._locale.e164(str(call.get("From") or "")),
            from_=self._locale.e164(str(call.get("PhoneNumberSid") or "")),
            status=status,
            state=state,
            reason=END_REASONS.get(status),
            created_at=self._locale.moment(call.get("DateCreated")),
            started_at=self._locale.moment(call.get("StartTime")),
            ended_at=self._locale.moment(call.get("EndTime")),
            duration_s=whole(call.get("Duration")) if is_answered else None,
            direction="inbound" if str(call.get("Direction")).startswith("in") else "outbound",
        )


def _fields(request: WebhookRequest) -> Fields | None:
    if request.method != "POST":
        return read_query(request.url)
    return read_fields(request.headers.get("content-type", ""), request.body)


def _accepted(reply: HttpReply) -> Accepted | None:
    call = json_object(reply.body).get("Call")
    sid = call.get("Sid") if isinstance(call, dict) else None
    return Accepted(sid) if isinstance(sid, str) and sid else None


def _refused(reply: HttpReply) -> Rejected | Throttled | None:
    error = _error(reply)
    return None if error is None else judge("exotel", reply.status, str(reply.status), error)


DIALECT = Dialect(accepted=_accepted, refused=_refused)


def _error(reply: HttpReply) -> str | None:
    error = json_object(reply.body).get("RestException")
    return str(error.get("Message", "")) if isinstance(error, dict) and "Status" in error else None


def _is_since(call: CallView, since: datetime) -> bool:
    return call.created_at is None or call.created_at >= since.replace(microsecond=0)
