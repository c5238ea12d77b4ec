"""A call that gets no pod of its own: it goes to the fallback URL, it is logged and counted, and nothing hides why."""

import asyncio
import gc
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from trunkline.client import (
    UNISOLATED,
    Busy,
    Fallback,
    RolloutFlags,
    RouterSettings,
    RouterSettingsError,
    SmartRouterClient,
    SyncSmartRouterClient,
    UnisolatedCalls,
)
from trunkline.client.breaker import BreakerRule, CircuitBreaker
from trunkline.client.unisolated import HINTS

FALLBACK = "wss://voice.example.com/agent/voice/{provider}/callback/{call_sid}"
OF_CA1 = "wss://voice.example.com/agent/voice/twilio/callback/CA1"
NOBODY = "http://127.0.0.1:1"
DOCS = Path(__file__).parents[2] / "docs" / "reference"


@dataclass
class Router:
    """Says one thing to everybody."""

    url: str = ""
    status: int = 200
    body: str = "{}"
    asked: int = 0

    async def handle(self, _request: web.Request) -> web.Response:
        self.asked += 1
        return web.Response(status=self.status, text=self.body, content_type="application/json")


async def served(app: web.Application) -> tuple[web.AppRunner, str]:
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


@pytest.fixture
async def router() -> AsyncIterator[Router]:
    router = Router()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", router.handle)
    runner, router.url = await served(app)
    yield router
    await runner.cleanup()


def client_of(url: str, breaker: CircuitBreaker | None = None, **more: Any) -> SmartRouterClient:
    given: dict[str, Any] = {"is_enabled": True, "base_url": url, "fallback_url": FALLBACK, "timeout_s": 30.0}
    flags = more.pop("flags", lambda: RolloutFlags(100))
    return SmartRouterClient(
        RouterSettings(**(given | more)),
        flags=flags,
        breaker=breaker or CircuitBreaker(),
        unisolated=UnisolatedCalls(),
    )


