"""How an agent ends a call, or loses it, between a stand-in for the router and a stand-in for the carrier.

What the router hears of a call decides what the carrier does when the stream closes: a released call is over, one that
was not is given another agent.
"""

import asyncio
import logging
import threading
from dataclasses import replace
from socket import SHUT_RDWR
from typing import Any

import aiohttp
import pytest

from trunkline.agent import Agent, AgentSettings, Call
from trunkline.agent import agent as agent_module
from trunkline.agent import session as session_module

from .test_agent import Carrier, RouterStandIn, Serve, closed, echo, router, serve, settings

__all__ = ["router", "serve", "settings"]


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "RESUME_POLL_S", 0.02)


async def released(router: RouterStandIn) -> dict[str, Any]:
    return await asyncio.wait_for(router.releases.get(), 10)


async def until_idle(carrier: Carrier) -> None:
    assert await carrier.agent._until(lambda: not carrier.agent.live_calls, 10)


async def returns(call: Call) -> None:
    await call.send_mark("bye")


async def hangs_up(call: Call) -> None:
    await call.send_mark("bye")
    await call.hang_up()


@pytest.mark.parametrize("goodbye", [returns, hangs_up])
async def test_a_call_ended_by_its_handler_is_released_before_its_stream_closes(
    serve: Serve, router: RouterStandIn, goodbye: Any
) -> None:
    router.may_release = asyncio.Event()
    carrier = await serve(goodbye)
    socket = await carrier.open("call-1", resumable=True)
    assert (await socket.receive_json(timeout=10))["mark"] == {"name": "bye"}
    assert (await released(router))["call_sid"] == "call-1"

    # The router has not answered the release yet, so the stream must be open. A close that was sent before the release
    # would be here by the time that the agent has answered another request.
    closing = asyncio.create_task(socket.receive())
    async with carrier.session.get(f"http://127.0.0.1:{carrier.agent.port}/health"):
        pass
    assert not closing.done()

    router.may_release.set()
    assert (await asyncio.wait_for(closing, 10)).type is aiohttp.WSMsgType.CLOSE
    assert router.releases.empty(), "once"


async def test_a_call_allocated_before_the_last_stream_closed_waits_for_it(
    serve: Serve, router: RouterStandIn
) -> None:
    """The router gives a released pod away at once, and its answer to the release is still under way."""
    router.may_release = asyncio.Event()

    async def handler(call: Call) -> None:
        await (returns(call) if call.call_sid == "call-1" else echo(call))

    carrier = await serve(handler)
    await carrier.open("call-1")
    assert (await released(router))["call_sid"] == "call-1"

    second = await carrier.open("call-2")
    await second.send_json({"event": "media", "media": {"payload": "fn5+"}})
    # The agent has read both by the time that it has answered another request.
    async with carrier.session.get(f"http://127.0.0.1:{carrier.agent.port}/health"):
        pass
    assert carrier.agent.live_calls == ["call-1"], "one call at a time"

    router.may_release.set()
    assert (await second.receive_json(timeout=10))["media"] == {"payload": "fn5+"}
    await second.close()


async def test_a_broken_stream_is_not_released_and_its_call_is_dropped_once_it_moved(
    serve: Serve, router: RouterStandIn
) -> None:
    carrier = await serve()
    router.call_sid = "call-1"
    socket = await carrier.open("call-1", resumable=True)
    await router.heard(lambda body: body["calls"] == ["call-1"])

    socket.get_extra_info("socket").shutdown(SHUT_RDWR)

    for _ in range(3):
        assert (await router.heard(lambda body: True))["calls"] == ["call-1"], "named while it is ours"
    router.call_sid = ""
    await router.heard(lambda body: body["calls"] == [])
    assert router.releases.empty()


async def test_a_broken_stream_without_a_resumption_is_released_after_a_wait(
    serve: Serve, router: RouterStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "RESUME_WAIT_S", 0.1)
    turns: asyncio.Queue[int] = asyncio.Queue()

    async def handler(call: Call) -> None:
        turns.put_nowait(call.turn)
        await echo(call)

    carrier = await serve(handler)
    router.call_sid = "call-1"
    socket = await carrier.open("call-1", resumable=True)
    await router.heard(lambda body: body["calls"] == ["call-1"])

    socket.get_extra_info("socket").shutdown(SHUT_RDWR)

    assert (await released(router))["turn"] == 0
    await until_idle(carrier)

    again = await carrier.open("call-1", turn=1, resumable=True)
    assert [await asyncio.wait_for(turns.get(), 10) for _ in range(2)] == [0, 1], "nobody has said goodbye"
    await again.close()


