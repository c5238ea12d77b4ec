"""Handlers of mailboxes that do not behave: each costs its own mailbox, and is named."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.mailbox.world import KIND, MailboxWorld, Recorder, event, mailbox_world, running
from tests.support.metric_values import value
from tests.support.waiting import eventually
from trunkline.errors import PoolEmpty
from trunkline.mailbox import Mailbox, Mailboxes, mailbox
from trunkline.mailbox.handler import BadHandler, Batch, Done, Write
from trunkline.mailbox.processing import FailureRule
from trunkline.mailbox.worker import MailboxWorker, WorkerLimits
from trunkline.store import database as store_database
from trunkline.store.database import Connection
from trunkline.telemetry import metrics

BRIEF = FailureRule(failures_max=3, backoff_first_s=600, timeout_s=0.1)


@pytest.fixture
async def world(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[MailboxWorld]:
    async with mailbox_world(database_url, redis_url, key_prefix) as world:
        yield world


class Misbehaving(Recorder):
    """Does what the key of a mailbox says; everything else is an innocent."""

    async def handle(self, batch: Batch) -> Write | Done | None:
        await Recorder.handle(self, batch)
        [key] = batch
        if key == "stubborn":
            await swallow_everything()
        if key == "stubborn_write":
            return lambda tx: swallow_everything()
        if key.startswith("hung_write"):
            return hang
        return None


async def swallow_everything() -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except BaseException:
            continue


async def hang(_: Connection) -> None:
    await asyncio.Event().wait()


def worker(world: MailboxWorld, handler: Recorder, **limits: Any) -> MailboxWorker:
    given = {"lease_s": 0.6, "sweep_s": 0.05, "cancel_grace_s": 0.1, "stop_s": 0.1, "failure": BRIEF}
    return world.worker(handler, batch_max=1, **{**given, **limits})


async def is_put_back(world: MailboxWorld, key: str) -> bool:
    row = await world.rows("SELECT processing_status, failures FROM mailboxes WHERE key = $1", key)
    return [tuple(each) for each in row] == [("queued", 1)]


@pytest.mark.parametrize("key", ["stubborn", "stubborn_write"])
async def test_a_handler_that_swallows_its_cancellation_is_named_and_loses_its_slot(
    world: MailboxWorld, key: str
) -> None:
    stuck = metrics.HANDLERS_STUCK.labels("mailbox", KIND, "ignores_cancellation")
    before = value(stuck)
    handler = Misbehaving()
    with capture_logs() as logs:
        async with running(worker(world, handler, concurrency=1)):
            await world.append(event(key))
            await eventually(lambda: is_put_back(world, key), what="the mailbox put back under its fence")
            await world.append(event("innocent"))
            await handler.until(lambda: handler.seen("innocent") == ["1"])
    [told] = [line for line in logs if line["event"] == "mailbox.ignores_cancellation"]
    assert told["keys"] == [key]
    assert "swallow_everything" in told["where"]
    assert "Misbehaving.handle" in told["handler"]
    assert value(stuck) - before == 1


async def test_a_handlers_timeout_covers_its_write(world: MailboxWorld) -> None:
    async with running(worker(world, Misbehaving())):
        await world.append(event("hung_write"))
        await eventually(lambda: is_put_back(world, "hung_write"))
    assert "TimeoutError" in await world.value("SELECT last_error FROM mailboxes")


async def test_a_stopped_mailbox_worker_gives_hanging_mailboxes_back_and_logs_them(
    world: MailboxWorld,
) -> None:
    handler = Misbehaving()
    with capture_logs() as logs:
        async with running(worker(world, handler, failure=FailureRule(timeout_s=600))):
            await world.append(event("stubborn"))
            await handler.until(lambda: handler.seen("stubborn") == ["1"])
    assert [line["unfinished"] for line in logs if line["event"] == "mailbox.stopped_without"] == [1]
    # Given back under its fence: nobody waits for its lease to end, and nothing counts as a failure.
    assert [tuple(row) for row in await world.rows("SELECT processing_status, failures FROM mailboxes")] == [
        ("queued", 0)
    ]


async def test_a_mailbox_handler_that_blocks_the_event_loop_is_logged_while_it_does(
    world: MailboxWorld,
) -> None:
    stuck = metrics.HANDLERS_STUCK.labels("mailbox", KIND, "blocks")
    before = value(stuck)
    named = threading.Event()
    told: list[MutableMapping[str, Any]] = []

    class Blocking(Recorder):
        async def handle(self, batch: Batch) -> Write | Done | None:
            named.wait(20)  # until the watch has told of it: nothing else of this process can
            return await Recorder.handle(self, batch)

    def hear(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if line.get("event") == "mailbox.blocks_the_event_loop":
            told.append(line)
            named.set()
        return line

    handler = Blocking()
    with capture_logs(processors=[hear]):
        async with running(world.worker(handler, batch_max=1, lease_s=1.5, sweep_s=0.05)):
            await world.append(event("a"))
            await handler.until(lambda: handler.seen("a") == ["1"])
    assert (told[0]["kind"], told[0]["keys"]) == (KIND, ["a"])
    assert "Blocking.handle" in told[0]["where"]
    assert value(stuck) - before == len(told)


def test_a_plain_function_is_refused_where_it_is_declared() -> None:
    def plain(box: Mailbox) -> None:
        """Not async."""

    with pytest.raises(BadHandler, match=r"plain \(.*test_mailbox_handlers\.py:\d+\)"):
        mailbox("issue")(plain)  # type: ignore[arg-type]


def test_a_handler_object_with_a_plain_method_is_refused(world: MailboxWorld) -> None:
    class Plain:
        kind = KIND

        def handle(self, batch: Batch) -> None:
            """Not async."""

    with pytest.raises(BadHandler, match="async def"):
        world.worker(Plain())  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["write", "write_in_a_lambda", "after"])
async def test_a_plain_function_that_a_handler_hands_over_is_refused_with_its_place(
    world: MailboxWorld, what: str
) -> None:
    """Nothing of it is written. One that is known to be plain is not even called."""
    called: list[str] = []

    def plain(*_: Any) -> None:
        called.append(what)

    async def write(_: Connection) -> Any:
        return plain

    class Plain(Recorder):
        async def handle(self, batch: Batch) -> Write | Done | None:
            given = {"write": plain, "write_in_a_lambda": lambda tx: plain(tx), "after": write}
            return given[what]  # type: ignore[return-value]

    async with running(worker(world, Plain())):
        await world.append(event("a"))
        await eventually(lambda: is_put_back(world, "a"))
    error = await world.value("SELECT last_error FROM mailboxes")
    assert re.search(r"plain|<lambda>", error)
    assert re.search(r"\(.*test_mailbox_handlers\.py:\d+\)", error)
    assert called == ([what] if what == "write_in_a_lambda" else [])


# Connections


async def test_hanging_writes_starve_no_append_and_no_other_handler(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    """Ten of them, as many as the pool of an application has connections by default."""
    handled = asyncio.Event()
    hanging: list[str] = []

    @mailbox("thing", concurrency=12, lease_s=1.5, sweep_s=0.05)
    async def handle(box: Mailbox) -> Write:
        async def write(tx: Connection) -> None:
            await tx.execute("SELECT")
            if box.key.startswith("hung"):
                hanging.append(box.key)
                await asyncio.Event().wait()
            handled.set()

        return write

    options: dict[str, Any] = {"prefix": key_prefix, "schema": None, "pool_size": 10}
    object.__setattr__(handle, "limits", _with(handle.limits, stop_s=0.1))
    async with Mailboxes.open(database_url, redis_url, [handle], **options) as mailboxes:
        for n in range(10):
            await mailboxes.submit("thing", f"hung{n}", "happened", {})
        await eventually(lambda: len(hanging) == 10)
        receipt = await mailboxes.submit("thing", "innocent", "happened", {})
        assert receipt.created
        async with asyncio.timeout(10):
            await handled.wait()
        leased = "SELECT bool_and(claimable_at > now()) FROM mailboxes WHERE processing_status = 'processing'"
        async with mailboxes.transaction() as work:
            assert await work.tx.fetchval(leased)


def _with(limits: WorkerLimits, **more: Any) -> WorkerLimits:
    return WorkerLimits(**{**{name: getattr(limits, name) for name in WorkerLimits.__slots__}, **more})


async def test_pool_empty_names_the_pool_and_its_holders(database_url: str) -> None:
    database = await store_database.connect(
        database_url, pool_size=1, connect_timeout_s=2.0, application_name="the pool of this test"
    )
    taken, let_go = asyncio.Event(), asyncio.Event()

    async def hold_it() -> None:
        async with database.transaction():
            taken.set()
            await let_go.wait()

    holder = asyncio.create_task(hold_it(), name="the holder")
    await taken.wait()
    database.warm_pool._timeout_s = 0.05
    with pytest.raises(
        PoolEmpty, match=r"1 connections of the pool 'the pool of this test'.*the holder .*hold_it"
    ):
        async with database.connection():
            pass
    let_go.set()
    await holder
    await database.close()


@pytest.mark.parametrize("where", ["in its write", "in a transaction of its own"])
async def test_a_handler_that_swallows_its_cancellation_keeps_no_connection(
    database_url: str, redis_url: str, key_prefix: str, where: str
) -> None:
    """It is tried more often than the pool of both kinds has connections. Each try changes the same row: one whose
    transaction were still open would stop the next."""
    wrote = asyncio.Event()
    brief = FailureRule(failures_max=6, backoff_first_s=0.0, timeout_s=1.0)

    @mailbox("bad", concurrency=2, lease_s=0.6, sweep_s=0.05, failure=brief)
    async def bad(box: Mailbox) -> Write:
        async def write(tx: Connection) -> None:
            await tx.execute("UPDATE places SET visits = visits + 1")
            await swallow_everything()

        if where != "in its write":
            async with mailboxes.transaction() as work:
                await write(work.tx)
        return write

    @mailbox("innocent", concurrency=2, sweep_s=0.05)
    async def innocent(box: Mailbox) -> Write:
        async def write(tx: Connection) -> None:
            await tx.execute("UPDATE places SET visits = visits + 1")
            wrote.set()

        return write

    object.__setattr__(bad, "limits", _with(bad.limits, cancel_grace_s=0.1, stop_s=0.1))
    options: dict[str, Any] = {"prefix": key_prefix, "schema": None, "pool_size": 4}
    async with Mailboxes.open(database_url, redis_url, [bad, innocent], **options) as mailboxes:
        async with mailboxes.transaction() as work:
            await work.tx.execute("CREATE TABLE places (visits int)")
            await work.tx.execute("INSERT INTO places VALUES (0)")
        await mailboxes.submit("bad", "a", "happened", {})

        async def is_dead() -> bool:
            async with mailboxes.transaction() as work:
                return bool(await work.tx.fetchval("SELECT processing_status = 'dead' FROM mailboxes"))

        await eventually(is_dead, timeout_s=60, what="six tries")
        await mailboxes.submit("innocent", "a", "happened", {})
        async with asyncio.timeout(60):
            await wrote.wait()
        pool = mailboxes.database.warm_pool
        assert not [task for task, _ in pool._in_use.values() if task and "bad" in task.get_name()]
        error = await mailboxes.database.pool.fetchval("SELECT last_error FROM mailboxes WHERE kind = 'bad'")
    assert "swallow_everything" in error


async def test_a_stopping_worker_takes_the_connection_from_a_write_that_does_not_end(
    world: MailboxWorld,
) -> None:
    writing = asyncio.Event()

    class Stubborn(Recorder):
        async def handle(self, batch: Batch) -> Write | Done | None:
            async def write(tx: Connection) -> None:
                writing.set()
                await swallow_everything()

            return write

    async with running(worker(world, Stubborn(), failure=FailureRule(timeout_s=600))):
        await world.append(event("a"))
        await writing.wait()
    holders = [task.get_name() for task, _ in world.database.warm_pool._in_use.values() if task]
    assert f"mailbox {KIND}" not in holders


async def test_waiting_for_a_connection_is_within_a_handlers_time(
    world: MailboxWorld, database_url: str
) -> None:
    """And no fault of the handler's: it is not named, and nothing counts as a failure."""
    full = await store_database.connect(database_url, pool_size=1, connect_timeout_s=600)

    class Writing(Recorder):
        async def handle(self, batch: Batch) -> Write | Done | None:
            await Recorder.handle(self, batch)
            return hang

    limits = WorkerLimits(batch_max=1, lease_s=0.6, sweep_s=0.05, cancel_grace_s=0.1, failure=BRIEF)
    worker = MailboxWorker(full, world.bus, Writing(), "w1", limits, own=world.database)

    async def is_put_back() -> bool:
        rows = await world.rows("SELECT processing_status, failures, last_error FROM mailboxes")
        return [(row[0], row[1], "PoolEmpty" in (row[2] or "")) for row in rows] == [("queued", 0, True)]

    with capture_logs() as logs:
        async with full.connection(), running(worker):
            await world.append(event("a"))
            await eventually(is_put_back)
    assert not [line for line in logs if line["event"] == "mailbox.ignores_cancellation"]
    await full.close()
