"""The objects of an application, `Jobs` and `Mailboxes`: their tables, their life, and who else is in the database."""

import asyncio
import os
import re
import signal
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import psycopg
import pytest
from structlog.testing import capture_logs

from tests.support import metric_values
from tests.support.jobs.world import Work, job_world
from tests.support.store.pooler import PGBOUNCER, transaction_pooler
from tests.support.waiting import eventually
from trunkline.errors import MigrationError, StoreUnavailable
from trunkline.handlers import in_thread
from trunkline.jobs import Jobs, JobType, NotInTransaction, PayloadRefused, Policy, Run, UnknownJobType, job
from trunkline.jobs.recurring import Recurring
from trunkline.jobs.registry import Registry, declared
from trunkline.jobs.service import JobConfig, JobService
from trunkline.jobs.worker import PollLimits
from trunkline.mailbox import BadEvent, Mailbox, Mailboxes, mailbox
from trunkline.telemetry import metrics

NEVER = JobConfig(survey=PollLimits(probe_s=600.0, poll_s=600.0))


class Order(msgspec.Struct):
    number: int


class Shop:
    """A type of job and a handler of mailboxes that tell what they got."""

    def __init__(self) -> None:
        self.ran: asyncio.Queue[tuple[int, str | None]] = asyncio.Queue()
        self.types = [JobType("ship", Order, Policy(), self.ship)]
        self.handlers = [mailbox("order")(self.gather)]

    async def ship(self, order: Order, run: Run) -> None:
        self.ran.put_nowait((order.number, run.item_id))

    async def gather(self, order: Mailbox) -> None:
        for event in order.events:
            self.ran.put_nowait((event.payload["number"], None))

    async def next(self) -> tuple[int, str | None]:
        return await asyncio.wait_for(self.ran.get(), 20)


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def url(empty_database_url: str) -> str:
    return empty_database_url


@pytest.fixture
def declarations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared, "_types", dict(declared._types))
    monkeypatch.setattr(declared, "_handlers", dict(declared._handlers))


async def value(url: str, statement: str, *values: Any) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement, *values)
    finally:
        await connection.close()


async def test_jobs_create_their_tables_and_run_submitted_jobs(url: str, shop: Shop) -> None:
    async with Jobs(url, shop.types) as jobs, jobs.worker():
        submitted = await jobs.submit("ship", Order(1), unique_key="item-1")
        assert submitted.is_new
        assert await shop.next() == (1, "item-1")
        async with jobs.transaction() as work:
            await work.tx.execute("CREATE TABLE orders (number int)")
            await work.enqueue(shop.types[0], Order(2))
        assert await shop.next() == (2, None)


async def test_job_types_declared_by_decorator_are_registered(url: str, declarations: None) -> None:
    @job("ship_declared")
    async def ship(order: Order, run: Run) -> None: ...

    jobs = Jobs(url)
    assert (
        jobs.new(ship, Order(1)).job_type == jobs.new("ship_declared", Order(1)).job_type == "ship_declared"
    )
    with pytest.raises(UnknownJobType, match="ship_declared"):
        jobs.new("nobody_knows_it", Order(1))


async def test_a_job_that_is_refused_leaves_the_transaction_usable(url: str, shop: Shop) -> None:
    jobs = Jobs(url, shop.types)
    await jobs.prepare()
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        with pytest.raises(PayloadRefused):
            await jobs.enqueue(connection, "ship", Order("x"))  # type: ignore[arg-type]
        with pytest.raises(UnknownJobType):
            await jobs.enqueue(connection, "sail", Order(1))
        await jobs.enqueue(connection, "ship", Order(1))
    await connection.close()
    assert await value(url, "SELECT count(*) FROM trunkline.job_outbox") == 1


async def test_an_event_that_is_refused_leaves_the_transaction_usable(url: str, redis_url: str) -> None:
    mailboxes = Mailboxes(url, redis_url)
    await mailboxes.prepare()
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        with pytest.raises(BadEvent):
            await mailboxes.append(connection, "order", "", "made", {})
        await mailboxes.append(connection, "order", "o", "made", {})
    await connection.close()
    assert await value(url, "SELECT count(*) FROM trunkline.mailbox_events") == 1


