"""Exotel: places and follows calls over its REST API; verifies webhooks by a secret in their URL and a password.

An answered call runs through a flow of the account (`app_id`). Its Voicebot applet requests the stream's URL from the
answer URL, and `CustomField` carries the signed attempt. There is no hang-up request: a call ends with its stream.
"""

import hmac
from collections.abc import Mapping
from datetime import datetime
from urllib.parse import urlencode, urlsplit, urlunsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from trunkline.clock import Clock
from trunkline.http.connections import HttpReply, basic
from trunkline.telephony.callbacks import basic_password, signed_attempt
from trunkline.telephony.carrier import (
    Accepted,
    AlreadyOver,
    AnswerFallback,
    CallbackTag,
    CallOrder,
    CallView,
    Document,
    Forged,
    HangUpResult,
    Limits,
    ListPages,
    ListResult,
    LookUpResult,
    NoSuchCall,
    PlaceResult,
    Rejected,
    Unavailable,
    Unreadable,
    WebhookRequest,
    WebhookResult,
)
from trunkline.telephony.carrier_registry import CarrierAccount, CarrierConfigError
from trunkline.telephony.exotel_webhooks import INDIA, STATUSES, Locale, read_event, with_legs
from trunkline.telephony.forms import FORM, JSON, fields_of, json_object, whole
from trunkline.telephony.http_carrier import (
    ACCOUNT_PAGES_MAX,
    CarrierError,
    HttpCarrier,
    ListPage,
    calls_since,
    quoted,
    rows_of,
    whole_list,
    with_query,
)

FLOW_URL = "http://my.exotel.com/{sid}/exoml/start_voice/{app_id}"
BASIC_USER = "trunkline"
TIME_LIMIT_MAX_S = 14_400
LIST_PAGE_SIZE = 100
LIST_PAGES_MAX = 20


class ExotelDocuments:
    """Responses to the Voicebot applet: the URL of a stream, or 503, and then the flow takes its other branch. No other
    carrier gets a 5xx: Exotel has no document that holds, speaks or hangs up."""

    name = "exotel"
    streams = True
    can_hold = False

    def answer_document(
        self, stream_url: str, parameters: Mapping[str, str], then_url: str = "", status_url: str = ""
    ) -> Document:
        """Up to three parameters and 256 characters reach the stream, in the query of its URL. After the stream the
        account's flow goes on with its next applet, without a request to the platform. Exotel reports no streams."""
        return _stream(with_query(stream_url, parameters) if parameters else stream_url)

    def hold_document(self, wait_s: int, again_url: str) -> Document:
        return _unavailable("please hold")

    def busy_document(self, message: str) -> Document:
        return _unavailable(message)

    def hang_up_document(self) -> Document:
        return _unavailable("over")

    def reject_document(self) -> Document:
        return _unavailable("busy")

    def redirect_document(self, to: str) -> Document:
        return _unavailable("busy")

    def fallback_document(self, fallback: AnswerFallback) -> Document:
        is_stream = fallback.url.startswith(("wss:", "ws:"))
        return _stream(fallback.url) if is_stream else _unavailable(fallback.message)


