"""An agent between a stand-in for the router and a stand-in for the carrier, over real sockets."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from socket import SHUT_RDWR
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from trunkline.agent import Agent, AgentSettings, Call, CallClosed, Media, token
from trunkline.agent import agent as agent_module
from trunkline.agent import call as call_module
from trunkline.agent import session as session_module

SECRET = b"the secret of this pod"
Body = dict[str, Any]


@dataclass
class RouterStandIn:
    """Takes heartbeats and releases, and keeps them."""

    url: str = ""
    heartbeats: "asyncio.Queue[Body]" = field(default_factory=asyncio.Queue)
    releases: "asyncio.Queue[Body]" = field(default_factory=asyncio.Queue)
    call_sid: str = ""
    broken: bool = False
    superseded: bool = False
    # A release is answered when this is set.
    may_release: asyncio.Event | None = None
    keys: list[str] = field(default_factory=list)

    async def heartbeat(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers["Authorization"])
        body = await request.json() | {"pod": request.match_info["pod"]}
        self.heartbeats.put_nowait(body)
        if self.broken:
            return web.json_response({"success": False, "error": "away"}, status=503)
        if self.superseded:
            return web.json_response({"success": False, "code": "pod_superseded"}, status=409)
        answer = {"tier": "standard", "draining": False, "call_sid": self.call_sid}
        return web.json_response(answer | {"stream_secrets": [SECRET.hex()]})

    async def release(self, request: web.Request) -> web.Response:
        self.releases.put_nowait(await request.json())
        if self.may_release is not None:
            await self.may_release.wait()
        if self.broken:
            return web.json_response({"success": False, "error": "away"}, status=503)
        return web.json_response({"success": False, "error": "call not found"}, status=404)

    async def heard(self, condition: Callable[[Body], bool]) -> Body:
        """The next heartbeat of which this is true."""
        async with asyncio.timeout(10):
            while True:
                body = await self.heartbeats.get()
                if condition(body):
                    return body


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


@pytest.fixture
def settings(router: RouterStandIn) -> AgentSettings:
    # Only changes make this pod speak within a test: the interval is longer than the test may last.
    return AgentSettings(
        router_url=router.url,
        api_key="tl_key",
        pod_name="agent-0",
        heartbeat_interval_s=300,
        router_timeout_s=30,
    )


@dataclass
class Carrier:
    """Opens streams at one agent."""

    agent: Agent
    session: aiohttp.ClientSession

    async def open(
        self,
        call_sid: str,
        allocation_id: str = "",
        path_sid: str = "",
        *,
        turn: int = 0,
        resumable: bool = False,
    ) -> Any:
        """`resumable`: as the platform itself opens it, with a key to the call."""
        url = f"ws://127.0.0.1:{self.agent.port}/ws/pod/agent-0/{path_sid or call_sid}"
        socket = await self.session.ws_connect(url)
        signed = token.sign(SECRET, call_sid, allocation_id or f"allocation-of-{call_sid}", turn)
        parameters = {"token": signed, "attempt": "attempt-1"}
        if resumable:
            parameters |= {"key": "k"}
        if turn:
            parameters |= {"resumed": str(turn)}
        start = {"streamSid": "MZ1", "callSid": call_sid, "customParameters": parameters}
        await socket.send_json({"event": "connected", "protocol": "Call", "version": "1.0.0"})
        await socket.send_json({"event": "start", "start": start, "streamSid": "MZ1"})
        return socket


async def closed(socket: Any) -> tuple[int | None, str]:
    """Close code and reason of a stream that was refused."""
    message = await socket.receive(timeout=10)
    assert message.type is aiohttp.WSMsgType.CLOSE
    return message.data, message.extra


async def echo(call: Call) -> None:
    async for message in call:
        if isinstance(message, Media):
            await call.send_media(message.payload)


Serve = Callable[..., Awaitable[Carrier]]


@pytest.fixture
async def serve(settings: AgentSettings) -> AsyncIterator[Serve]:
    opened: list[Carrier] = []

    async def start(
        handler: Any = echo, *, settings: AgentSettings = settings, max_concurrent: int = 1
    ) -> Carrier:
        agent = Agent(handler, settings, max_concurrent=max_concurrent, port=0)
        await agent.start()
        await asyncio.wait_for(agent.registered.wait(), 10)
        opened.append(Carrier(agent, aiohttp.ClientSession()))
        return opened[-1]

    yield start
    for carrier in opened:
        await carrier.session.close()
        await carrier.agent.stop()


async def test_the_first_heartbeat_carries_the_pods_name_address_and_boot(
    serve: Serve, router: RouterStandIn
) -> None:
    carrier = await serve()
    body = await router.heard(lambda body: True)
    assert body.pop("boot_id")
    assert body.pop("version")
    assert body == {
        "pod": "agent-0",
        "ip": "127.0.0.1",
        "port": carrier.agent.port,
        "base_url": "",
        "calls": [],
        "ended": [],
        "handing_over": [],
        "hanging": [],
        "draining": False,
        "sequence": 1,
        "interval_s": 300,
    }
    assert router.keys == ["Bearer tl_key"]


async def test_a_handler_receives_the_calls_audio_and_sends_its_own(serve: Serve) -> None:
    seen: list[Call] = []

    async def handler(call: Call) -> None:
        seen.append(call)
        await echo(call)

    socket = await (await serve(handler)).open("call-1")
    await socket.send_json({"event": "media", "media": {"payload": "fn5+"}})

    answer = await socket.receive_json(timeout=10)

    assert answer == {"event": "media", "streamSid": "MZ1", "media": {"payload": "fn5+"}}
    assert seen[0].call_sid == "call-1"
    assert seen[0].parameters == {"attempt": "attempt-1"}, "the token is nobody's business"
    await socket.close()


async def test_the_agent_reports_a_calls_start_and_end_to_the_router_at_once(
    serve: Serve, router: RouterStandIn
) -> None:
    socket = await (await serve()).open("call-1")
    began = await router.heard(lambda body: body["calls"] == ["call-1"])

    await socket.send_json({"event": "stop"})

    ended = await router.heard(lambda body: body["calls"] == [])
    released = await asyncio.wait_for(router.releases.get(), 10)
    assert released == {"call_sid": "call-1", "pod_name": "agent-0", "turn": 0}
    assert began["sequence"] < ended["sequence"]
    assert began["boot_id"] == ended["boot_id"]
    await socket.close()


async def test_a_call_whose_socket_vanishes_is_released(serve: Serve, router: RouterStandIn) -> None:
    carrier = await serve()
    socket = await carrier.open("call-1")
    await router.heard(lambda body: body["calls"] == ["call-1"])

    socket.get_extra_info("socket").shutdown(SHUT_RDWR)

    assert (await asyncio.wait_for(router.releases.get(), 10))["call_sid"] == "call-1"
    assert carrier.agent.live_calls == []


async def test_a_second_call_is_refused_and_the_first_goes_on(serve: Serve) -> None:
    carrier = await serve()
    first = await carrier.open("call-1")
    await first.send_json({"event": "media", "media": {"payload": "fn5+"}})
    await first.receive_json(timeout=10)

    second = await carrier.open("call-2")

    assert await closed(second) == (1013, "the pod has its maximum of calls")
    await first.send_json({"event": "media", "media": {"payload": "AAAA"}})
    assert (await first.receive_json(timeout=10))["media"]["payload"] == "AAAA"
    assert carrier.agent.live_calls == ["call-1"]
    await first.close()


async def test_a_token_of_another_call_does_not_open_this_one(serve: Serve) -> None:
    carrier = await serve()
    socket = await carrier.open("call-1", path_sid="call-2")
    assert await closed(socket) == (1008, "no start of the call that the address names")


async def test_a_stream_for_another_pod_is_404(serve: Serve) -> None:
    carrier = await serve()
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await carrier.session.ws_connect(f"ws://127.0.0.1:{carrier.agent.port}/ws/pod/agent-9/call-1")
    assert caught.value.status == 404


async def test_a_socket_without_a_start_frame_is_closed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "START_TIMEOUT_S", 0.05)
    carrier = await serve()
    socket = await carrier.session.ws_connect(f"ws://127.0.0.1:{carrier.agent.port}/ws/pod/agent-0/call-1")
    await socket.send_json({"event": "connected"})
    assert (await closed(socket))[0] == 1008


async def test_sockets_without_a_start_frame_are_bounded(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "UNIDENTIFIED_MAX", 1)
    carrier = await serve()
    url = f"ws://127.0.0.1:{carrier.agent.port}/ws/pod/agent-0/call-1"
    first = await carrier.session.ws_connect(url)
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await carrier.session.ws_connect(url)
    assert caught.value.status == 503
    await first.close()


async def test_a_handler_that_returns_hangs_up(serve: Serve, router: RouterStandIn) -> None:
    async def goodbye(call: Call) -> None:
        await call.send_mark("bye")

    socket = await (await serve(goodbye)).open("call-1")

    assert (await socket.receive_json(timeout=10))["mark"] == {"name": "bye"}
    assert (await socket.receive(timeout=10)).type is aiohttp.WSMsgType.CLOSE
    await asyncio.wait_for(router.releases.get(), 10)


async def test_a_handler_that_fails_ends_its_call_and_not_the_pod(
    serve: Serve, router: RouterStandIn, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(call: Call) -> None:
        raise RuntimeError("no idea what to say")

    carrier = await serve(fails)
    socket = await carrier.open("call-1")
    assert (await socket.receive(timeout=10)).type is aiohttp.WSMsgType.CLOSE
    await asyncio.wait_for(router.releases.get(), 10)

    assert "no idea what to say" in caplog.text
    await carrier.open("call-2")
    assert (await asyncio.wait_for(router.releases.get(), 10))["call_sid"] == "call-2"


async def test_a_handler_may_finish_after_the_stream_is_over(serve: Serve, router: RouterStandIn) -> None:
    may_finish, finished = asyncio.Event(), asyncio.Event()

    async def writes_a_summary(call: Call) -> None:
        async for _ in call:
            pass
        with pytest.raises(CallClosed):
            await call.send_media(b"")
        await may_finish.wait()
        finished.set()

    carrier = await serve(writes_a_summary)
    socket = await carrier.open("call-1")
    await socket.close()
    assert carrier.agent.live_calls == ["call-1"]
    may_finish.set()

    await asyncio.wait_for(router.releases.get(), 10)
    assert finished.is_set()


async def test_a_handler_that_does_not_finish_is_cancelled(
    serve: Serve, router: RouterStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "FINISH_TIMEOUT_S", 0.05)

    async def never_ends(call: Call) -> None:
        await asyncio.Event().wait()

    socket = await (await serve(never_ends)).open("call-1")
    await socket.close()
    assert (await asyncio.wait_for(router.releases.get(), 10))["call_sid"] == "call-1"


async def test_a_handler_that_does_not_listen_loses_the_oldest_audio(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_module, "UNREAD_MAX", 2)
    stream_over, heard = asyncio.Event(), asyncio.Queue[tuple[list[Any], int]]()

    async def listens_late(call: Call) -> None:
        await stream_over.wait()
        heard.put_nowait(([message.name async for message in call], call.dropped))  # type: ignore[union-attr]

    socket = await (await serve(listens_late)).open("call-1")
    for name in ("one", "two", "three"):
        await socket.send_json({"event": "mark", "mark": {"name": name}})
    await socket.close()
    stream_over.set()

    assert await asyncio.wait_for(heard.get(), 10) == (["two", "three"], 1)


async def test_a_failing_router_is_retried_and_logged_once(
    settings: AgentSettings, router: RouterStandIn, caplog: pytest.LogCaptureFixture
) -> None:
    router.broken = True
    agent = Agent(echo, settings, port=0)
    await agent.start()
    await router.heard(lambda body: body["sequence"] == 2)
    assert not agent.registered.is_set()

    router.broken = False
    await asyncio.wait_for(agent.registered.wait(), 10)

    assert caplog.text.count("does not accept heartbeats") == 1
    await agent.stop()


async def test_a_draining_agent_waits_for_its_live_call_and_takes_no_new_one(
    serve: Serve, router: RouterStandIn
) -> None:
    carrier = await serve()
    live = await carrier.open("call-1")
    await router.heard(lambda body: body["calls"] == ["call-1"])

    draining = asyncio.create_task(carrier.agent.drain())
    told = await router.heard(lambda body: body["draining"])
    assert told["calls"] == ["call-1"]
    late = await carrier.open("call-2")
    assert (await closed(late))[0] == 1013
    assert not draining.done()

    await live.close()
    await asyncio.wait_for(draining, 10)
    assert carrier.agent.live_calls == []


async def test_a_draining_agent_takes_the_call_allocated_just_before(
    serve: Serve, router: RouterStandIn
) -> None:
    carrier = await serve()
    router.call_sid = "call-1"
    draining = asyncio.create_task(carrier.agent.drain())
    await router.heard(lambda body: body["draining"])

    socket = await carrier.open("call-1")
    await socket.send_json({"event": "media", "media": {"payload": "fn5+"}})
    assert (await socket.receive_json(timeout=10))["event"] == "media"
    assert not draining.done()

    await socket.close()
    await asyncio.wait_for(draining, 10)


async def test_a_call_that_outlasts_the_shutdown_limit_is_ended(
    serve: Serve, settings: AgentSettings, router: RouterStandIn
) -> None:
    carrier = await serve(settings=replace(settings, shutdown_timeout_s=0.05))
    socket = await carrier.open("call-1")
    await router.heard(lambda body: body["calls"] == ["call-1"])

    await asyncio.wait_for(carrier.agent.drain(), 10)

    assert (await socket.receive(timeout=10)).type is aiohttp.WSMsgType.CLOSE
    assert (await asyncio.wait_for(router.releases.get(), 10))["call_sid"] == "call-1"


async def test_sigterm_drains_and_the_last_heartbeat_says_that_the_pod_is_free_and_leaving(
    settings: AgentSettings, router: RouterStandIn
) -> None:
    agent = Agent(echo, settings, port=0)
    running = asyncio.create_task(agent.run())
    await asyncio.wait_for(agent.registered.wait(), 10)

    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, 10)

    last = [router.heartbeats.get_nowait() for _ in range(router.heartbeats.qsize())][-1]
    assert (last["draining"], last["calls"]) == (True, [])


async def test_the_agents_health_route_answers_ok(serve: Serve) -> None:
    carrier = await serve()
    async with carrier.session.get(f"http://127.0.0.1:{carrier.agent.port}/health") as response:
        assert json.loads(await response.text()) == {"status": "ok"}
