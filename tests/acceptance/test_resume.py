"""An agent is lost in the middle of its call: the person stays, and another agent goes on where the first one was.

The carriers are simulated, the agents are real, and one of them is a process that is killed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from socket import SHUT_RDWR
from typing import Any
from uuid import UUID

import pytest

from tests.support.agent.process import agent_process, talk
from tests.support.api.asgi import AsgiClient
from tests.support.api.webhooks import count
from tests.support.telephony.carriers import FROM, open_carrier_world, ring_in
from tests.support.waiting import eventually
from tests.support.world import ADMIN_KEY, World
from trunkline.agent import Agent, AgentSettings, Call
from trunkline.bus import router as bus_router
from trunkline.telemetry import metrics

# Talks until somebody hangs up.
TALKS_ON = "+15005551601"
Port = Callable[[], int]
CARRIERS = ["twilio", "plivo"]


@pytest.fixture(params=CARRIERS)
async def world(
    request: pytest.FixtureRequest, database_url: str, redis_url: str, key_prefix: str
) -> AsyncIterator[World]:
    """Without simulated pods: the agents of the test are the only ones. Who waits for one waits by the carrier's clock,
    which runs fast here."""
    async with open_carrier_world(database_url, redis_url, key_prefix, pods=0, ROUTER_HOLD_MAX="1h") as world:
        number = await world.client.create_number(FROM, pool="p", carrier=request.param, max_channels=3)
        # Who rings it is the merchant's caller.
        admin, path = AsgiClient(world.platform.http.api, ADMIN_KEY), f"/api/v1/numbers/{number.id}/inbound"
        assert (await admin.request("PUT", path, json={"merchant_id": "m"})).status == 200
        yield world


@asynccontextmanager
async def agent(
    world: World,
    name: str,
    port: int,
    handler: Callable[[Call], Coroutine[Any, Any, None]],
    *,
    shutdown_timeout_s: float = 5,
    on_hand_over: Callable[[Call], Coroutine[Any, Any, None]] | None = None,
) -> AsyncIterator[Agent]:
    settings = AgentSettings(
        router_url=world.platform.base_url,
        api_key=ADMIN_KEY,
        pod_name=name,
        base_url=f"ws://127.0.0.1:{port}",
        heartbeat_interval_s=1,
        shutdown_timeout_s=shutdown_timeout_s,
    )
    agent = Agent(handler, settings, port=port, on_hand_over=on_hand_over)
    await agent.start()
    try:
        await asyncio.wait_for(agent.registered.wait(), 20)
        yield agent
    finally:
        await agent.stop()


async def until_over(call: Call) -> None:
    async for _ in call:
        pass


async def lead_of(world: World) -> UUID:
    await until_agents(world)
    return (await world.client.create_lead(merchant_id="m", phone=TALKS_ON, max_attempts=1)).id


async def until_agents(world: World) -> None:
    """Valkey has been compared with Postgres and proposes the agents."""

    async def proposes() -> bool:
        free = await bus_router.free_slots(world.platform.router.bus)
        return free is not None and any(free.values())

    await eventually(proposes, timeout_s=20, what="there are agents")


async def hung_up(world: World, lead: UUID, call_sid: str) -> None:
    """The person hangs up, and the lead ends as one who talked with an agent."""
    world.carrier.end(call_sid, "completed")
    assert (await world.finished(lead)).outcome == "ANSWERED"
    dials = [dial for dial in world.carrier.ledger.dials if dial.to == TALKS_ON]
    assert len(dials) == 1, "nobody was called twice"


async def test_a_killed_agents_call_resumes_at_another_agent_with_its_stored_state(
    world: World, unused_tcp_port_factory: Port
) -> None:
    async with AsyncExitStack() as stack:
        agents = {
            name: await stack.enter_async_context(
                agent_process(name, world.platform.base_url, ADMIN_KEY, unused_tcp_port_factory())
            )
            for name in ("agent-a", "agent-b")
        }
        lead = await lead_of(world)
        telling = {name: asyncio.create_task(one.told()) for name, one in agents.items()}
        await asyncio.wait(telling.values(), return_when=asyncio.FIRST_COMPLETED)
        (first,) = [task.result() for task in telling.values() if task.done()]
        other = "agent-b" if first["pod"] == "agent-a" else "agent-a"
        assert (first["turn"], first["state"]) == (0, None)

        await agents[first["pod"]].kill()

        second = await telling[other]
        assert second == {
            "pod": other,
            "call": first["call"],
            "turn": 1,
            "resumed": True,
            "state": {"step": 1, "pod": first["pod"]},
        }
        await hung_up(world, lead, first["call"])


async def test_a_handler_that_returns_ends_the_call_without_a_resumption(
    world: World, unused_tcp_port_factory: Port
) -> None:
    calls: list[int] = []
    over = count(metrics.ROUTER_RESUMPTIONS, result="over")

    async def goodbye(call: Call) -> None:
        calls.append(call.turn)
        await call.context()

    async with AsyncExitStack() as stack:
        for name in ("agent-a", "agent-b"):
            await stack.enter_async_context(agent(world, name, unused_tcp_port_factory(), goodbye))
        for _ in range(3):
            lead = await world.finished(await lead_of(world))
            assert lead.outcome == "ANSWERED"
    assert calls == [0, 0, 0], "nobody was given another agent"
    assert count(metrics.ROUTER_RESUMPTIONS, result="over") == over + 3, "the carrier asked each time"


async def test_a_call_whose_agent_failed_resumes_at_another_agent(
    world: World, unused_tcp_port_factory: Port
) -> None:
    told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def handler_of(pod: str) -> Callable[[Call], Coroutine[Any, Any, None]]:
        async def handler(call: Call) -> None:
            told.put_nowait(await talk(call, pod))
            if not call.resumed:
                raise RuntimeError("no idea what to say")
            await until_over(call)

        return handler

    async with AsyncExitStack() as stack:
        for name in ("agent-a", "agent-b"):
            await stack.enter_async_context(agent(world, name, unused_tcp_port_factory(), handler_of(name)))
        lead = await lead_of(world)
        first = await asyncio.wait_for(told.get(), 30)
        second = await asyncio.wait_for(told.get(), 30)
        assert (first["turn"], second["turn"]) == (0, 1)
        assert second["state"] == {"step": 1, "pod": first["pod"]}
        await hung_up(world, lead, first["call"])


async def test_an_inbound_call_stays_connected_when_its_agent_fails(
    world: World, unused_tcp_port_factory: Port, request: pytest.FixtureRequest
) -> None:
    told: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    async def handler(call: Call) -> None:
        told.put_nowait(((await call.context()).direction, call.turn))
        if not call.resumed:
            raise RuntimeError("no idea what to say")
        await until_over(call)

    async with AsyncExitStack() as stack:
        for name in ("agent-a", "agent-b"):
            await stack.enter_async_context(agent(world, name, unused_tcp_port_factory(), handler))
        await until_agents(world)
        carrier = request.node.callspec.params["world"]
        call = ring_in(world, carrier, FROM, TALKS_ON)
        assert await asyncio.wait_for(told.get(), 30) == ("inbound", 0)
        assert await asyncio.wait_for(told.get(), 30) == ("inbound", 1)
        assert call.state == "answered"
        world.carrier.end(call.sid, "completed")
        await world.carrier.idle()


async def test_a_draining_pod_hands_its_calls_over_with_their_state(
    world: World, unused_tcp_port_factory: Port
) -> None:
    told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def handler_of(pod: str) -> Callable[[Call], Coroutine[Any, Any, None]]:
        async def handler(call: Call) -> None:
            about = await call.context()
            told.put_nowait(
                {"pod": pod, "call": call.call_sid, "resumed": about.resumed, "state": about.state}
            )
            await until_over(call)

        return handler

    async def store(call: Call) -> None:
        await call.save_state({"stored": "before the pod left"})

    async with AsyncExitStack() as stack:
        agents = {
            name: await stack.enter_async_context(
                agent(
                    world,
                    name,
                    unused_tcp_port_factory(),
                    handler_of(name),
                    shutdown_timeout_s=3,
                    on_hand_over=store,
                )
            )
            for name in ("agent-a", "agent-b")
        }
        lead = await lead_of(world)
        first = await asyncio.wait_for(told.get(), 30)

        await agents[first["pod"]].drain()

        second = await asyncio.wait_for(told.get(), 30)
        assert second["pod"] != first["pod"]
        assert (second["resumed"], second["state"]) == (True, {"stored": "before the pod left"})
        assert agents[first["pod"]].live_calls == []
        await hung_up(world, lead, first["call"])


async def test_the_only_pod_resumes_its_own_call_after_its_stream_broke(
    world: World, unused_tcp_port_factory: Port
) -> None:
    """Its stream breaks, it lives: when it has let go of the call it is a free pod like any other."""
    told: asyncio.Queue[Call] = asyncio.Queue()

    async def handler(call: Call) -> None:
        told.put_nowait(call)
        await until_over(call)

    async with agent(world, "agent-a", unused_tcp_port_factory(), handler) as only:
        lead = await lead_of(world)
        first = await asyncio.wait_for(told.get(), 30)
        first._socket.get_extra_info("socket").shutdown(SHUT_RDWR)

        second = await asyncio.wait_for(told.get(), 60)

        assert (second.call_sid, second.turn) == (first.call_sid, 1)
        await eventually(_of(lambda: only.live_calls == [first.call_sid]), timeout_s=20)
        await hung_up(world, lead, first.call_sid)


def _of(condition: Callable[[], bool]) -> Callable[[], Coroutine[Any, Any, bool]]:
    async def holds() -> bool:
        return condition()

    return holds
