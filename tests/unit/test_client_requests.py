"""The client against a stand-in for the API that answers as the test says."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from aiohttp import web

from trunkline.client import ApiError, FieldError, Health, Lead, Me, TrunklineClient, Unreachable
from trunkline.client import leads as client_module

LEAD_ID = "01980000-0000-7000-8000-000000000001"
LEAD: dict[str, Any] = {
    "id": LEAD_ID,
    "request_id": "order-1",
    "reseller_id": "acme",
    "merchant_id": "acme-store",
    "phone": "+14155550123",
    "timezone": None,
    "payload": {"name": "Ada"},
    "campaign_id": None,
    "pool": "main",
    "priority": 50,
    "status": "FINISHED",
    "outcome": "ANSWERED",
    "outcome_reason": None,
    "scheduled_at": "2030-05-01T07:30:00Z",
    "due_at": "2030-05-01T07:30:00Z",
    "attempt_count": 1,
    "max_attempts": 3,
    "no_agent_count": 0,
    "reporting_webhook_url": None,
    "version": 4,
    "created_at": "2030-04-30T12:00:00.123456Z",
    "updated_at": "2030-05-01T07:31:00Z",
    "finished_at": "2030-05-01T07:31:00Z",
    "cancel_requested_at": None,
    "cancel_reason": None,
}
ATTEMPT = {
    "id": "01980000-0000-7000-8000-000000000002",
    "attempt_no": 1,
    "state": "ended",
    "carrier": "twilio",
    "carrier_call_id": "CA1",
    "from_phone": "+14155550100",
    "intent_at": "2030-05-01T07:30:00.005Z",
    "accepted_at": "2030-05-01T07:30:00.100Z",
    "ringing_at": None,
    "answered_at": "2030-05-01T07:30:10Z",
    "ended_at": "2030-05-01T07:31:00Z",
    "end_reason": "completed",
    "duration_s": 50,
}

STORY: dict[str, Any] = {
    "attempts": [],
    "decisions": [
        {
            "reason": "window",
            "subject": None,
            "times": 2,
            "first_at": "2030-05-01T07:00:00Z",
            "last_at": "2030-05-01T07:10:00Z",
            "until": None,
        }
    ],
    "timeline": [
        {
            "at": "2030-04-30T12:00:00Z",
            "source": "lead",
            "what": "created",
            "attempt_id": None,
            "actor": None,
            "reason": None,
            "details": {},
        }
    ],
}

Answer = Callable[[web.Request], web.StreamResponse]


@dataclass
class Asked:
    method: str
    path: str
    query: dict[str, str]
    body: Any
    key: str


@dataclass
class Api:
    """Answers each request with the next of its answers; the last one is for all that follow."""

    url: str = ""
    answers: list[Answer] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)

    def answers_with(self, *answers: Answer) -> None:
        self.answers = list(answers)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        key = request.headers.get("Authorization", "")
        body = json.loads(text) if text else None
        self.asked.append(Asked(request.method, request.path, dict(request.query), body, key))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer(request)


def ok(body: Any, status: int = 200) -> Answer:
    return lambda request: web.json_response(body, status=status)


def hang_up(request: web.Request) -> web.StreamResponse:
    """The answer is lost on its way."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = Api()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield api
    await runner.cleanup()


@pytest.fixture
async def client(api: Api, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TrunklineClient]:
    monkeypatch.setattr(client_module, "LEAD_FIRST_WAIT_S", 0.001)
    async with TrunklineClient(api.url, "tl_key") as client:
        yield client


