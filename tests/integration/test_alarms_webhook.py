"""An alarm, from its cause to the operator's webhook, by whole processes."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.support.api.http_server import serve
from tests.support.faults.proxy import TcpProxy
from trunkline.bus import connection as bus_connection
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys
from trunkline.clock import SystemClock
from trunkline.control.notifier import AlarmNotifier, AlarmWebhook, NotifierTimes
from trunkline.control.raising import clear_alarm, raise_alarm
from trunkline.store import database as store_database
from trunkline.store.database import Database

# As in production, but shorter: of an outage after 0.2 s, of a missing leader after 0.2 s.
TIMES = NotifierTimes(
    interval_s=0.05,
    look_timeout_s=0.3,
    unreachable_after_s=0.2,
    lapsed_after_s=0.2,
    resigned_after_s=0.2,
)


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

    async def next_of(self, name: str) -> dict[str, Any]:
        while True:
            _, body = await self.next()
            if body["data"]["name"] == name:
                return body


@pytest.fixture
async def receiver() -> AsyncIterator[tuple[Receiver, str]]:
    receiver = Receiver()
    async with serve(receiver.app) as url:
        yield receiver, f"{url}/hook"


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
async def notifier(
    database: Database, bus: Bus, receiver: tuple[Receiver, str]
) -> AsyncIterator[AlarmNotifier]:
    """Of any process: nobody leads, and no job runs."""
    notifier = AlarmNotifier(
        database, bus, SystemClock(), "an api process", "control", AlarmWebhook(receiver[1])
    )
    yield notifier
    await notifier.close()


async def test_the_webhook_receives_raised_and_cleared_of_an_alarm(
    database: Database, notifier: AlarmNotifier, receiver: tuple[Receiver, str]
) -> None:
    ears, _ = receiver
    await raise_alarm(database, "mass_free_breaker", "channels", {"would_free": 80})
    await notifier.run_once()
    message_id, raised = await ears.next()
    await clear_alarm(database, "mass_free_breaker", "channels")
    await notifier.run_once()
    other_id, cleared = await ears.next()
    await notifier.run_once()
    assert (raised["type"], cleared["type"]) == ("alarm.raised", "alarm.cleared")
    assert raised["data"]["detail"] == {"would_free": 80}
    assert raised["data"]["action"].startswith("Find out why")
    assert raised["data"]["id"] == cleared["data"]["id"]
    assert message_id != other_id
    assert ears.heard.empty()


async def test_a_refused_webhook_is_sent_again(
    database: Database, notifier: AlarmNotifier, receiver: tuple[Receiver, str]
) -> None:
    ears, _ = receiver
    ears.refusals = 1
    await raise_alarm(database, "late_fact", "adopted")
    assert await notifier.run_once() == 0
    async with database.connection() as conn:
        await conn.execute("UPDATE alarms SET notify_after = now()")
    assert await notifier.run_once() == 1
    assert (await ears.next())[1]["data"]["name"] == "late_fact"


async def test_without_a_webhook_url_the_notifier_sends_nothing(database: Database, bus: Bus) -> None:
    await raise_alarm(database, "late_fact", "adopted")
    assert await AlarmNotifier(database, bus, SystemClock(), "p", "control").run_once() == 0


async def test_the_url_is_nowhere_in_the_database(
    database: Database, notifier: AlarmNotifier, receiver: tuple[Receiver, str]
) -> None:
    await raise_alarm(database, "late_fact", "adopted")
    await notifier.run_once()
    async with database.connection() as conn:
        row = await conn.fetchval("SELECT to_jsonb(a)::text FROM alarms AS a")
    assert "http" not in row


async def test_the_webhook_receives_an_outage_of_postgres_while_it_lasts(
    database_url: str, bus: Bus, receiver: tuple[Receiver, str]
) -> None:
    """From the first look on, the loop runs by itself."""
    ears, url = receiver
    async with TcpProxy.before(database_url) as proxy:
        database = await store_database.connect(proxy.url, pool_size=3, connect_timeout_s=0.3)
        loop = AlarmNotifier(database, bus, SystemClock(), "p", "control", AlarmWebhook(url), TIMES)
        running = asyncio.create_task(loop.run())
        for how in ("hangs", "refuses"):
            if how == "hangs":
                proxy.black_hole()
            else:
                proxy.refuse()
                proxy.cut()
            raised = await ears.next_of("postgres_unreachable")
            assert raised["type"] == "alarm.raised"
            await proxy.heal()
            cleared = await ears.next_of("postgres_unreachable")
            assert (cleared["type"], cleared["data"]["id"]) == ("alarm.cleared", raised["data"]["id"])
        loop.stop()
        await running
        await loop.close()
        await database.close()


async def test_a_process_that_never_leads_sends_the_no_leader_alarm(
    database: Database, bus: Bus, receiver: tuple[Receiver, str]
) -> None:
    ears, url = receiver
    loop = AlarmNotifier(database, bus, SystemClock(), "p", "control", AlarmWebhook(url), TIMES)
    running = asyncio.create_task(loop.run())
    raised = await ears.next_of("no_leader")
    loop.stop()
    await running
    await loop.close()
    assert raised["type"] == "alarm.raised"