async def test_sigterm_ends_the_workers_after_their_running_work(
    url: str, redis_url: str, key_prefix: str, shop: Shop
) -> None:
    """Both in one process, as most will have them."""
    jobs, mailboxes = Jobs(url, shop.types), Mailboxes(url, redis_url, shop.handlers, prefix=key_prefix)
    async with jobs, mailboxes:
        working = asyncio.gather(jobs.run(), mailboxes.run())
        await jobs.submit("ship", Order(1))
        await mailboxes.submit("order", "o", "made", {"number": 2})
        assert {await shop.next(), await shop.next()} == {(1, None), (2, None)}
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(working, 20)
    assert await value(url, "SELECT outcome FROM trunkline.job_history") == "succeeded"
    assert await value(url, "SELECT processing_status FROM trunkline.mailboxes") == "idle"


async def test_run_opens_the_jobs_object_and_closes_it_when_cancelled(url: str, shop: Shop) -> None:
    jobs = Jobs(url, shop.types)
    running = asyncio.create_task(jobs.run())

    async def is_open() -> bool:
        with suppress(StoreUnavailable):
            await jobs.submit("ship", Order(1))
            return True
        return False

    await eventually(is_open)
    assert await shop.next() == (1, None)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    with pytest.raises(StoreUnavailable, match="not open: `async with jobs:`"):
        await jobs.submit("ship", Order(1))


async def test_recurring_jobs_run_in_a_schema_of_their_own_too(url: str, shop: Shop) -> None:
    tick = Recurring("often", shop.types[0], Order(7), "every 1")
    async with Jobs(url, shop.types, recurring=[tick]) as jobs, jobs.worker():
        number, item_id = await shop.next()
        assert number == 7
        assert item_id is not None
        assert item_id.startswith("often@")


async def test_applications_in_separate_schemas_and_a_platform_share_a_database(
    database_url: str,
) -> None:
    """They do not see each other's jobs, though they receive each other's wakeups."""
    shops = {"first": Shop(), "second": Shop()}
    async with job_world(database_url) as platform, platform.service():
        for name, shop in shops.items():
            async with Jobs(database_url, shop.types, schema=name) as jobs, jobs.worker():
                await jobs.submit("ship", Order(1))
                assert await shop.next() == (1, None)
        of_platform = await platform.enqueue("a", wake=True)
        await platform.ended(of_platform.id)
        for name in shops:
            assert await value(database_url, f"SELECT count(*) FROM {name}.job_history") == 1
        assert await value(database_url, "SELECT count(*) FROM job_history") == 1


async def test_jobs_without_a_schema_are_those_of_the_platform(database_url: str) -> None:
    async with job_world(database_url) as platform, platform.service():
        jobs = Jobs(database_url, list(platform.registry), schema=None)
        assert await jobs.prepare() == []
        connection = await asyncpg.connect(database_url)
        async with connection.transaction():
            enqueued = await jobs.enqueue(connection, "work", Work("theirs"))
        jobs.wake(enqueued)
        await connection.close()
        [done] = await platform.ended(enqueued.id)
        assert done.outcome == "succeeded"
        jobs.close()


async def test_a_worker_on_a_database_without_tables_says_so(url: str, shop: Shop) -> None:
    with pytest.raises(MigrationError, match="no tables of jobs"):
        async with JobService.open(JobConfig(), Registry(shop.types), url):
            pass


async def test_concurrent_opens_create_the_tables_once(url: str, shop: Shop) -> None:
    async def use(number: int) -> None:
        async with Jobs(url, shop.types) as jobs:
            await jobs.submit("ship", Order(number))

    await asyncio.gather(*map(use, range(4)))
    assert await value(url, "SELECT count(*) FROM trunkline.job_outbox") == 4


async def test_a_forked_child_sends_its_own_wakeups(url: str, shop: Shop) -> None:
    """As servers do that are loaded once and then fork."""
    sender = Jobs(url, shop.types)
    async with Jobs(url, shop.types, config=NEVER) as jobs, jobs.worker():
        await jobs.submit("ship", Order(0))
        assert await shop.next() == (0, None)

        def send(number: int) -> None:
            with psycopg.connect(url) as connection:
                enqueued = sender.enqueue_sync(connection, "ship", Order(number))
            sender.wake(enqueued)

        await asyncio.to_thread(send, 1)
        assert await shop.next() == (1, None)
        child = os.fork()
        if child == 0:
            try:
                send(2)
                sender.close()
            finally:
                os._exit(0)
        assert await shop.next() == (2, None)
        await asyncio.to_thread(os.waitpid, child, 0)
        await asyncio.to_thread(send, 3)
        assert await shop.next() == (3, None)
    sender.close()


@pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")
async def test_jobs_and_mailboxes_work_in_a_schema_behind_a_transaction_pooler(
    url: str, redis_url: str, key_prefix: str, shop: Shop
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # the pooler runs as somebody else
        async with transaction_pooler(url, Path(folder) / "pooler") as pooled:
            jobs = Jobs(pooled, shop.types, schema="queues", behind_pooler=True, direct_url=url)
            mailboxes = Mailboxes(
                pooled, redis_url, shop.handlers, schema="queues", prefix=key_prefix, behind_pooler=True
            )
            async with jobs, jobs.worker(), mailboxes, mailboxes.working():
                await jobs.submit("ship", Order(1))
                assert await shop.next() == (1, None)
                await mailboxes.submit("order", "o", "made", {"number": 2})
                assert await shop.next() == (2, None)
                async with mailboxes.transaction() as work:
                    await work.append("order", "o", "made", {"number": 3})
                assert await shop.next() == (3, None)
                connection = await asyncpg.connect(pooled, statement_cache_size=0)
                async with connection.transaction():
                    await jobs.enqueue(connection, "ship", Order(4))
                    await mailboxes.append(connection, "order", "p", "made", {"number": 5})
                await connection.close()
                assert {await shop.next(), await shop.next()} == {(4, None), (5, None)}


class Sql:
    """A connection that runs SQL and nothing of ours."""

    def __init__(self, connection: Any):
        self.connection = connection

    async def __call__(self, call: str) -> Any:
        return await self.connection.fetchval(f"SELECT trunkline.{call}")


@pytest.fixture
async def sql(url: str, redis_url: str) -> AsyncIterator[Sql]:
    await Jobs(url, []).prepare()
    await Mailboxes(url, redis_url).prepare()
    connection = await asyncpg.connect(url, server_settings={"search_path": "elsewhere"})
    yield Sql(connection)
    await connection.close()


async def test_the_sql_function_enqueue_job_enqueues_and_deduplicates(url: str, sql: Sql, shop: Shop) -> None:
    first = await sql(
        "enqueue_job('ship', '{\"number\": 1}', unique_key => 'u', run_at => now() + interval '1 day')"
    )
    assert await sql("enqueue_job('ship', '{\"number\": 2}', unique_key => 'u', priority => 9)") == first
    other = await sql("enqueue_job('ship', '{\"number\": 3}', unique_key => 'u', reseller_id => 'acme')")
    assert other != first
    async with Jobs(url, shop.types) as jobs, jobs.worker():
        assert {await shop.next(), await shop.next()} == {(1, "u"), (3, "u")}


async def test_the_sql_function_enqueue_job_wakes_a_worker_at_commit(url: str, sql: Sql, shop: Shop) -> None:
    async with Jobs(url, shop.types, config=NEVER) as jobs, jobs.worker():
        await jobs.submit("ship", Order(0))
        assert await shop.next() == (0, None)
        with suppress(ZeroDivisionError):
            async with sql.connection.transaction():
                await sql("enqueue_job('ship', '{\"number\": 1}', wake => true)")
                raise ZeroDivisionError
        async with sql.connection.transaction():
            await sql("enqueue_job('ship', '{\"number\": 2}', wake => true)")
            assert not await value(
                url, "SELECT count(*) FROM trunkline.job_outbox WHERE payload <> $1", '{"number":0}'
            )
        assert await shop.next() == (2, None)


async def test_the_sql_function_appends_events(
    url: str, redis_url: str, key_prefix: str, sql: Sql, shop: Shop
) -> None:
    assert await sql("append_event('order', 'o', 'made', '{\"number\": 1}', 'd')") == 1
    assert await sql("append_event('order', 'o', 'made', '{\"number\": 2}', dedupe_key => 'd')") == 1
    assert await sql("append_event('order', 'o', 'made', '{\"number\": 3}')") == 2
    async with Mailboxes.open(url, redis_url, shop.handlers, prefix=key_prefix):
        assert [await shop.next(), await shop.next()] == [(1, None), (3, None)]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("enqueue_job('Ship')", "is no name for a job type"),
        ("enqueue_job(NULL)", "is no name for a job type"),
        ("enqueue_job('ship', jsonb_build_object('x', repeat('x', 300000)))", "at most 262144 bytes"),
        ("enqueue_job('ship', priority => 100)", "priority"),
        ("enqueue_job('ship', unique_key => '')", "unique_key"),
        ("append_event('', 'o', 'made')", "kind"),
    ],
)
async def test_the_sql_functions_refuse_values_that_no_table_can_hold(
    sql: Sql, call: str, words: str
) -> None:
    with pytest.raises(asyncpg.IntegrityConstraintViolationError, match=re.escape(words)):
        await sql(call)


