"""An alarm, from its cause to the operator's webhook."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trunkline.bus import connection as bus_connection
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys
from trunkline.clock import ManualClock
from trunkline.control.raising import clear_alarm, raise_alarm
from trunkline.control.webhook import ANNOUNCE_ALARM, AlarmAnnouncer, AlarmDelivery
from trunkline.jobs.outbox import Outbox
from trunkline.jobs.platform.outgoing import Outgoing
from trunkline.jobs.poker import Poker
from trunkline.jobs.registry import Registry
from trunkline.jobs.service import JobConfig, JobService
from trunkline.loops.alarms import AlarmLoop
from trunkline.loops.leader import Leadership, LeaseTimes
from trunkline.store import database as store_database
from trunkline.store.database import Database
from trunkline.testing.http_server import serve
from trunkline.testing.waiting import eventually


class Receiver:
    """Refuses as often as it is told to, then listens."""

    def __init__(self) -> None:
        self.refusals = 0
        self.heard: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self.app = Starlette(routes=[Route("/hook", self.receive, methods=["POST"])])

    async def receive(self, request: Request) -> Response:
        if self.refusals:
            self.refusals -= 1
            return Response(status_code=503)
        await self.heard.put((request.headers["webhook-id"], await request.json()))
        return Response(status_code=204)

    async def next(self) -> tuple[str, dict[str, Any]]:
        async with asyncio.timeout(20):
            return await self.heard.get()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = await store_database.connect(database_url, pool_size=4)
    yield database
    await database.close()


@pytest.fixture
async def bus(redis_url: str, key_prefix: str) -> AsyncIterator[Bus]:
    bus = bus_connection.connect(redis_url, Keys(prefix=key_prefix))
    yield bus
    await bus.close()


@pytest.fixture
async def loop(database: Database, bus: Bus) -> AlarmLoop:
    clock = ManualClock()
    leadership = Leadership(database, clock, "control", "judge", LeaseTimes())
    await leadership.run_once()
    outbox = Outbox(Registry([ANNOUNCE_ALARM]), Poker(None))
    return AlarmLoop(leadership, database, bus, clock, AlarmAnnouncer(outbox).announce)


async def test_the_operator_hears_that_it_began_and_that_it_is_over(
    database_url: str, database: Database, loop: AlarmLoop
) -> None:
    receiver = Receiver()
    outgoing = Outgoing(allow_insecure=True)
    async with serve(receiver.app) as url:
        registry = Registry()
        registry.add(ANNOUNCE_ALARM, AlarmDelivery(f"{url}/hook", outgoing).run)
        async with JobService.open(JobConfig(), registry, database_url):
            await raise_alarm(database, "mass_free_breaker", "channels", {"would_free": 80})
            await loop.run_once()
            message_id, raised = await receiver.next()
            await clear_alarm(database, "mass_free_breaker", "channels")
            await loop.run_once()
            other_id, cleared = await receiver.next()
        await outgoing.close()
    assert (raised["type"], cleared["type"]) == ("alarm.raised", "alarm.cleared")
    assert raised["data"]["detail"] == {"would_free": 80}
    assert raised["data"]["action"].startswith("Find out why")
    assert raised["data"]["id"] == cleared["data"]["id"]
    assert message_id != other_id
    assert receiver.heard.empty()


async def test_a_receiver_that_refuses_is_asked_again(
    database_url: str, database: Database, loop: AlarmLoop
) -> None:
    receiver = Receiver()
    receiver.refusals = 1
    outgoing = Outgoing(allow_insecure=True)
    async with serve(receiver.app) as url:
        registry = Registry()
        registry.add(ANNOUNCE_ALARM, AlarmDelivery(f"{url}/hook", outgoing).run)
        async with JobService.open(JobConfig(), registry, database_url):
            await raise_alarm(database, "late_fact", "adopted")
            await loop.run_once()

            async def is_put_back() -> bool:
                async with database.connection() as conn:
                    return bool(
                        await conn.fetchval(
                            "UPDATE job_outbox SET run_at = now() WHERE last_error_code = 'http_503' RETURNING true"
                        )
                    )

            await eventually(is_put_back)
            _, raised = await receiver.next()
        await outgoing.close()
    assert raised["data"]["name"] == "late_fact"


async def test_without_a_url_nothing_is_sent_and_nothing_fails(
    database_url: str, database: Database, loop: AlarmLoop
) -> None:
    outgoing = Outgoing()
    registry = Registry()
    registry.add(ANNOUNCE_ALARM, AlarmDelivery(None, outgoing).run)
    async with JobService.open(JobConfig(), registry, database_url):
        await raise_alarm(database, "late_fact", "adopted")
        await loop.run_once()

        async def outcome() -> str | None:
            async with database.connection() as conn:
                found: str | None = await conn.fetchval("SELECT outcome FROM job_history")
                return found

        assert await eventually(outcome) == "cancelled"


async def test_the_url_is_nowhere_in_the_database(database: Database, loop: AlarmLoop) -> None:
    await raise_alarm(database, "late_fact", "adopted")
    await loop.run_once()
    async with database.connection() as conn:
        payload = await conn.fetchval("SELECT payload FROM job_outbox")
    assert "http" not in payload
