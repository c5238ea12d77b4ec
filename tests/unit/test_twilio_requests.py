"""What we ask of Twilio, and what we make of its list."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from uuid import uuid4

import pytest

from trunkline.http.connections import CarrierSession, Exchange, HttpReply, ReplyLost
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.carrier import Accepted, CallOrder, ListResult, Unavailable
from trunkline.telephony.carrier_registry import CarrierAccount
from trunkline.telephony.twilio import LIST_PAGES_MAX, Twilio

SINCE = datetime(2025, 11, 15, 8, 0, 0, 700_000, tzinfo=UTC)
CALL = {
    "sid": "CA1",
    "to": "+1",
    "from": "+2",
    "status": "completed",
    "start_time": "Sat, 15 Nov 2025 08:00:00 +0000",
}


class Scripted(CarrierSession):
    """Answers with what the test gives it, and keeps what it was asked."""

    def __init__(self, answer: Callable[[str, Mapping[str, str]], Exchange]) -> None:
        super().__init__("Basic none")
        self._answer = answer
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.sent: list[tuple[str, bytes, float | None]] = []

    async def get(self, url: str, query: Mapping[str, str] | None = None) -> Exchange:
        given = dict(parse_qsl(urlsplit(url).query)) | dict(query or {})
        self.asked.append((url, given))
        return self._answer(url, given)

    async def post(
        self, url: str, content_type: str, body: bytes, send_by_boottime_s: float | None = None
    ) -> Exchange:
        self.sent.append((url, body, send_by_boottime_s))
        return self._answer(url, {})


def page(*calls: Mapping[str, Any], following: str | None = None) -> HttpReply:
    return HttpReply(200, {}, json.dumps({"calls": calls, "next_page_uri": following}).encode())


def twilio(answer: Callable[[str, Mapping[str, str]], Exchange]) -> tuple[Twilio, Scripted]:
    session = Scripted(answer)
    keys = CallbackKeys.from_secrets(["secret"])
    account = CarrierAccount({"account_sid": "AC1", "auth_token": "token"}, keys, "https://api.example/")
    carrier = Twilio(account)
    carrier._session = session
    return carrier, session


async def listed(answer: Callable[[str, Mapping[str, str]], Exchange]) -> ListResult:
    return await twilio(answer)[0].list_calls("+1", "+2", SINCE)


async def test_a_call_is_ordered_with_one_field_per_event() -> None:
    carrier, session = twilio(lambda *_: HttpReply(201, {}, b'{"sid": "CA1"}'))
    order = CallOrder(
        uuid4(),
        "+1",
        "+2",
        "https://a/answer",
        "https://a/status",
        900,
        3600,
        12.5,
        fallback_url="https://b/answer",
    )
    assert await carrier.place(order) == Accepted("CA1")
    ((url, body, send_by),) = session.sent
    assert url == "https://api.example/2010-04-01/Accounts/AC1/Calls.json"
    assert send_by == 12.5
    assert parse_qsl(body.decode()) == [
        ("To", "+1"),
        ("From", "+2"),
        ("Url", "https://a/answer#ct=1500&rt=4000&tt=12000&rc=2&rp=all"),
        ("Method", "POST"),
        ("StatusCallback", "https://a/status#rc=5&rp=all"),
        ("StatusCallbackMethod", "POST"),
        ("Timeout", "600"),  # the most that Twilio takes
        ("TimeLimit", "3600"),
        ("FallbackUrl", "https://b/answer#ct=1500&rt=4000&tt=12000&rc=2&rp=all"),
        ("FallbackMethod", "POST"),
        ("StatusCallbackEvent", "initiated"),
        ("StatusCallbackEvent", "ringing"),
        ("StatusCallbackEvent", "answered"),
        ("StatusCallbackEvent", "completed"),
    ]


async def test_a_call_that_leaves_the_queue_between_two_list_queries_is_not_missed() -> None:
    seen = 0

    def answer(_url: str, query: Mapping[str, str]) -> Exchange:
        """Queued when first looked at, dialled ever after."""
        nonlocal seen
        seen += 1
        is_queued = seen == 1
        if "Status" in query:
            return page(CALL | {"status": "queued", "start_time": None}) if is_queued else page()
        return page() if is_queued else page(CALL | {"status": "ringing"})

    calls = await listed(answer)
    assert isinstance(calls, list)
    assert [(call.call_id, call.state) for call in calls] == [("CA1", "ringing")]


async def test_both_list_queries_filter_by_numbers_and_one_by_time() -> None:
    carrier, session = twilio(lambda *_: page())
    await carrier.list_calls("+1", "+2", SINCE)
    queries = [query for _, query in session.asked]
    assert all((query["To"], query["From"]) == ("+1", "+2") for query in queries)
    assert [query.get("StartTime>") for query in queries] == [None, "2025-11-15T08:00:00Z"]


@pytest.mark.parametrize(
    ("started", "is_kept"),
    [("Sat, 15 Nov 2025 08:00:00 +0000", True), ("Sat, 15 Nov 2025 07:59:59 +0000", False)],
)
async def test_whole_seconds_are_compared_with_whole_seconds(started: str, is_kept: bool) -> None:
    calls = await listed(lambda *_: page(CALL | {"start_time": started}))
    assert isinstance(calls, list)
    assert len(calls) == is_kept


async def test_pages_are_followed_on_our_own_base_url() -> None:
    def answer(url: str, query: Mapping[str, str]) -> Exchange:
        if "Status" in query:
            return page()
        return (
            page(CALL | {"sid": "CA2"}) if "PageToken" in url else page(CALL, following="/next?PageToken=1")
        )

    carrier, session = twilio(answer)
    calls = await carrier.list_calls("+1", "+2", SINCE)
    assert isinstance(calls, list)
    assert {call.call_id for call in calls} == {"CA1", "CA2"}
    assert session.asked[-1][0] == "https://api.example/next?PageToken=1"


BROKEN: dict[str, Callable[[str, Mapping[str, str]], Exchange]] = {
    "down": lambda *_: HttpReply(503, {}, b""),
    "lost": lambda *_: ReplyLost("TimeoutError"),
    "not JSON": lambda *_: HttpReply(200, {}, b"<html>"),
    "no calls": lambda *_: HttpReply(200, {}, b"{}"),
    "a call that is none": lambda *_: HttpReply(200, {}, b'{"calls": [7]}'),
    "a status not known": lambda *_: page(CALL | {"status": "sleeping"}),
    "a call without id": lambda *_: page({"status": "completed"}),
    "second page missing": lambda url, _: (
        page(CALL, following="/n") if "Calls" in url else HttpReply(500, {}, b"")
    ),
    "started view missing": lambda _, query: page() if "Status" in query else HttpReply(500, {}, b""),
    "pages without end": lambda *_: page(CALL, following="/again"),
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN.keys())
async def test_an_incomplete_list_is_unavailable(answer: Callable[..., Exchange]) -> None:
    assert isinstance(await listed(answer), Unavailable)


async def test_a_list_without_an_end_is_read_up_to_a_maximum_of_pages() -> None:
    carrier, session = twilio(lambda *_: page(CALL, following="/again"))
    await carrier.list_calls("+1", "+2", SINCE)
    assert len(session.asked) == LIST_PAGES_MAX + 1
