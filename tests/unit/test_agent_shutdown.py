"""How long a pod that leaves waits for its calls: the router says how long a call may be."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.support.waiting import eventually
from trunkline.agent import Agent, AgentSettings, Call, token
from trunkline.agent import agent as agent_module

SECRET = b"the secret of this pod"


@dataclass
class RouterStandIn:
    url: str = ""
    # What an older router does not say.
    call_time_limit_s: float | None = None
    heartbeats: int = 0

    async def heartbeat(self, _request: web.Request) -> web.Response:
        self.heartbeats += 1
        answer: dict[str, Any] = {"tier": "standard", "draining": False, "call_sid": ""}
        answer["stream_secrets"] = [SECRET.hex()]
        if self.call_time_limit_s is not None:
            answer["call_time_limit_s"] = self.call_time_limit_s
        return web.json_response(answer)

    async def release(self, _request: web.Request) -> web.Response:
        return web.json_response({"success": True})


@pytest.fixture
async def router() -> AsyncIterator[RouterStandIn]:
    router = RouterStandIn()
    app = web.Application()
    app.router.add_post("/api/v1/pods/{pod}/heartbeat", router.heartbeat)
    app.router.add_post("/api/v1/release", router.release)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    router.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield router
    await runner.cleanup()


async def stay(call: Call) -> None:
    async for _ in call:
        pass


async def started(router: RouterStandIn, **more: Any) -> Agent:
    settings = AgentSettings(
        router_url=router.url, pod_name="agent-0", heartbeat_interval_s=300, router_timeout_s=30
    )
    agent = Agent(stay, replace(settings, **more), port=0)
    await agent.start()
    await asyncio.wait_for(agent.registered.wait(), 10)
    return agent


@pytest.mark.parametrize(
    ("told_s", "waits_s"),
    [(7200.0, 7260.0), (3600.0, 3660.0), (30.0, 300.0), (None, 3660.0)],
    ids=["two hours", "an hour", "shorter than the least", "an older router"],
)
async def test_a_leaving_pod_waits_for_the_routers_longest_call_and_a_minute(
    router: RouterStandIn, told_s: float | None, waits_s: float
) -> None:
    router.call_time_limit_s = told_s
    agent = await started(router)
    assert agent.shutdown_timeout_s == waits_s
    await agent.stop()


async def test_a_set_shutdown_timeout_takes_precedence_over_the_routers(router: RouterStandIn) -> None:
    router.call_time_limit_s = 7200.0
    agent = await started(router, shutdown_timeout_s=12.0)
    assert agent.shutdown_timeout_s == 12.0
    await agent.stop()


async def test_the_drain_ends_after_the_routers_call_time_limit(
    router: RouterStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "SHUTDOWN_LEAST_S", 0.0)
    monkeypatch.setattr(agent_module, "SHUTDOWN_MARGIN_S", 0.0)
    router.call_time_limit_s = 0.05
    agent = await started(router)
    async with aiohttp.ClientSession() as session:
        socket = await session.ws_connect(f"ws://127.0.0.1:{agent.port}/ws/pod/agent-0/call-1")
        parameters = {"token": token.sign(SECRET, "call-1", "allocation-1")}
        start = {"streamSid": "MZ1", "callSid": "call-1", "customParameters": parameters}
        await socket.send_json({"event": "start", "start": start, "streamSid": "MZ1"})
        await eventually(lambda: agent.live_calls == ["call-1"])

        await asyncio.wait_for(agent.drain(), 10)

        assert (await socket.receive(timeout=10)).type is aiohttp.WSMsgType.CLOSE
    await agent.stop()


async def test_the_example_prints_help_and_registers_no_pod(router: RouterStandIn) -> None:
    environ = {**os.environ, "SMART_ROUTER_BASE_URL": router.url, "POD_NAME": "help"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "trunkline.agent.echo", *words]
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)

    shown = await asyncio.to_thread(run, "--help")
    assert shown.returncode == 0
    assert "usage: python -m trunkline.agent.echo" in shown.stdout
    assert "SMART_ROUTER_BASE_URL" in shown.stdout
    refused = await asyncio.to_thread(run, "--port", "9000")
    assert refused.returncode == 2
    assert router.heartbeats == 0