async def test_the_sql_functions_leave_the_callers_timeouts_unchanged(sql: Sql) -> None:
    async with sql.connection.transaction():
        await sql.connection.execute("SET LOCAL lock_timeout = '1234ms'")
        await sql("append_event('order', 'o', 'made')")
        await sql("enqueue_job('ship')")
        assert await sql.connection.fetchval("SHOW lock_timeout") == "1234ms"
        assert await sql.connection.fetchval("SHOW search_path") == "elsewhere"


async def test_an_append_waits_as_long_as_the_caller_says(url: str, sql: Sql) -> None:
    other = await asyncpg.connect(url)
    try:
        async with other.transaction():
            await other.execute("SELECT trunkline.append_event('order', 'o', 'made')")
            await sql.connection.execute("SET lock_timeout = '20ms'")
            with pytest.raises(asyncpg.LockNotAvailableError):
                await sql("append_event('order', 'o', 'made')")
    finally:
        await other.close()


async def test_ids_of_the_sql_function_are_version_7_uuids(sql: Sql) -> None:
    ids = [await sql("enqueue_job('ship')") for _ in range(3)]
    assert {job_id.version for job_id in ids} == {7}
    now_ms = await sql.connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8 * 1000")
    assert all(abs((job_id.int >> 80) - now_ms) < 60_000 for job_id in ids)


async def test_not_in_transaction_says_how_to_begin_one(url: str, shop: Shop) -> None:
    jobs = Jobs(url, shop.types)
    connection = await asyncpg.connect(url)
    with pytest.raises(
        NotInTransaction, match=re.escape("Begin one first: async with connection.transaction(): …")
    ):
        await jobs.enqueue(connection, "ship", Order(1))
    await connection.close()


# What handlers hold open


async def test_transactions_held_by_mailbox_handlers_do_not_starve_the_application(
    url: str, redis_url: str, key_prefix: str
) -> None:
    held: list[str] = []
    let_go = asyncio.Event()

    @mailbox("order", concurrency=2)
    async def hold(order: Mailbox) -> None:
        async with mailboxes.transaction():
            held.append(order.key)
            await let_go.wait()

    options: dict[str, Any] = {"prefix": key_prefix, "pool_size": 2}
    async with Mailboxes.open(url, redis_url, [hold], **options) as mailboxes:
        for key in ("a", "b"):
            await mailboxes.submit("order", key, "made", {})
        await eventually(lambda: len(held) == 2)
        async with mailboxes.transaction() as work:
            await work.append("other", "c", "made", {})
        let_go.set()
    assert await value(url, "SELECT count(*) FROM trunkline.mailboxes WHERE kind = 'other'") == 1


async def test_closing_mailboxes_does_not_wait_for_a_hanging_thread_and_logs_it(
    url: str, redis_url: str, key_prefix: str
) -> None:
    began, let_go = asyncio.Event(), threading.Event()
    stuck = metrics.HANDLERS_STUCK.labels("mailbox", "order", "thread")
    before = metric_values.value(stuck)

    @mailbox("order")
    async def hang(order: Mailbox) -> None:
        began.set()
        await in_thread(let_go.wait)

    handler = replace(hang, limits=replace(hang.limits, stop_s=0.05, cancel_grace_s=0.05))
    try:
        with capture_logs() as logs:
            async with Mailboxes.open(url, redis_url, [handler], prefix=key_prefix) as mailboxes:
                await mailboxes.submit("order", "o", "made", {})
                await began.wait()
    finally:
        let_go.set()
    [told] = [line for line in logs if line["event"] == "mailbox.ignores_cancellation"]
    assert (told["kind"], told["keys"], told["how"]) == ("order", ["o"], "thread")
    assert metric_values.value(stuck) - before == 1
    [left] = [line["unfinished"] for line in logs if line["event"] == "mailbox.threads_left"]
    assert len(left) == 1
    assert await value(url, "SELECT processing_status FROM trunkline.mailboxes") == "queued"