async def test_create_lead_sends_only_the_given_fields(api: Api, client: TrunklineClient) -> None:
    api.answers_with(ok(LEAD, 201))

    lead = await client.create_lead(
        phone="+14155550123",
        merchant_id="acme-store",
        request_id="order-1",
        payload={"name": "Ada"},
        scheduled_at=datetime(2030, 5, 1, 7, 30, tzinfo=UTC),
    )

    assert api.asked == [
        Asked(
            "POST",
            "/api/v1/leads",
            {},
            {
                "request_id": "order-1",
                "merchant_id": "acme-store",
                "phone": "+14155550123",
                "payload": {"name": "Ada"},
                "scheduled_at": "2030-05-01T07:30:00+00:00",
            },
            "Bearer tl_key",
        )
    ]
    assert lead.id == UUID(LEAD_ID)
    assert lead.created_at == datetime(2030, 4, 30, 12, 0, 0, 123456, UTC)
    assert (lead.status, lead.outcome, lead.payload) == ("FINISHED", "ANSWERED", {"name": "Ada"})
    assert "+14155550123" not in repr(lead)


@pytest.mark.parametrize("failure", [hang_up, ok({}, 502), ok({}, 503), ok({}, 504)])
async def test_a_lead_without_an_answer_is_sent_again_under_the_same_request_id(
    api: Api, client: TrunklineClient, failure: Answer
) -> None:
    api.answers_with(failure, failure, ok(LEAD))

    await client.create_lead(phone="+14155550123")

    assert len(api.asked) == 3
    assert len({asked.body["request_id"] for asked in api.asked}) == 1


async def test_two_leads_have_two_request_ids(api: Api, client: TrunklineClient) -> None:
    api.answers_with(ok(LEAD))
    await client.create_lead(phone="+14155550123")
    await client.create_lead(phone="+14155550123")
    assert len({asked.body["request_id"] for asked in api.asked}) == 2


async def test_create_lead_fails_after_its_tries(api: Api, client: TrunklineClient) -> None:
    api.answers_with(hang_up)
    with pytest.raises(Unreachable):
        await client.create_lead(phone="+14155550123")
    assert len(api.asked) == client_module.LEAD_TRIES


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 429, 500])
async def test_a_lead_that_was_refused_is_not_sent_again(
    api: Api, client: TrunklineClient, status: int
) -> None:
    api.answers_with(ok({"success": False, "error": "no", "code": "no", "request_id": "r"}, status))
    with pytest.raises(ApiError):
        await client.create_lead(phone="+14155550123")
    assert len(api.asked) == 1


@pytest.mark.parametrize(
    "write",
    [
        lambda client: client.create_reseller("acme", "Acme"),
        lambda client: client.create_merchant("acme-store", "Acme Store", reseller_id="acme"),
        lambda client: client.create_pool("main", "Main"),
        lambda client: client.create_number("+14155550100", pool="main", carrier="twilio", max_channels=2),
    ],
)
@pytest.mark.parametrize("failure", [hang_up, ok({}, 503)])
async def test_writes_other_than_create_lead_are_sent_once(
    api: Api, client: TrunklineClient, write: Callable[[TrunklineClient], Any], failure: Answer
) -> None:
    api.answers_with(failure)
    with pytest.raises((Unreachable, ApiError)):
        await write(client)
    assert len(api.asked) == 1


async def test_an_error_carries_everything_that_the_api_said(api: Api, client: TrunklineClient) -> None:
    api.answers_with(
        ok(
            {
                "success": False,
                "error": "The request is not valid. See fields.",
                "code": "invalid_request",
                "request_id": "req-1",
                "fields": [{"field": "phone", "error": "This is not a phone number."}],
            },
            422,
        )
    )

    with pytest.raises(ApiError) as caught:
        await client.create_lead(phone="soon")

    error = caught.value
    assert (error.status, error.code, error.request_id) == (422, "invalid_request", "req-1")
    assert error.message == "The request is not valid. See fields."
    assert error.fields == (FieldError("phone", "This is not a phone number."),)
    assert "phone: This is not a phone number." in str(error)
    assert "req-1" in str(error)


async def test_an_error_of_something_before_the_api_is_an_error_too(
    api: Api, client: TrunklineClient
) -> None:
    api.answers_with(
        lambda request: web.Response(status=413, text="<html>", headers={"X-Request-ID": "proxy-1"})
    )
    with pytest.raises(ApiError) as caught:
        await client.get_lead(LEAD_ID)
    assert (caught.value.status, caught.value.code, caught.value.request_id) == (413, "http_413", "proxy-1")