async def test_a_failed_handler_closes_its_stream_without_a_release(
    serve: Serve, router: RouterStandIn, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(call: Call) -> None:
        raise RuntimeError("no idea what to say")

    carrier = await serve(fails)
    socket = await carrier.open("call-1", resumable=True)

    assert (await closed(socket))[0] == 1011
    await until_idle(carrier)
    assert router.releases.empty()
    assert "no idea what to say" in caplog.text


async def test_a_call_can_resume_at_the_pod_that_lost_its_stream(serve: Serve, router: RouterStandIn) -> None:
    seen: asyncio.Queue[Call] = asyncio.Queue()
    ended: asyncio.Queue[int] = asyncio.Queue()
    is_over = asyncio.Event()

    async def handler(call: Call) -> None:
        seen.put_nowait(call)
        try:
            await echo(call)
            await is_over.wait()
        finally:
            ended.put_nowait(call.turn)

    carrier = await serve(handler)
    router.call_sid = "call-1"
    first = await carrier.open("call-1", resumable=True)
    assert not (await asyncio.wait_for(seen.get(), 10)).resumed
    first.get_extra_info("socket").shutdown(SHUT_RDWR)

    second = await carrier.open("call-1", turn=1, resumable=True)

    resumed = await asyncio.wait_for(seen.get(), 10)
    assert (resumed.resumed, resumed.turn) == (True, 1)
    assert await asyncio.wait_for(ended.get(), 10) == 0, "the earlier handler was ended"
    assert carrier.agent.live_calls == ["call-1"]
    is_over.set()
    await second.close()


async def test_a_later_turn_releases_with_its_turn(serve: Serve, router: RouterStandIn) -> None:
    carrier = await serve()
    socket = await carrier.open("call-1", turn=1, resumable=True)
    await router.heard(lambda body: body["calls"] == ["call-1"])
    await socket.send_json({"event": "stop"})
    assert (await released(router)) == {"call_sid": "call-1", "pod_name": "agent-0", "turn": 1}


async def test_a_release_that_was_lost_is_sent_again_when_the_carrier_comes_back(
    serve: Serve, router: RouterStandIn, settings: AgentSettings
) -> None:
    async def goodbye(call: Call) -> None:
        return

    carrier = await serve(goodbye, settings=replace(settings, router_timeout_s=0.3))
    router.broken = True
    socket = await carrier.open("call-1", resumable=True)
    assert (await socket.receive(timeout=10)).type is aiohttp.WSMsgType.CLOSE
    await until_idle(carrier)
    router.broken = False
    while not router.releases.empty():
        router.releases.get_nowait()

    again = await carrier.open("call-1", turn=1, resumable=True)

    assert await closed(again) == (1008, "this agent is through with the call")
    assert (await released(router))["turn"] == 1


async def test_a_handler_that_swallows_its_cancellation_is_reported_as_hanging(
    serve: Serve, router: RouterStandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session_module, "FINISH_TIMEOUT_S", 0.05)
    monkeypatch.setattr(session_module, "CANCEL_TIMEOUT_S", 0.05)
    may_end = asyncio.Event()

    async def hangs(call: Call) -> None:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    carrier = await serve(hangs)
    socket = await carrier.open("call-1", resumable=True)
    await socket.close()

    assert (await released(router))["call_sid"] == "call-1"
    said = await router.heard(lambda body: body["hanging"] == ["call-1"])
    assert (said["calls"], said["draining"]) == ([], True), "it is not free"
    assert "does not end" in caplog.text
    assert await closed(await carrier.open("call-2")) == (1013, "the pod has its maximum of calls")

    may_end.set()
    said = await router.heard(lambda body: body["hanging"] == [])
    assert said["draining"] is False


async def test_a_stopping_pod_does_not_wait_for_a_handler_that_ignores_cancellation(
    settings: AgentSettings,
    router: RouterStandIn,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(session_module, "FINISH_TIMEOUT_S", 0.05)
    monkeypatch.setattr(session_module, "CANCEL_TIMEOUT_S", 0.05)
    may_end = asyncio.Event()
    tasks: list[asyncio.Task[Any] | None] = []

    async def hangs(call: Call) -> None:
        tasks.append(asyncio.current_task())
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    agent = Agent(hangs, settings, port=0)
    await agent.start()
    await asyncio.wait_for(agent.registered.wait(), 10)
    try:
        async with aiohttp.ClientSession() as session:
            socket = await Carrier(agent, session).open("call-1", resumable=True)
            await socket.close()
            await router.heard(lambda body: body["hanging"] == ["call-1"])
            await asyncio.wait_for(agent.stop(), 10)

        assert "leaves without the handler of call-1" in caplog.text
        # `asyncio.run` waits for every task that it knows of.
        assert tasks[0] not in asyncio.all_tasks()
    finally:
        may_end.set()


async def test_a_call_handler_that_blocks_the_event_loop_is_logged_while_it_does(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "BLOCKED_S", 0.2)
    named = threading.Event()
    told: list[str] = []

    class Hear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "has been blocked" in record.getMessage():
                told.append(record.getMessage())
                named.set()

    async def blocks(call: Call) -> None:
        named.wait(20)  # until the watch has told of it: nothing else of this process can

    hear = Hear()
    agent_module.log.addHandler(hear)
    try:
        carrier = await serve(blocks)
        socket = await carrier.open("call-1", resumable=True)
        assert (await socket.receive(timeout=30)).type is aiohttp.WSMsgType.CLOSE
    finally:
        agent_module.log.removeHandler(hear)
    assert "by the handler of call-1, at " in told[0]
    assert told[0].endswith("blocks")


async def test_calls_that_outlast_a_drain_are_handed_over_with_their_state(
    settings: AgentSettings, router: RouterStandIn
) -> None:
    stored: list[str] = []

    async def store(call: Call) -> None:
        stored.append(call.call_sid)

    agent = Agent(echo, replace(settings, shutdown_timeout_s=0.3), port=0, on_hand_over=store)
    await agent.start()
    await asyncio.wait_for(agent.registered.wait(), 10)
    async with aiohttp.ClientSession() as session:
        socket = await Carrier(agent, session).open("call-1", resumable=True)
        await router.heard(lambda body: body["calls"] == ["call-1"])

        draining = asyncio.create_task(agent.drain())
        said = await router.heard(lambda body: body["handing_over"] == ["call-1"])

        assert (await closed(socket))[0] == 1012
        assert (said["calls"], said["draining"]) == (["call-1"], True)
        await asyncio.wait_for(draining, 10)
    assert stored == ["call-1"]
    assert router.releases.empty()
    await agent.stop()


async def test_a_failing_on_hand_over_does_not_keep_a_call_from_being_handed_over(
    settings: AgentSettings, router: RouterStandIn, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(call: Call) -> None:
        raise RuntimeError("no room")

    agent = Agent(echo, replace(settings, shutdown_timeout_s=0.3), port=0, on_hand_over=fails)
    await agent.start()
    await asyncio.wait_for(agent.registered.wait(), 10)
    async with aiohttp.ClientSession() as session:
        socket = await Carrier(agent, session).open("call-1", resumable=True)
        await router.heard(lambda body: body["calls"] == ["call-1"])
        await asyncio.wait_for(agent.drain(), 10)
        assert (await closed(socket))[0] == 1012
    assert "no room" in caplog.text
    assert router.releases.empty()
    await agent.stop()


async def test_a_superseded_pod_logs_an_error_at_every_heartbeat(
    serve: Serve, router: RouterStandIn, caplog: pytest.LogCaptureFixture
) -> None:
    carrier = await serve()
    router.superseded = True
    for _ in range(2):
        await carrier.agent._heartbeats.beat()
    loud = [r for r in caplog.records if "another process has registered" in r.message]
    assert [record.levelname for record in loud] == ["ERROR", "ERROR"]


def test_a_plain_function_is_refused_at_once(settings: AgentSettings) -> None:
    def plain(call: Call) -> None: ...

    with pytest.raises(TypeError, match="handler must be an async function"):
        Agent(plain, settings)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="on_hand_over must be an async function"):
        Agent(echo, settings, on_hand_over=plain)  # type: ignore[arg-type]


def test_an_object_with_an_async_call_is_a_handler(settings: AgentSettings) -> None:
    class Talker:
        async def __call__(self, call: Call) -> None: ...

    Agent(Talker(), settings)
