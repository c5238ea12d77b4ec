"""Pods that speak every 30 s, as the agents of the router's guide do: a short call is over before its pod has named it,
so the carrier says whether its stream began."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import aiohttp
import pytest
from aiohttp import web

from tests.support.telephony.carriers import FROM, open_carrier_world
from tests.support.waiting import eventually
from tests.support.world import ADMIN_KEY, World
from trunkline.agent.simulated import SimulatedPods

ANSWERS = "+15005551000"
DOUBLED, REORDERED, LATE = "+15005554100", "+15005554200", "+15005554300"


@pytest.fixture(params=["twilio", "plivo"])
async def world(
    request: pytest.FixtureRequest, database_url: str, redis_url: str, key_prefix: str
) -> AsyncIterator[World]:
    async with open_carrier_world(database_url, redis_url, key_prefix, pods=0) as world:
        await world.client.create_number(FROM, pool="p", carrier=request.param, max_channels=3)
        yield world


@asynccontextmanager
async def slow_pod(world: World, *, takes_streams: bool) -> AsyncIterator[None]:
    """It sends one heartbeat and does not say how often more will follow. It never names a call."""

    async def stream(request: web.Request) -> web.StreamResponse:
        if not takes_streams:
            raise web.HTTPServiceUnavailable
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for _ in socket:
            pass
        return socket

    app = web.Application()
    app.router.add_get("/ws/pod/{pod}/{call}", stream)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base_url = f"ws://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {ADMIN_KEY}"}) as http,
            http.post(
                f"{world.platform.base_url}/api/v1/pods/slow-pod/heartbeat",
                json={"base_url": base_url, "boot_id": "boot-1"},
            ) as answer,
        ):
            assert answer.status == 200, await answer.text()
        yield
    finally:
        await runner.cleanup()


async def lead_of(world: World, phone: str) -> UUID:
    return (await world.client.create_lead(merchant_id="m", phone=phone, max_attempts=1)).id


async def attempt_of(world: World, lead: UUID) -> dict[str, Any]:
    async with world.platform.database.connection() as conn:
        rows = await conn.fetch("SELECT agent, stream_began FROM attempts WHERE lead_id = $1", lead)
    assert len(rows) == 1, "nobody was called twice"
    return dict(rows[0])


async def told_of_streams(world: World) -> int:
    async with world.platform.database.connection() as conn:
        count: int = await conn.fetchval("SELECT count(*) FROM mailbox_events WHERE type LIKE 'stream%'")
    return count


@pytest.mark.parametrize("phone", [ANSWERS, DOUBLED, REORDERED, LATE])
async def test_a_short_call_that_its_pod_never_named_had_its_agent(world: World, phone: str) -> None:
    async with slow_pod(world, takes_streams=True):
        lead = await lead_of(world, phone)
        assert (await world.finished(lead)).outcome == "ANSWERED"
        await world.carrier.idle()

        async def is_known() -> bool:
            return await attempt_of(world, lead) == {"agent": "joined", "stream_began": True}

        await eventually(is_known, timeout_s=20, what="the carrier's word is folded")
        found = await world.client.get_lead(lead)
        assert (found.status, found.outcome) == ("FINISHED", "ANSWERED")


@pytest.mark.parametrize("phone", [ANSWERS, DOUBLED, REORDERED, LATE])
async def test_a_call_whose_stream_could_not_be_opened_comes_again(world: World, phone: str) -> None:
    async with slow_pod(world, takes_streams=False):
        lead = await lead_of(world, phone)

        async def waits() -> bool:
            row = await attempt_of(world, lead) if await is_dialled(world) else {}
            waiting = (await world.client.get_lead(lead)).status == "BACKLOG"
            return waiting and row == {"agent": "none", "stream_began": False}

        await eventually(waits, timeout_s=20, what="the lead waits for an agent")
        await world.carrier.idle()
        found = await world.client.get_lead(lead)
        assert (found.status, found.outcome) == ("BACKLOG", None)


async def is_dialled(world: World) -> bool:
    async with world.platform.database.connection() as conn:
        return bool(await conn.fetchval("SELECT EXISTS (SELECT FROM attempts)"))


async def test_the_carrier_is_not_asked_about_streams_of_pods_that_speak_often(world: World) -> None:
    async with SimulatedPods(1, world.platform.base_url, ADMIN_KEY) as pods:

        async def is_known() -> bool:
            return world.platform.router.addresses.by_pod.get(pods.names[0]) is not None

        await eventually(is_known, timeout_s=20, what="the pod is known where calls are answered")
        lead = await lead_of(world, ANSWERS)
        assert (await world.finished(lead)).outcome == "ANSWERED"
        await world.carrier.idle()
        assert (await attempt_of(world, lead))["agent"] == "joined"
        assert await told_of_streams(world) == 0
