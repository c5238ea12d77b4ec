"""A real agent on a real stream: it reads the call's context, and its report becomes the lead's outcome."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.waiting import eventually
from tests.support.world import ADMIN_KEY, World, open_world
from trunkline.agent import Agent, AgentSettings, Call, Context, Outcome
from trunkline.client import LeadWithAttempts

ANSWERS = "+15005551000"


@pytest.fixture
async def world(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[World]:
    """Without simulated pods: the agent of the test is the only one."""
    async with open_world(database_url, redis_url, key_prefix, pods=0) as world:
        await world.client.create_number("+14155550100", pool="p", carrier="twilio", max_channels=3)
        yield world


@asynccontextmanager
async def agent(
    world: World, handler: Callable[[Call], Awaitable[None]], unused_port: int
) -> AsyncIterator[Agent]:
    async def handle(call: Call) -> None:
        await handler(call)

    settings = AgentSettings(
        router_url=world.platform.base_url,
        api_key=ADMIN_KEY,
        pod_name="the-agent",
        base_url=f"ws://127.0.0.1:{unused_port}",
        heartbeat_interval_s=1,
        shutdown_timeout_s=5,
    )
    agent = Agent(handle, settings, port=unused_port)
    await agent.start()
    try:
        await agent.registered.wait()
        yield agent
    finally:
        await agent.stop()


async def until_over(call: Call) -> None:
    async for _ in call:
        pass


async def test_the_agents_report_becomes_the_leads_outcome(world: World, unused_tcp_port: int) -> None:
    asked: list[Context] = []

    async def handler(call: Call) -> None:
        asked.append(await call.context())
        await until_over(call)
        await call.report(Outcome("interested", transcript_ref="s3://t/1", recording_ref="s3://r/1"))

    async with agent(world, handler, unused_tcp_port):
        lead = await world.client.create_lead(
            merchant_id="m", phone=ANSWERS, payload={"name": "Ada", "template": "t1"}
        )

        async def told() -> LeadWithAttempts | None:
            found = await world.client.get_lead(lead.id)
            return found if found.outcome == "INTERESTED" else None

        found = await eventually(told, timeout_s=20)
    assert [(each.lead_id, each.template, each.payload["name"]) for each in asked] == [
        (str(lead.id), "t1", "Ada")
    ]
    (attempt,) = found.attempts
    assert attempt.report is not None
    assert (attempt.report["transcript_ref"], attempt.report["recording_ref"]) == ("s3://t/1", "s3://r/1")


async def test_a_callback_in_the_agents_report_becomes_the_leads_due_time(
    world: World, unused_tcp_port: int
) -> None:
    wanted = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=3)
    reported = asyncio.Event()

    async def handler(call: Call) -> None:
        await until_over(call)
        await call.report(Outcome("later", callback_at=wanted))
        reported.set()

    async with agent(world, handler, unused_tcp_port):
        lead = await world.client.create_lead(merchant_id="m", phone=ANSWERS, max_attempts=2)
        await asyncio.wait_for(reported.wait(), 20)

        async def is_due_again() -> LeadWithAttempts | None:
            found = await world.client.get_lead(lead.id)
            return found if found.status == "BACKLOG" and found.attempt_count else None

        again = await eventually(is_due_again, timeout_s=20)
    assert abs(again.due_at - wanted) < timedelta(seconds=2)
