"""The router's client and the agent's answer routes, against a real router and against one that is in trouble."""

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.support.waiting import eventually
from trunkline.agent.answers import AnswerRoutes, AnswerSettings, answer_url
from trunkline.client import (
    Busy,
    CallEnded,
    Fallback,
    PodAllocation,
    RolloutFlags,
    RouterSettings,
    SmartRouterClient,
    SyncSmartRouterClient,
)
from trunkline.client.breaker import BreakerRule, CircuitBreaker

FALLBACK = "wss://voice.example.com/agent/voice/{provider}/callback/{call_sid}"


def everybody() -> RolloutFlags:
    return RolloutFlags(percentage=100)


@dataclass
class Router:
    """A router that answers as it is told."""

    url: str = ""
    answers: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    seen: list[tuple[str, str, Any, str]] = field(default_factory=list)
    stalled: bool = False

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        self.seen.append((request.method, request.path, body, request.headers.get("Authorization", "")))
        if self.stalled:
            await asyncio.Event().wait()
        status, answer = self.answers.pop(0) if self.answers else (200, OK)
        return web.json_response(answer, status=status)


OK: dict[str, Any] = {
    "success": True,
    "allocation": {
        "pod_name": "voice-agent-0",
        "ws_url": "wss://voice.example.com/ws/pod/voice-agent-0/CA1",
        "source_pool": "pool:gold",
        "allocated_at": "2026-02-08T10:00:00Z",
        "was_existing": False,
        "token": "t-1",
    },
}
NONE_FREE = (503, {"success": False, "error": "no pods available"})
IN_TROUBLE = (503, {"success": False, "error": "the router cannot reach its store", "code": "unavailable"})


@pytest.fixture
async def router() -> AsyncIterator[Router]:
    router = Router()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", router.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    router.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield router
    await runner.cleanup()


def settings_of(router: Router, **more: Any) -> RouterSettings:
    given: dict[str, Any] = {
        "is_enabled": True,
        "base_url": router.url,
        "api_key": "tl_key",
        "timeout_s": 30.0,
        "fallback_enabled": "fallback_url" in more,
    }
    return RouterSettings(**(given | more))


@pytest.fixture
async def client(router: Router) -> AsyncIterator[SmartRouterClient]:
    settings = settings_of(router, fallback_url=FALLBACK)
    async with SmartRouterClient(settings, flags=everybody, breaker=CircuitBreaker()) as client:
        yield client


async def test_the_documented_methods_ask_the_documented_endpoints(
    router: Router, client: SmartRouterClient
) -> None:
    pod = await client.allocate_pod("CA1", "acme", "twilio")
    assert pod is not None
    assert (pod.pod_name, pod.source_pool, pod.token) == ("voice-agent-0", "pool:gold", "t-1")
    assert await client.release_pod("CA1", "websocket_closed")
    assert await client.drain_pod("voice-agent-2")
    assert await client.undrain_pod("voice-agent-2")
    assert await client.get_pool_status() == OK
    assert await client.health_check()
    assert [(method, path) for method, path, _, _ in router.seen] == [
        ("POST", "/api/v1/allocate"),
        ("POST", "/api/v1/release"),
        ("POST", "/api/v1/drain"),
        ("DELETE", "/api/v1/drain/voice-agent-2"),
        ("GET", "/api/v1/status"),
        ("GET", "/health"),
    ]
    assert router.seen[0][2] == {"call_sid": "CA1", "merchant_id": "acme"}
    assert {key for *_, key in router.seen} == {"Bearer tl_key"}


async def test_a_reply_without_a_free_pod_is_not_retried_and_not_a_failure(
    router: Router, client: SmartRouterClient
) -> None:
    router.answers = [NONE_FREE] * 6
    for _ in range(6):
        assert await client.allocate_pod("CA1", "acme") is None
    assert len(router.seen) == 6
    assert client.breaker.state == "closed"


async def test_a_failing_router_is_requested_three_times(router: Router, client: SmartRouterClient) -> None:
    router.answers = [IN_TROUBLE, (500, {}), (200, OK)]
    assert await client.allocate_pod("CA1") is not None
    router.answers = [IN_TROUBLE] * 3
    assert await client.allocate_pod("CA1") is None
    assert len(router.seen) == 6


