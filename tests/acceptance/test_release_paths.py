"""The platform's two ways of releasing a pod, from the carrier's own webhook to a pod that is free again.

The pod here takes no stream: it never hears of its calls, so it cannot be what lets them go.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import UUID

import pytest
from aiohttp import web

from tests.support.telephony.carriers import FROM, open_carrier_world
from tests.support.waiting import eventually
from tests.support.world import ADMIN_KEY, CARRIER, TIME_SCALE, World
from trunkline.agent.simulated import SimulatedPods
from trunkline.bus import router as bus_router
from trunkline.client.models import Attempt

WITH_PODS = ["exotel", "plivo", "twilio"]
FREE, BUSY = 1, 0


class DeafPod(SimulatedPods):
    async def _stream(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=503)


@asynccontextmanager
async def one_deaf_pod(
    database_url: str, redis_url: str, key_prefix: str, carrier: str, time_scale: float = TIME_SCALE
) -> AsyncIterator[World]:
    config = replace(CARRIER, time_scale=time_scale)
    more = {"RING_TIMEOUT": "10m"}
    async with (
        open_carrier_world(database_url, redis_url, key_prefix, config=config, pods=0, **more) as world,
        DeafPod(1, world.platform.base_url, ADMIN_KEY),
    ):
        await world.client.create_number(FROM, pool="p", carrier=carrier, max_channels=3)
        await pods_are(world, FREE)
        yield world


async def pods_are(world: World, count: int) -> None:
    """Free, as Valkey has it and as Postgres has it."""

    async def are() -> bool:
        counts = await bus_router.counts(world.platform.router.bus)
        live = await world.platform.database.pool.fetchval(
            "SELECT count(*) FROM allocations WHERE ended_at IS NULL"
        )
        return (sum(pool.room for pool in counts.pools), 1 - live) == (count, count)

    await eventually(are, timeout_s=20, what=f"{count} pods are free")


async def call_id_of(world: World, lead_id: UUID) -> str:
    async def found() -> str | None:
        attempts = (await world.client.get_lead(lead_id)).attempts
        return attempts[0].carrier_call_id if attempts else None

    return await eventually(found, timeout_s=20, what="the carrier has the call")


async def ended_attempt(world: World, lead_id: UUID) -> Attempt:
    async def found() -> Attempt | None:
        attempts = (await world.client.get_lead(lead_id)).attempts
        return next((each for each in attempts if each.state == "ended"), None)

    return await eventually(found, timeout_s=20, what="its call has ended")


@pytest.mark.parametrize("carrier", WITH_PODS)
async def test_the_carriers_end_webhook_releases_the_pod(
    database_url: str, redis_url: str, key_prefix: str, carrier: str
) -> None:
    """Release path 4. The one pod serves one lead after the other, so each end has freed it."""
    async with one_deaf_pod(database_url, redis_url, key_prefix, carrier) as world:
        for number in range(2):
            made = await world.client.create_lead(merchant_id="m", phone=f"+150055516{number:02}")
            attempt = await ended_attempt(world, made.id)
            assert attempt.answered_at is not None
            await pods_are(world, FREE)
            # A heartbeat that left late in the call shows that the pod did not have it; else nobody can say.
            lead = await world.client.get_lead(made.id)
            if attempt.agent == "none":
                assert (lead.status, lead.no_agent_count) == ("BACKLOG", 1), "it is called again"
            else:
                assert (attempt.agent, lead.status, lead.outcome) == ("unknown", "FINISHED", "ANSWERED")

        async def noted() -> bool:
            # One whose stream was refused has gone on without a pod; there is only this one that it can have had.
            rows = await world.platform.database.pool.fetch("SELECT begun_at, pod, turn FROM allocations")
            had = [
                bool(row["begun_at"]) and (row["pod"] == "voice-agent-0" or row["turn"] > 0) for row in rows
            ]
            return had == [True, True]

        await eventually(noted, timeout_s=20, what="both calls had the pod")


@pytest.mark.parametrize("carrier", WITH_PODS)
async def test_an_unanswered_call_releases_the_pod_reserved_for_it(
    database_url: str, redis_url: str, key_prefix: str, carrier: str
) -> None:
    """Release path 3: a slot is reserved for the call before it is answered."""
    async with one_deaf_pod(database_url, redis_url, key_prefix, carrier, time_scale=0.1) as world:
        made = await world.client.create_lead(merchant_id="m", phone="+15005551700", max_attempts=1)
        call_id = await call_id_of(world, made.id)
        await pods_are(world, BUSY)
        world.carrier.end(call_id, "no_answer")
        lead = await world.finished(made.id)
        assert (lead.outcome, lead.outcome_reason) == ("NO_ANSWER", "NO_ANSWER")
        await pods_are(world, FREE)