async def test_a_redirect_is_not_followed_with_the_key(api: Api, client: TrunklineClient) -> None:
    api.answers_with(lambda request: web.Response(status=302, headers={"Location": "/elsewhere"}))
    with pytest.raises(ApiError, match="http_302"):
        await client.me()
    assert len(api.asked) == 1


@pytest.mark.parametrize("body", [None, [], {}, LEAD | {"id": "not a uuid"}, LEAD | {"priority": "high"}])
async def test_a_malformed_response_is_not_taken_for_a_lead(
    api: Api, client: TrunklineClient, body: Any
) -> None:
    api.answers_with(ok(body))
    with pytest.raises(Unreachable):
        await client.get_lead(LEAD_ID)


async def test_a_lead_is_read_with_its_attempts(api: Api, client: TrunklineClient) -> None:
    api.answers_with(ok(LEAD | STORY | {"attempts": [ATTEMPT], "a_new_field": 1}))

    lead = await client.get_lead(LEAD_ID)

    assert isinstance(lead, Lead)
    [attempt] = lead.attempts
    assert (attempt.state, attempt.duration_s, attempt.ringing_at) == ("ended", 50, None)
    assert api.asked[0].path == f"/api/v1/leads/{LEAD_ID}"


async def test_an_id_cannot_lead_to_another_path(api: Api, client: TrunklineClient) -> None:
    api.answers_with(ok(LEAD | STORY))
    await client.get_lead("../me?x=1")
    assert api.asked[0].query == {}
    assert api.asked[0].path.startswith("/api/v1/leads/")


async def test_a_list_is_read_page_by_page_as_it_is_needed(api: Api, client: TrunklineClient) -> None:
    pages = [
        {"items": [LEAD | {"request_id": "1"}, LEAD | {"request_id": "2"}], "next_cursor": "c1"},
        {"items": [LEAD | {"request_id": "3"}], "next_cursor": None},
    ]
    api.answers_with(*map(ok, pages))

    leads = client.list_leads(status="FINISHED", phone="+14155550123", page_size=2)
    first = await anext(leads)
    assert len(api.asked) == 1
    rest = [lead.request_id async for lead in leads]

    assert [first.request_id, *rest] == ["1", "2", "3"]
    filters = {"status": "FINISHED", "phone": "+14155550123", "limit": "2"}
    assert [asked.query for asked in api.asked] == [filters, filters | {"cursor": "c1"}]


async def test_me_and_health_are_read_into_their_types(api: Api, client: TrunklineClient) -> None:
    api.answers_with(
        ok(
            {
                "key_id": LEAD_ID,
                "name": "shop",
                "scopes": ["leads"],
                "reseller_id": "acme",
                "merchant_id": None,
                "expires_at": None,
            }
        ),
        ok({"status": "ok", "version": "0.1.0"}),
    )
    assert await client.me() == Me(UUID(LEAD_ID), "shop", ["leads"], "acme", None, None)
    assert await client.health() == Health("ok", "0.1.0")
    assert [asked.path for asked in api.asked] == ["/api/v1/me", "/health"]


async def test_an_api_that_does_not_answer_in_time_is_unreachable() -> None:
    silence = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silence.wait()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with TrunklineClient(f"http://127.0.0.1:{port}", "tl_key", timeout_s=0.05) as client:
        with pytest.raises(Unreachable):
            await client.health()
    silence.set()
    server.close()


async def test_a_refused_connection_raises_unreachable() -> None:
    async with TrunklineClient("http://127.0.0.1:1", "tl_key") as client:
        with pytest.raises(Unreachable):
            await client.health()


async def test_a_datetime_without_a_time_zone_is_refused(client: TrunklineClient) -> None:
    with pytest.raises(ValueError, match="time zone"):
        await client.create_lead(phone="+14155550123", scheduled_at=datetime(2030, 5, 1))  # noqa: DTZ001


def test_a_url_without_a_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="http"):
        TrunklineClient("calls.example.com", "tl_key")
