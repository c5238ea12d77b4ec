"""What the handler of one call does wrong, it does to its own pod. Agents are processes of their own, the platform is
in this one. The call ends, other calls have other agents, and a pod that is told to stop ends."""

from collections.abc import AsyncIterator, Callable
from uuid import UUID

import pytest

from tests.support.agent.process import AgentProcess, agent_process
from tests.support.bus.router_keys import RouterKeys
from tests.support.waiting import eventually
from tests.support.world import ADMIN_KEY, World, open_world

# Both talk until somebody hangs up.
FIRST, SECOND = "+15005551601", "+15005551602"


@pytest.fixture
async def world(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[World]:
    async with open_world(database_url, redis_url, key_prefix, pods=0, ROUTER_HOLD_MAX="1h") as world:
        await world.client.create_number("+14155550100", pool="p", carrier="twilio", max_channels=3)
        yield world


async def call(world: World, phone: str, agent: AgentProcess) -> tuple[UUID, str]:
    """The lead, and its call at this agent."""
    lead = await world.client.create_lead(merchant_id="m", phone=phone, max_attempts=1)
    told = await agent.told()
    assert told["pod"] == agent.name
    return lead.id, told["call"]


async def hung_up(world: World, lead: UUID, call_sid: str) -> None:
    world.carrier.end(call_sid, "completed")
    assert (await world.finished(lead, timeout_s=60)).outcome == "ANSWERED"


async def sql(world: World, statement: str, *values: object) -> object:
    return await world.platform.database.pool.fetchval(statement, *values)


async def test_a_handler_that_swallows_its_cancellation_takes_up_its_pod_and_no_call(
    world: World, unused_tcp_port_factory: Callable[[], int]
) -> None:
    place = world.platform.base_url, ADMIN_KEY
    async with agent_process("agent-a", *place, unused_tcp_port_factory(), "stubborn") as stubborn:
        lead, call_sid = await call(world, FIRST, stubborn)
        await hung_up(world, lead, call_sid)
        await stubborn.logs_error(f"the handler of {call_sid} was cancelled and does not end")
        await eventually(
            lambda: sql(world, "SELECT hanging = ARRAY[$1] FROM pods WHERE name = 'agent-a'", call_sid),
            timeout_s=30,
            what="the router knows that its handler hangs",
        )
        live = "SELECT count(*) = 0 FROM allocations WHERE pod = 'agent-a' AND ended_at IS NULL"
        await eventually(lambda: sql(world, live), timeout_s=30, what="the pod has no call any more")
        async with agent_process("agent-b", *place, unused_tcp_port_factory()) as innocent:
            await hung_up(world, *await call(world, SECOND, innocent))
        assert await stubborn.stop() == 0


async def test_a_handler_that_blocks_its_event_loop_is_named_and_delays_no_other_call(
    world: World, unused_tcp_port_factory: Callable[[], int]
) -> None:
    """Its call is given to another agent once its own is dead: a process that stands still cannot end by itself."""
    place = world.platform.base_url, ADMIN_KEY
    async with agent_process("agent-a", *place, unused_tcp_port_factory(), "blocks") as blocked:
        lead, call_sid = await call(world, FIRST, blocked)
        await blocked.logs_error(f"by the handler of {call_sid}, at ")
        async with agent_process("agent-b", *place, unused_tcp_port_factory()) as innocent:
            await hung_up(world, *await call(world, SECOND, innocent))
            await blocked.kill()
            told = await innocent.told()
            assert (told["call"], told["turn"]) == (call_sid, 1)
            await hung_up(world, lead, call_sid)


async def test_a_killed_pod_is_removed_though_the_clock_of_valkey_was_set_back(
    database_url: str, redis_url: str, key_prefix: str, unused_tcp_port: int
) -> None:
    async with open_world(
        database_url, redis_url, key_prefix, pods=0, VOICE_AGENT_HEARTBEAT_TTL="3s", CLEANUP_INTERVAL="1s"
    ) as world:
        client, keys = world.platform.bus.client, RouterKeys(world.platform.router.bus.keys.prefix)
        async with agent_process("agent-a", world.platform.base_url, ADMIN_KEY, unused_tcp_port) as agent:
            await eventually(lambda: client.zscore(keys.heartbeats, "agent-a"), what="a heartbeat in Valkey")
            await agent.kill()
        seconds, _ = await client.time()
        ahead_ms = (seconds + 3600) * 1000
        await client.zadd(keys.heartbeats, {"agent-a": ahead_ms})
        await client.hset(keys.hearing, mapping={"since": ahead_ms, "ran": ahead_ms})

        async def is_removed() -> bool:
            return await client.zscore(keys.heartbeats, "agent-a") is None

        await eventually(is_removed, timeout_s=60, what="the pod is removed")