@pytest.mark.parametrize("made", [SmartRouterClient, SyncSmartRouterClient])
def test_a_client_without_a_fallback_url_is_refused_with_the_variable_to_set(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defaults of the environment: isolation off, no URL. Every caller would be hung up on."""
    for name in ("ENABLE_VOICE_AGENT_POD_ISOLATION", "SMART_ROUTER_FALLBACK_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RouterSettingsError, match="SMART_ROUTER_FALLBACK_URL is not set") as refused:
        made()
    assert "\n" not in str(refused.value)
    monkeypatch.setenv("SMART_ROUTER_FALLBACK_URL", FALLBACK)
    client = made()
    if isinstance(client, SyncSmartRouterClient):
        client.close()


async def test_with_isolation_off_by_the_environments_defaults_calls_get_the_fallback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SMART_ROUTER_FALLBACK_URL", FALLBACK)
    before = UNISOLATED.total
    async with SmartRouterClient() as client:
        assert await client.route("CA1", "acme", "twilio") == Fallback(OF_CA1, "isolation_disabled")
    [line] = caplog.records
    assert line.levelname == "WARNING"
    assert "CA1" in line.getMessage()
    assert "ENABLE_VOICE_AGENT_POD_ISOLATION" in line.getMessage()
    assert UNISOLATED.total == before + 1


async def test_without_the_router_calls_get_the_fallback_and_are_counted_by_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with client_of(NOBODY, retry_attempts=1) as client:
        assert await client.route("CA1", "acme", "twilio") == Fallback(OF_CA1, "router_unavailable")
        for _ in range(4):
            await client.route("CA2", "acme", "twilio")
        assert await client.route("CA3", "acme", "twilio") == Fallback(
            OF_CA1.replace("CA1", "CA3"), "circuit_open"
        )
        assert await client.allocate_pod("CA4", "acme") is None
    assert client.unisolated.by_reason() == {"router_unavailable": 6, "circuit_open": 1}
    assert client.unisolated.by_answer() == {"fallback": 6, "none": 1}
    assert sum("is not isolated" in message for message in caplog.messages) == 7


async def test_with_the_fallback_disabled_calls_get_busy_and_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with client_of(NOBODY, retry_attempts=1, fallback_url="", fallback_enabled=False) as client:
        assert await client.route("CA1", "acme") == Busy("router_unavailable")
    assert client.unisolated.by_answer() == {"busy": 1}
    assert "answered with busy" in caplog.text


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_gets_the_fallback_and_the_log_names_the_variable(
    router: Router, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    router.status = status
    async with client_of(router.url) as client:
        for _ in range(8):
            assert await client.route("CA1", "acme", "twilio") == Fallback(OF_CA1, f"refused_{status}")
    assert router.asked == 8, "asked once for each call, and the circuit does not open over a key"
    assert client.unisolated.by_reason() == {f"refused_{status}": 8}
    assert all("SMART_ROUTER_API_KEY" in message for message in caplog.messages)


async def test_a_refused_key_is_no_success_to_the_circuit_breaker(router: Router) -> None:
    now = [0.0]
    breaker = CircuitBreaker(BreakerRule(failure_threshold=2, half_open_max_calls=1), clock=lambda: now[0])
    async with client_of(router.url, breaker, retry_attempts=1) as client:
        for router.status in (500, 401, 500):
            await client.route("CA1", "acme")
        assert not breaker.allows(), "the refusal between them did not end the row of failures"
        now[0] = 30.0
        router.status = 401
        for _ in range(4):
            await client.route("CA1", "acme")
        assert breaker.state == "half_open", "a refusal closes nothing, and uses no try up"
        router.status, router.body = 503, '{"success": false, "error": "no pods available"}'
        await client.route("CA1", "acme")
    assert client.breaker.state == "closed"


async def test_an_unexpected_exception_leaks_no_probe_of_a_half_open_circuit(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    breaker = CircuitBreaker(BreakerRule(failure_threshold=1), clock=lambda: now[0])
    breaker.failed()
    async with client_of(router.url, breaker, retry_attempts=1) as client:

        async def explode(*_: object) -> None:
            raise RuntimeError("Session is closed")

        for _ in range(5):
            now[0] += 30.0
            with monkeypatch.context() as patched:
                patched.setattr(client, "_send", explode)
                assert isinstance(await client.route("CA1", "acme"), Fallback)
        now[0] += 30.0
        router.status, router.body = 503, '{"success": false, "error": "no pods available"}'
        for _ in range(3):
            await client.route("CA1", "acme")
        assert (breaker.state, router.asked) == ("closed", 3)


async def test_a_cancelled_request_leaks_no_probe_of_a_half_open_circuit(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    breaker = CircuitBreaker(BreakerRule(failure_threshold=1), clock=lambda: now[0])
    breaker.failed()
    now[0] = 30.0

    class Away(BaseException):
        pass

    async with client_of(router.url, breaker) as client:
        for error in [asyncio.CancelledError, Away] * 3:

            async def leave(*_: object, error: type[BaseException] = error) -> None:
                raise error

            monkeypatch.setattr(client, "_send", leave)
            with pytest.raises(error):
                await client.route("CA1", "acme")
    assert breaker.allows()


async def test_with_unreadable_flags_a_call_gets_the_fallback(
    router: Router, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SMART_ROUTER_PERCENTAGE", "ten")
    async with client_of(router.url, flags=RolloutFlags.from_env) as client:
        assert await client.route("CA1", "acme", "twilio") == Fallback(OF_CA1, "flags_unreadable")
    assert "SMART_ROUTER_PERCENTAGE: 'ten' is not a whole number" in caplog.text


async def test_the_count_is_a_prometheus_metric_where_that_is_installed() -> None:
    from prometheus_client import REGISTRY

    def value() -> float:
        labels = {"reason": "percentage_zero", "answer": "fallback"}
        return REGISTRY.get_sample_value("trunkline_client_unisolated_calls_total", labels) or 0.0

    before = value()
    settings = RouterSettings(is_enabled=True, base_url=NOBODY, fallback_url=FALLBACK)
    async with SmartRouterClient(settings, flags=RolloutFlags, breaker=CircuitBreaker()) as client:
        await client.route("CA1", "acme")
    assert value() == before + 1


def test_without_prometheus_the_client_counts_all_the_same() -> None:
    program = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from trunkline.client import UNISOLATED\n"
        "UNISOLATED.record('CA1', 'twilio', 'no_pods_available', 'fallback')\n"
        "print(UNISOLATED.by_reason())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'no_pods_available': 1}"


def test_every_gate_and_every_hint_is_documented() -> None:
    page = (DOCS / "agent.md").read_text(encoding="utf-8")
    gates = page.partition("### Which calls use the router")[2].partition("### Calls without a pod")[0]
    named = re.findall(r"\| `(\w+)` \|$", gates, re.MULTILINE)
    assert named == [
        "isolation_disabled", "flags_unreadable", "circuit_open", "percentage_zero", "outside_percentage",
        "not_listed",
    ]  # fmt: skip
    assert set(named) <= set(HINTS)


# The snippets as documented.


def snippet(page: str, after: str, number: int = 0) -> str:
    text = (DOCS / page).read_text(encoding="utf-8").partition(after)[2]
    return str(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[number])


@pytest.fixture
def environment(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENABLE_VOICE_AGENT_POD_ISOLATION", "true")
    monkeypatch.setenv("SMART_ROUTER_BASE_URL", router.url)
    monkeypatch.setenv("SMART_ROUTER_PERCENTAGE", "100")
    monkeypatch.setenv("SMART_ROUTER_FALLBACK_URL", FALLBACK)
    router.status, router.body = 503, '{"success": false, "error": "no pods available"}'


@pytest.mark.usefixtures("environment")
async def test_option_b_as_documented_answers_and_leaves_no_session_open(router: Router) -> None:
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: complaints.append(str(context["message"]))
    )
    names: dict[str, Any] = {"app": web.Application()}
    exec(snippet("agent.md", "## Answering carriers yourself"), names)
    runner, url = await served(names["app"])
    form = {"CallSid": "CA1"}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/twilio/allocate", data=form) as said:
        assert OF_CA1 in await said.text()
    await runner.cleanup()
    assert router.asked == 1
    del runner
    names.clear()
    gc.collect()
    assert complaints == []


@pytest.mark.usefixtures("environment")
async def test_the_sync_snippet_as_documented_names_the_stream(router: Router) -> None:
    names: dict[str, Any] = {}
    exec(snippet("agent.md", "## The router's client"), names)
    assert await asyncio.to_thread(names["stream_of"], "CA1", "acme") == OF_CA1
    assert router.asked == 1


@pytest.mark.usefixtures("environment")
async def test_the_async_snippet_as_documented_counts_calls_without_a_pod(
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = snippet("client.md", "## The router's client").replace("\n", "\n    ")
    names: dict[str, Any] = {"SmartRouterClient": SmartRouterClient}
    exec(f"async def documented():\n    {body}", names)
    await names["documented"]()
    said = capsys.readouterr().out
    assert "no_pods_available" in said
    assert "/twilio/callback/CA123" in said