class Exotel(ExotelDocuments, HttpCarrier):
    """One Exotel account."""

    api_url = "https://api.exotel.com"
    media_domains = ("exotel.com", "exotel.in")
    # Dials and queries share 200 requests a minute; details of a call follow its end by minutes.
    limits = Limits(
        starts_per_s=200 / 60, queues_excess=False, list_lag_s=300.0, can_hang_up=False, looks_per_min=20
    )
    terminal_statuses = frozenset(STATUSES.ended)

    def __init__(self, account: CarrierAccount, *, clock: Clock | None = None) -> None:
        given = account.credentials
        super().__init__(account, basic(given["api_key"], given["api_token"]), clock)
        self._sid, self._app_id = given["sid"], given.get("app_id", "")
        self._calls_url = f"{self._base_url}/v1/Accounts/{self._sid}/Calls"
        self._passwords = [basic_password(self.name, account.name, key) for key in account.callback_keys.keys]
        self._asks_password = given.get("webhook_password") != "off"
        self._locale = Locale(_zone(given.get("time_zone", "")), given.get("country_code") or "91")

    async def place(self, order: CallOrder) -> PlaceResult:
        if not self._app_id:
            return Rejected(
                "refused", "no_app_id", retryable=True, blames="account", why="the account names no app_id"
            )
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
        url, body = f"{self._calls_url}/connect.json", urlencode(form).encode()
        return self.classify(await self._session.post(url, FORM, body, order.send_by_boottime_s))

    async def hang_up(self, call_id: str, *, only_unanswered: bool = False) -> HangUpResult:
        match await self.look_up(call_id):
            case CallView(state="ended"):
                return AlreadyOver()
            case NoSuchCall() as missing:
                return missing
            case _:
                return Unavailable("Exotel has no such request: the call ends with its stream")

    async def look_up(self, call_id: str) -> LookUpResult:
        found = await self._fetch(f"{self._calls_url}/{quoted(call_id)}.json")
        if not isinstance(found, dict):
            return found
        return self._view(found.get("Call")) or Unavailable("not a call")

    async def list_calls(self, to: str, from_: str, since: datetime) -> ListResult:
        """One view has every state. It can filter by the person's number and by the ExoPhone."""
        return await whole_list(self._listed({"From": to, "PhoneNumber": from_}, since, LIST_PAGES_MAX))

    def account_calls(self, since: datetime) -> ListPages:
        return self._listed({}, since, ACCOUNT_PAGES_MAX)

    def _listed(self, wanted: dict[str, str], since: datetime, pages_max: int) -> ListPages:
        view = {"DateCreated": f"gte:{self._locale.local(since)}", "PageSize": str(LIST_PAGE_SIZE)}
        first = with_query(f"{self._calls_url}.json", wanted | view)
        return calls_since(
            self._pages(first, self._read_calls, pages_max), since, lambda call: call.created_at
        )

    def _read_calls(self, body: bytes) -> ListPage[CallView] | None:
        page = json_object(body)
        rows, metadata = page.get("Calls"), page.get("Metadata")
        if not isinstance(rows, list) or not isinstance(metadata, dict):
            return None
        return ListPage([self._view(row) for row in rows], self._next_url(metadata.get("NextPageUri")))

    def _numbers_url(self) -> str:
        return f"{self._base_url}/v2_beta/Accounts/{self._sid}/IncomingPhoneNumbers"

    def _read_numbers(self, body: bytes) -> ListPage[str] | None:
        """The URL of the next page is at another host of Exotel's: only its query is used."""
        page = json_object(body)
        rows = rows_of(page, "incoming_phone_numbers")
        if rows is None:
            return None
        following = page.get("next_page_uri")
        next_url = f"{self._numbers_url()}?{urlsplit(str(following)).query}" if following else ""
        return ListPage([self._locale.e164(str(row.get("phone_number"))) for row in rows], next_url)

    def entry_url(self, url: str) -> str:
        if not self._asks_password:
            return url
        parts = urlsplit(url)
        return urlunsplit(parts._replace(netloc=f"{BASIC_USER}:{self._passwords[0]}@{parts.netloc}"))

    def _read(self, request: WebhookRequest, tag: CallbackTag) -> WebhookResult:
        if not self._is_password_right(request):
            return Forged("password missing or wrong", status=401)
        fields = fields_of(request)
        if fields is None:
            return Unreadable("not a form")
        return read_event(with_legs(fields, request.body), tag, self._callback_keys, self._locale)

    def _is_password_right(self, request: WebhookRequest) -> bool:
        if not self._asks_password:
            return True
        given = request.headers.get("authorization", "").encode()
        matches = [
            hmac.compare_digest(basic(BASIC_USER, password).encode(), given) for password in self._passwords
        ]
        return any(matches)

    def _view(self, call: object) -> CallView | None:
        if not isinstance(call, dict) or not isinstance(call.get("Sid"), str):
            return None
        status = str(call.get("Status", ""))
        state = STATUSES.state(status)
        if state is None:
            return None
        is_answered = status == "completed"
        return CallView(
            call_id=call["Sid"],
            to=self._locale.e164(str(call.get("From") or "")),
            from_=self._locale.e164(str(call.get("PhoneNumberSid") or "")),
            status=status,
            state=state,
            reason=STATUSES.ended.get(status),
            created_at=self._locale.moment(call.get("DateCreated")),
            started_at=self._locale.moment(call.get("StartTime")),
            ended_at=self._locale.moment(call.get("EndTime")),
            duration_s=whole(call.get("Duration")) if is_answered else None,
            direction="inbound" if str(call.get("Direction")).startswith("in") else "outbound",
        )

    @staticmethod
    def accepted(reply: HttpReply) -> Accepted | None:
        call = json_object(reply.body).get("Call")
        sid = call.get("Sid") if isinstance(call, dict) else None
        return Accepted(sid) if isinstance(sid, str) and sid else None

    @staticmethod
    def error(reply: HttpReply) -> CarrierError | None:
        error = json_object(reply.body).get("RestException")
        if not isinstance(error, dict) or "Status" not in error:
            return None
        return CarrierError(str(reply.status), str(error.get("Message", "")))


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name) if name else INDIA
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise CarrierConfigError(f"there is no time zone {name!r}") from error


def _stream(url: str) -> Document:
    return Document(JSON, msgspec.json.encode({"url": url}).decode())


def _unavailable(message: str) -> Document:
    """The applet takes the flow's other branch on anything but a 200."""
    return Document(JSON, msgspec.json.encode({"error": message}).decode(), status=503)