async def test_a_release_answered_404_counts_as_released(router: Router, client: SmartRouterClient) -> None:
    router.answers = [(404, {"success": False, "error": "call not found"})]
    assert await client.release_pod("CA1")


async def test_failures_of_many_clients_open_one_circuit(router: Router) -> None:
    breaker = CircuitBreaker(BreakerRule(failure_threshold=5))
    router.answers = [IN_TROUBLE] * 5
    for _ in range(2):
        async with SmartRouterClient(settings_of(router), flags=everybody, breaker=breaker) as client:
            assert await client.allocate_pod("CA1") is None
    assert breaker.state == "open"
    assert len(router.seen) == 5, "an open circuit asks nobody"
    async with SmartRouterClient(settings_of(router), flags=everybody, breaker=breaker) as client:
        assert await client.route("CA2", "acme") == Busy("circuit_open")
        assert await client.health_check()


async def test_a_router_that_does_not_answer_costs_its_time_limit_and_no_more(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    router.stalled = True
    settings = settings_of(router, timeout_s=0.3, retry_attempts=2)
    async with SmartRouterClient(settings, flags=everybody, breaker=CircuitBreaker()) as client:
        assert await client.allocate_pod("CA1") is None
    # Counted where they are made: on a busy machine the last one may be over before the router has read it.
    assert caplog.messages[:-1] == ["POST /api/v1/allocate: TimeoutError"] * 2


async def test_without_a_pod_a_call_gets_the_fallback_url_or_busy(
    router: Router, client: SmartRouterClient
) -> None:
    router.answers = [NONE_FREE]
    url = "wss://voice.example.com/agent/voice/twilio/callback/CA1"
    assert await client.route("CA1", "acme", "twilio") == Fallback(url, "no_pods_available")
    off = SmartRouterClient(
        settings_of(router, fallback_url=FALLBACK), flags=RolloutFlags, breaker=CircuitBreaker()
    )
    assert await off.route("CA1", "acme", "twilio") == Fallback(url, "percentage_zero")
    strict = settings_of(router, fallback_enabled=False, is_enabled=False)
    assert await SmartRouterClient(strict, flags=everybody).route("CA1") == Busy("isolation_disabled")


async def test_a_call_that_is_over_is_hung_up(router: Router, client: SmartRouterClient) -> None:
    router.answers = [(410, {"success": False, "error": "call has ended", "code": "call_ended"})]
    assert await client.route("CA1", "acme") == CallEnded()


async def test_the_sync_client_answers_like_the_async_one(router: Router) -> None:
    def work() -> tuple[Any, ...]:
        with SyncSmartRouterClient(settings_of(router), flags=everybody, breaker=CircuitBreaker()) as client:
            return (
                client.allocate_pod("CA1", "acme"),
                client.release_pod("CA1"),
                client.health_check(),
                client.route("CA1", "acme"),
                client.decide("acme").use_router,
                client.drain_pod("voice-agent-0"),
                client.undrain_pod("voice-agent-0"),
                client.get_pool_status() is not None,
            )

    pod, released, healthy, route, uses, *drained = await asyncio.to_thread(work)
    assert isinstance(pod, PodAllocation)
    assert isinstance(route, PodAllocation)
    assert (released, healthy, uses, drained) == (True, True, True, [True, True, True])


async def test_closing_the_sync_client_ends_waiting_threads(router: Router) -> None:
    router.stalled = True
    client = SyncSmartRouterClient(settings_of(router), flags=everybody, breaker=CircuitBreaker())
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            client.route("CA1", "acme")
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    await eventually(lambda: router.seen)
    await asyncio.to_thread(client.close)
    await eventually(lambda: not thread.is_alive())
    assert isinstance(ended[0], concurrent.futures.CancelledError)


async def test_a_closed_sync_client_can_be_closed_again(router: Router) -> None:
    client = SyncSmartRouterClient(settings_of(router), flags=everybody, breaker=CircuitBreaker())
    await asyncio.to_thread(client.close)
    await asyncio.to_thread(client.close)


@pytest.fixture
async def agent_url(client: SmartRouterClient) -> AsyncIterator[str]:
    app = web.Application()
    app.add_routes(AnswerRoutes(client, AnswerSettings(secret="s3cret")).routes())
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def ask(method: str, url: str, form: dict[str, str] | None = None) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.request(method, url, data=form) as response:
        return response.status, await response.text()


async def test_a_twilio_webhook_at_the_agent_is_answered_with_the_pods_stream(
    router: Router, agent_url: str
) -> None:
    url = f"{agent_url}/twilio/allocate?merchant_id=acme&secret=s3cret"
    status, document = await ask("POST", url, {"CallSid": "CA1", "From": "+1", "To": "+2"})
    assert (status, document) == (
        200,
        '<Response><Connect><Stream url="wss://voice.example.com/ws/pod/voice-agent-0/CA1">'
        '<Parameter name="token" value="t-1" /></Stream></Connect></Response>',
    )
    assert router.seen[0][2] == {"call_sid": "CA1", "merchant_id": "acme"}


async def test_a_plivo_webhook_and_exotels_question_are_answered_in_their_languages(
    router: Router, agent_url: str
) -> None:
    _, document = await ask("POST", f"{agent_url}/plivo/allocate?secret=s3cret", {"CallUUID": "CA1"})
    assert document == (
        '<Response><Stream bidirectional="true" keepCallAlive="true" contentType="audio/x-mulaw;rate=8000">'
        "wss://voice.example.com/ws/pod/voice-agent-0/CA1?token=t-1</Stream></Response>"
    )
    question = f"{agent_url}/voicebot-url?CallSid=CA1&template=sales&secret=s3cret"
    assert await ask("GET", question) == (
        200,
        '{"url": "wss://voice.example.com/ws/pod/voice-agent-0/CA1?token=t-1&template=sales"}',
    )


async def test_without_a_pod_the_agent_answers_with_the_fallback(router: Router, agent_url: str) -> None:
    router.answers = [NONE_FREE] * 2
    _, document = await ask("POST", f"{agent_url}/twilio/allocate?secret=s3cret", {"CallSid": "CA1"})
    assert 'url="wss://voice.example.com/agent/voice/twilio/callback/CA1"' in document
    _, answer = await ask("GET", f"{agent_url}/voicebot-url?CallSid=CA1&template=sales&secret=s3cret")
    assert answer == '{"url": "wss://voice.example.com/agent/voice/exotel/callback/CA1?template=sales"}'


async def test_without_a_fallback_url_the_answer_routes_say_busy(router: Router) -> None:
    router.answers = [NONE_FREE] * 3
    client = SmartRouterClient(settings_of(router), flags=everybody, breaker=CircuitBreaker())
    routes = AnswerRoutes(client)
    app = web.Application()
    app.add_routes(routes.routes())
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    said = "All agents are currently busy. Please try again later."
    assert (await ask("POST", f"{url}/twilio/allocate", {"CallSid": "CA1"}))[1] == (
        f"<Response><Say>{said}</Say><Hangup /></Response>"
    )
    assert (await ask("POST", f"{url}/plivo/allocate", {"CallUUID": "CA1"}))[1] == (
        f"<Response><Speak>{said}</Speak><Hangup /></Response>"
    )
    assert (await ask("GET", f"{url}/voicebot-url?CallSid=CA1"))[0] == 503
    assert (await ask("POST", f"{url}/twilio/allocate", {}))[0] == 400
    await runner.cleanup()
    await client.close()


async def test_an_answer_request_without_the_secret_is_refused(router: Router, agent_url: str) -> None:
    assert (await ask("POST", f"{agent_url}/twilio/allocate", {"CallSid": "CA1"}))[0] == 403
    assert (await ask("GET", f"{agent_url}/voicebot-url?CallSid=CA1&secret=no"))[0] == 403
    assert router.seen == []


def test_the_rollout_flags_decide_whether_a_carriers_answer_url_is_the_routers() -> None:
    settings = AnswerSettings(secret="s", own_url="https://agent.example.com")

    def url(provider: str, **flags: bool) -> str:
        return answer_url(provider, "acme", settings, "https://router", lambda: RolloutFlags(100, **flags))  # type: ignore[arg-type]

    assert url("twilio", twilio_direct=True) == "https://router/api/v1/twilio/allocate?merchant_id=acme"
    assert url("plivo", plivo_direct=True) == "https://router/api/v1/plivo/allocate?merchant_id=acme"
    assert url("twilio") == "https://agent.example.com/twilio/allocate?merchant_id=acme&secret=s"
    assert (
        url("exotel", twilio_direct=True)
        == "https://agent.example.com/voicebot-url?merchant_id=acme&secret=s"
    )
