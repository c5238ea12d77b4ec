"""What carriers with a REST API share: a session, what a reply to a dial proves, lists page by page, and the order in
which a webhook is verified and read. A carrier adds its dialect: URLs, fields, statuses and signature."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from trunkline.clock import Clock, SystemClock
from trunkline.http.connections import CarrierSession, Exchange, HttpReply, NotSent, ReplyLost, why
from trunkline.telephony.callbacks import verify_callback
from trunkline.telephony.carrier import (
    Accepted,
    Blame,
    CallbackTag,
    CallEvent,
    CallView,
    Forged,
    InDoubt,
    ListPages,
    ListResult,
    NoSuchCall,
    NumbersResult,
    PlaceResult,
    Rejected,
    Throttled,
    Unavailable,
    WebhookRequest,
    WebhookResult,
)
from trunkline.telephony.carrier_registry import CarrierAccount
from trunkline.telephony.forms import json_object
from trunkline.telephony.reply_rules import judge
from trunkline.value import replace

# For a 429 without a time. One second is the pace of the slowest account.
RETRY_AFTER_DEFAULT_S = 1.0
RETRY_AFTER_MAX_S = 3600.0
# Bounds a list that never ends. At 20 calls per page, the smallest page size of any carrier, that is a million calls.
ACCOUNT_PAGES_MAX = 50_000
NUMBER_PAGES_MAX = 50
EVENT_AGE_MAX_S = 86_400.0
# Clocks differ by less. An event further ahead is in another time zone than assumed.
EVENT_AHEAD_MAX_S = 60.0
# Twilio and Vapi reply 401 to wrong credentials, Exotel and Plivo may reply 403.
_UNAUTHORIZED = (401, 403)

T = TypeVar("T")
Row = dict[str, Any]


class CarrierError(NamedTuple):
    """An error in the carrier's own words."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """A row that cannot be read is None. `following` is the URL of the next page; empty after the last one."""

    rows: Sequence[T | None]
    following: str = ""


class HttpCarrier(ABC):
    """One account at a carrier. `Carrier` is the interface; a carrier adds what is missing here."""

    name: str
    api_url: ClassVar[str]
    # Where recordings are that only the account may fetch.
    media_domains: ClassVar[tuple[str, ...]] = ()

    def __init__(self, account: CarrierAccount, authorization: str, clock: Clock | None) -> None:
        self._callback_keys = account.callback_keys
        self._base_url = (account.base_url or self.api_url).rstrip("/")
        self._authorization = authorization
        self._clock = clock or SystemClock()
        self._session = CarrierSession(authorization, total_timeout_s=account.request_timeout_s)

    @staticmethod
    @abstractmethod
    def accepted(reply: HttpReply) -> Accepted | None:
        """None: the reply has no call."""

    @staticmethod
    @abstractmethod
    def error(reply: HttpReply) -> CarrierError | None:
        """None: this is not the carrier's own reply."""

    @abstractmethod
    def account_calls(self, since: datetime) -> ListPages: ...

    @abstractmethod
    def _numbers_url(self) -> str:
        """The first page of the account's numbers."""

    @abstractmethod
    def _read_numbers(self, body: bytes) -> ListPage[str] | None: ...

    @abstractmethod
    def _read(self, request: WebhookRequest, tag: CallbackTag) -> WebhookResult:
        """The event of a webhook, if the carrier sent it. `tag` is that of its URL."""

    @classmethod
    def classify(cls, exchange: Exchange) -> PlaceResult:
        """What a reply to a dial proves. The table is in `reply_rules`."""
        match exchange:
            case NotSent(reason, detail):
                blames: Blame = "network" if reason == "not_connected" else "nobody"
                return Rejected(reason, detail, retryable=True, blames=blames)
            case ReplyLost(reason):
                return InDoubt(reason)
            case HttpReply(status=429):
                return Throttled(retry_after_s(exchange, datetime.now(UTC)))
            case HttpReply(status=status) if 200 <= status < 300:
                return cls.accepted(exchange) or InDoubt(f"status {status} without a call id")
            case HttpReply(status=status) if 400 <= status < 500:
                return cls.refused(exchange) or InDoubt(f"status {status}, not in the carrier's words")
            case HttpReply(status=status):
                return InDoubt(f"status {status}")

    @classmethod
    def refused(cls, reply: HttpReply) -> Rejected | Throttled | None:
        error = cls.error(reply)
        return None if error is None else judge(cls.name, reply.status, error.code, error.message)

    def live_calls(self, since: datetime) -> ListPages:
        return self.account_calls(since)

    def ended_calls(self, since: datetime, until: datetime) -> ListPages:
        return self.account_calls(since)

    async def own_numbers(self) -> NumbersResult:
        """Every page, or none: in an incomplete list numbers would look as if they had been released. Also the cheapest
        check of an account's credentials."""
        numbers: dict[str, None] = {}
        async for page in self._pages(self._numbers_url(), self._read_numbers, NUMBER_PAGES_MAX):
            if isinstance(page, Unavailable):
                return page
            numbers |= dict.fromkeys(page)
        return list(numbers)

    def parse_webhook(self, request: WebhookRequest) -> WebhookResult:
        """The URL first: whoever does not know its secret is not challenged for a password. A URL that was made for one
        carrier is refused for another, and so are stale events, and outbound ones without an attempt."""
        tag = request.tag or verify_callback(request.url, self._callback_keys)
        if isinstance(tag, Forged):
            return tag
        if tag.carrier != self.name:
            return Forged("callback of another carrier")
        event = self._read(request, tag)
        if not isinstance(event, CallEvent):
            return event
        if event.attempt_id is None and event.direction == "outbound" and tag.kind != "inbound":
            return Forged("callback without its attempt")
        age_s = (self._clock.now() - event.at).total_seconds() if event.at else 0.0
        if age_s > EVENT_AGE_MAX_S:
            return Forged("stale")
        # Then the time of its arrival counts.
        return replace(event, at=None) if age_s < -EVENT_AHEAD_MAX_S else event

    def entry_url(self, url: str) -> str:
        return url

    def media_authorization(self, url: str) -> str | None:
        """For the API's own origin, or by HTTPS a host of the carrier's domains; never for a redirect's target."""
        try:
            wanted, api = urlsplit(url), urlsplit(self._base_url)
            is_api = (wanted.scheme, wanted.hostname, wanted.port) == (api.scheme, api.hostname, api.port)
        except ValueError:
            return None
        domains = tuple(f".{domain}" for domain in self.media_domains)
        is_media = wanted.scheme == "https" and (wanted.hostname or "").endswith(domains)
        return self._authorization if is_api or is_media else None

    async def aclose(self) -> None:
        await self._session.aclose()

    def _next_url(self, path: object) -> str:
        """Of a page, from the path that the page before names."""
        return f"{self._base_url}/{str(path).lstrip('/')}" if path else ""

    async def _fetch(
        self, url: str, query: Mapping[str, str] | None = None
    ) -> Row | NoSuchCall | Unavailable:
        exchange = await self._session.get(url, query)
        match exchange:
            case HttpReply(status=200):
                return json_object(exchange.body)
            case HttpReply(status=404) if self.error(exchange) is not None:
                return NoSuchCall()
            case _:
                return unavailable(exchange)

    async def _pages(
        self, url: str, read: Callable[[bytes], ListPage[T] | None], pages_max: int
    ) -> AsyncIterator[list[T] | Unavailable]:
        """Follow a list to its end."""
        exchange = await self._session.get(url)
        for _ in range(pages_max):
            body = ok_body(exchange)
            page = None if body is None else read(body)
            if page is None:
                yield unavailable(exchange)
                return
            if None in page.rows:
                yield Unavailable("a call that cannot be read")
                return
            yield [row for row in page.rows if row is not None]
            if not page.following:
                return
            exchange = await self._session.get(page.following)
        yield Unavailable(f"more than {pages_max} pages")


def ok_body(exchange: Exchange) -> bytes | None:
    return exchange.body if isinstance(exchange, HttpReply) and exchange.status == 200 else None


def unavailable(exchange: Exchange) -> Unavailable:
    status = exchange.status if isinstance(exchange, HttpReply) else None
    return Unavailable(why(exchange), is_unauthorized=status in _UNAUTHORIZED)


async def whole_list(pages: ListPages) -> ListResult:
    """All pages as one list, each call once with its last view. If a page is missing, the list is unavailable."""
    calls: dict[str, CallView] = {}
    async for page in pages:
        if isinstance(page, Unavailable):
            return page
        calls |= {call.call_id: call for call in page}
    return list(calls.values())


async def chained(lists: Iterable[ListPages]) -> ListPages:
    """One list after the other, until one is unavailable."""
    for pages in lists:
        async for page in pages:
            yield page
            if isinstance(page, Unavailable):
                return


async def calls_since(
    pages: ListPages, since: datetime, began: Callable[[CallView], datetime | None]
) -> ListPages:
    first = since.replace(microsecond=0)  # carriers write whole seconds: 12:00:00 for a call of 12:00:00.7
    async for page in pages:
        if isinstance(page, Unavailable):
            yield page
        else:
            yield [call for call in page if (at := began(call)) is None or at >= first]


def retry_after_s(reply: HttpReply, now: datetime) -> float:
    """Retry-After is seconds or an HTTP date."""
    text = reply.headers.get("retry-after", "").strip()
    try:
        is_number = text.replace(".", "", 1).isdecimal()
        seconds = float(text) if is_number else (parsedate_to_datetime(text) - now).total_seconds()
    except (ValueError, TypeError):
        return RETRY_AFTER_DEFAULT_S
    return min(max(seconds, 0.0), RETRY_AFTER_MAX_S)


def rows_of(body: Row, name: str) -> list[Row] | None:
    rows = body.get(name)
    is_table = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    return rows if is_table else None


def with_query(url: str, query: Mapping[str, str]) -> str:
    return f"{url}?{urlencode(query)}"


def quoted(call_id: str) -> str:
    return quote(call_id, safe="")
