"""Jobs and events in transactions of an application, by every driver that is documented: they exist exactly if the
application's own row does, and outside of a transaction they are refused.
"""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import django
import msgspec
import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.support.waiting import eventually
from trunkline.errors import MigrationError
from trunkline.jobs import Jobs, JobType, NotInTransaction, Policy
from trunkline.jobs.service import JobConfig
from trunkline.jobs.worker import PollLimits
from trunkline.mailbox import Mailbox, Mailboxes, mailbox, new_event

# Nothing is found by looking, unless a test asks for it.
NEVER_S = 600.0
NEVER = JobConfig(survey=PollLimits(probe_s=NEVER_S, poll_s=NEVER_S))
# Not the role's name, which is on its search path anyway.
SCHEMA = "queues"


class Order(msgspec.Struct):
    number: int


@pytest.fixture
def url(empty_database_url: str) -> str:
    return empty_database_url


@pytest.fixture
def ran() -> "asyncio.Queue[int]":
    return asyncio.Queue()


def jobs_of(url: str, ran: "asyncio.Queue[int]") -> Jobs:
    async def handle(order: Order, run: Any) -> None:
        ran.put_nowait(order.number)

    types = [JobType("ship", Order, Policy(), handle)]
    return Jobs(url, types, schema=SCHEMA, config=NEVER)


def mailboxes_of(url: str, redis_url: str, prefix: str, ran: "asyncio.Queue[int]") -> Mailboxes:
    @mailbox("order", sweep_s=NEVER_S)
    async def handle(order: Mailbox) -> None:
        for event in order.events:
            ran.put_nowait(event.payload["number"])

    return Mailboxes(url, redis_url, [handle], prefix=prefix, schema=SCHEMA)


@pytest.fixture
async def jobs(url: str, ran: "asyncio.Queue[int]") -> AsyncIterator[Jobs]:
    jobs = jobs_of(url, ran)
    assert await jobs.prepare()
    yield jobs
    jobs.close()


@pytest.fixture
async def mailboxes(
    url: str, redis_url: str, key_prefix: str, ran: "asyncio.Queue[int]"
) -> AsyncIterator[Mailboxes]:
    mailboxes = mailboxes_of(url, redis_url, key_prefix, ran)
    assert await mailboxes.prepare()
    yield mailboxes
    mailboxes.close()


class Driver(ABC):
    """A driver as an application uses it. `orders` is the application's own table."""

    is_sync = False
    # Whether it tells of commits, so that nobody has to wake workers.
    tells = False

    def __init__(self, url: str):
        self.url = url

    @abstractmethod
    async def open(self) -> None: ...
    @abstractmethod
    async def close(self) -> None: ...
    @abstractmethod
    def transaction(self) -> Any:
        """Commits at the end of the block, rolls back at an exception."""

    @abstractmethod
    def savepoint(self, tx: Any) -> Any: ...
    @abstractmethod
    async def order(self, tx: Any, number: int) -> None: ...
    @abstractmethod
    def outside(self) -> Any:
        """A connection or session that commits every statement by itself."""


class Asyncpg(Driver):
    async def open(self) -> None:
        self.connection = await asyncpg.connect(self.url)

    async def close(self) -> None:
        await self.connection.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.connection.transaction():
            yield self.connection

    def savepoint(self, tx: Any) -> Any:
        return tx.transaction()

    async def order(self, tx: Any, number: int) -> None:
        await tx.execute("INSERT INTO orders VALUES ($1)", number)

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[Any]:
        yield self.connection


class AsyncpgPool(Asyncpg):
    async def open(self) -> None:
        self.pool = await asyncpg.create_pool(self.url, min_size=1, max_size=1)
        self.connection = await self.pool.acquire()  # type: ignore[assignment]

    async def close(self) -> None:
        await self.pool.release(self.connection)  # type: ignore[arg-type]
        await self.pool.close()


class PsycopgAsync(Driver):
    autocommit = False

    async def open(self) -> None:
        self.connection = await psycopg.AsyncConnection.connect(self.url, row_factory=psycopg.rows.dict_row)

    async def close(self) -> None:
        await self.connection.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """As PEP 249 has it: the first statement begins one."""
        try:
            yield self.connection
        except BaseException:
            await self.connection.rollback()
            raise
        await self.connection.commit()

    def savepoint(self, tx: Any) -> Any:
        return tx.transaction()

    async def order(self, tx: Any, number: int) -> None:
        await tx.execute("INSERT INTO orders VALUES (%s)", [number])

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[Any]:
        await self.connection.set_autocommit(True)
        yield self.connection


class PsycopgAsyncBlock(PsycopgAsync):
    """With autocommit, and `transaction()` around what belongs together."""

    async def open(self) -> None:
        await super().open()
        await self.connection.set_autocommit(True)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.connection.transaction():
            yield self.connection


class PsycopgSync(Driver):
    is_sync = True

    async def open(self) -> None:
        self.connection = psycopg.connect(self.url)

    async def close(self) -> None:
        self.connection.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        with self.connection.transaction():
            yield self.connection

    @asynccontextmanager
    async def savepoint(self, tx: Any) -> AsyncIterator[None]:
        with tx.transaction():
            yield

    async def order(self, tx: Any, number: int) -> None:
        tx.execute("INSERT INTO orders VALUES (%s)", [number])

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[Any]:
        self.connection.autocommit = True
        yield self.connection


class SqlalchemyAsync(Driver):
    dialect = "asyncpg"
    tells = True

    async def open(self) -> None:
        url = self.url.replace("postgresql://", f"postgresql+{self.dialect}://")
        self.engine = create_async_engine(url)

    async def close(self) -> None:
        await self.engine.dispose()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with AsyncSession(self.engine) as session, session.begin():
            yield session

    def savepoint(self, tx: Any) -> Any:
        return tx.begin_nested()

    async def order(self, tx: Any, number: int) -> None:
        await tx.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[Any]:
        async with AsyncSession(self.engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
            yield session


class SqlalchemyAsyncOverPsycopg(SqlalchemyAsync):
    dialect = "psycopg"


class SqlalchemyAsyncConnection(SqlalchemyAsync):
    tells = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self.engine.begin() as connection:
            yield connection


class SqlalchemySync(Driver):
    is_sync = True
    tells = True

    async def open(self) -> None:
        self.engine = create_engine(self.url.replace("postgresql://", "postgresql+psycopg://"))

    async def close(self) -> None:
        self.engine.dispose()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """Without `begin`: a session begins by itself."""
        with Session(self.engine) as session:
            yield session
            session.commit()

    @asynccontextmanager
    async def savepoint(self, tx: Any) -> AsyncIterator[None]:
        with tx.begin_nested():
            yield

    async def order(self, tx: Any, number: int) -> None:
        tx.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[Any]:
        with Session(self.engine, autobegin=False) as session:
            yield session


class SqlalchemySyncConnection(SqlalchemySync):
    tells = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        with self.engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[Any]:
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            yield connection


class Django(Driver):
    is_sync = True
    tells = True

    async def open(self) -> None:
        from django.conf import settings

        # A view runs in a thread without an event loop; this test does not.
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
        if not settings.configured:
            settings.configure(USE_TZ=True)
            django.setup()
        from django.db import connections

        address = urlsplit(self.url)
        connections.settings = connections.configure_settings(
            {
                "default": {
                    "ENGINE": "django.db.backends.postgresql",
                    "NAME": address.path.lstrip("/"),
                    "USER": address.username,
                    "PASSWORD": address.password or "",
                    "HOST": address.hostname or "",
                    "PORT": address.port or "",
                }
            }
        )
        self.connection = connections["default"]

    async def close(self) -> None:
        from django.db import connections

        self.connection.close()
        del connections["default"]
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        from django.db import connection, transaction

        with transaction.atomic():
            yield connection

    @asynccontextmanager
    async def savepoint(self, tx: Any) -> AsyncIterator[None]:
        from django.db import transaction

        with transaction.atomic():
            yield

    async def order(self, tx: Any, number: int) -> None:
        with tx.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (%s)", [number])

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[Any]:
        yield self.connection


DRIVERS: list[type[Driver]] = [
    Asyncpg,
    AsyncpgPool,
    PsycopgAsync,
    PsycopgAsyncBlock,
    PsycopgSync,
    SqlalchemyAsync,
    SqlalchemyAsyncOverPsycopg,
    SqlalchemyAsyncConnection,
    SqlalchemySync,
    SqlalchemySyncConnection,
    Django,
]


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.__name__)
async def driver(request: pytest.FixtureRequest, url: str) -> AsyncIterator[Driver]:
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE orders (number int PRIMARY KEY)")
    await connection.close()
    driver: Driver = request.param(url)
    await driver.open()
    yield driver
    await driver.close()


class Way:
    """Enqueue or append, and look at what there is, by a connection of its own."""

    def __init__(self, url: str, jobs: Jobs, mailboxes: Mailboxes, kind: str):
        self.url, self.jobs, self.mailboxes, self.kind = url, jobs, mailboxes, kind

    async def send(self, driver: Driver, tx: Any, number: int) -> Callable[[], None]:
        """What it gives back wakes the worker by hand."""
        if self.kind == "job":
            if driver.is_sync:
                job = self.jobs.enqueue_sync(tx, "ship", Order(number))
            else:
                job = await self.jobs.enqueue(tx, "ship", Order(number))
            return lambda: self.jobs.wake(job)
        if driver.is_sync:
            self.mailboxes.append_sync(tx, "order", "o", "made", {"number": number})
        else:
            await self.mailboxes.append(tx, "order", "o", "made", {"number": number})
        return lambda: self.mailboxes.wake("order", "o")

    async def submit(self, number: int) -> None:
        if self.kind == "job":
            await self.jobs.submit("ship", Order(number))
        else:
            await self.mailboxes.submit("order", "first", "made", {"number": number})

    async def quiet(self) -> None:
        """Until the worker has stopped looking: what it does now, it was woken for."""

        async def is_quiet() -> bool:
            connection = await asyncpg.connect(self.url)
            try:
                busy = await connection.fetchval(
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'trunkline %'"
                    " AND datname = current_database() AND (query ~ 'job_outbox|mailbox' AND query !~ 'expired')"
                    " AND (state <> 'idle' OR state_change > clock_timestamp() - interval '0.4 s')"
                )
            finally:
                await connection.close()
            return not busy

        await eventually(is_quiet)

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if self.kind == "job":
                await stack.enter_async_context(self.jobs)
                await stack.enter_async_context(self.jobs.worker())
            else:
                await stack.enter_async_context(self.mailboxes)
                await stack.enter_async_context(self.mailboxes.working())
            yield

    async def there(self) -> tuple[list[int], list[int]]:
        """The numbers of the orders, and of what was sent with them."""
        sent = {
            "job": "SELECT (payload::json ->> 'number')::int AS number FROM queues.job_outbox",
            "event": "SELECT (payload ->> 'number')::int AS number FROM queues.mailbox_events",
        }[self.kind]
        connection = await asyncpg.connect(self.url)
        try:
            orders = await connection.fetch("SELECT number FROM orders ORDER BY 1")
            return [row[0] for row in orders], [
                row[0] for row in await connection.fetch(f"{sent} ORDER BY 1")
            ]
        finally:
            await connection.close()


@pytest.fixture(params=["job", "event"])
def way(request: pytest.FixtureRequest, url: str, jobs: Jobs, mailboxes: Mailboxes) -> Way:
    return Way(url, jobs, mailboxes, request.param)


class Undone(Exception):
    """The application changes its mind."""


async def test_a_job_or_event_exists_when_its_transaction_commits_and_not_before(
    driver: Driver, way: Way
) -> None:
    async with driver.transaction() as tx:
        await driver.order(tx, 1)
        await way.send(driver, tx, 1)
        assert await way.there() == ([], [])
    assert await way.there() == ([1], [1])


async def test_a_rollback_leaves_no_job_or_event(driver: Driver, way: Way) -> None:
    with suppress(Undone):
        async with driver.transaction() as tx:
            await driver.order(tx, 1)
            await way.send(driver, tx, 1)
            raise Undone
    assert await way.there() == ([], [])


async def test_a_job_or_event_of_a_rolled_back_savepoint_does_not_exist(driver: Driver, way: Way) -> None:
    async with driver.transaction() as tx:
        await driver.order(tx, 1)
        await way.send(driver, tx, 1)
        with suppress(Undone):
            async with driver.savepoint(tx):
                await driver.order(tx, 2)
                await way.send(driver, tx, 2)
                raise Undone
        async with driver.savepoint(tx):
            await driver.order(tx, 3)
            await way.send(driver, tx, 3)
    assert await way.there() == ([1, 3], [1, 3])


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "rolled_back"])
async def test_a_job_or_event_sent_as_the_first_statement_is_in_the_transaction(
    driver: Driver, way: Way, commits: bool
) -> None:
    with suppress(Undone):
        async with driver.transaction() as tx:
            await way.send(driver, tx, 1)
            if not commits:
                raise Undone
    assert await way.there() == ([], [1] if commits else [])


async def test_sending_a_job_or_event_outside_of_a_transaction_is_refused(driver: Driver, way: Way) -> None:
    async with driver.outside() as tx:
        with pytest.raises(NotInTransaction, match=r"in no transaction\. Begin one first"):
            await way.send(driver, tx, 1)
    assert await way.there() == ([], [])


async def test_a_committed_transaction_wakes_the_worker(
    driver: Driver, way: Way, ran: "asyncio.Queue[int]"
) -> None:
    """A session of SQLAlchemy and Django do it by themselves. The worker looks once at its start, and then never."""
    async with way.worker():
        await way.submit(0)
        assert await asyncio.wait_for(ran.get(), 20) == 0
        await way.quiet()
        async with driver.transaction() as tx, driver.savepoint(tx):
            wake = await way.send(driver, tx, 1)
        if not driver.tells:
            wake()
        assert await asyncio.wait_for(ran.get(), 20) == 1


async def test_a_process_that_only_sends_wakes_another_processs_worker(
    driver: Driver, way: Way, ran: "asyncio.Queue[int]", redis_url: str, key_prefix: str
) -> None:
    """What sends is another object than the one that runs, as in two processes, and is not open."""
    runs = Way(way.url, jobs_of(way.url, ran), mailboxes_of(way.url, redis_url, key_prefix, ran), way.kind)
    async with runs.worker():
        await runs.submit(0)
        assert await asyncio.wait_for(ran.get(), 20) == 0
        await runs.quiet()
        async with driver.transaction() as tx:
            wake = await way.send(driver, tx, 1)
        if not driver.tells:
            wake()
        assert await asyncio.wait_for(ran.get(), 20) == 1


async def test_sending_leaves_the_applications_search_path_unchanged(url: str, way: Way) -> None:
    connection = await asyncpg.connect(url, server_settings={"search_path": "elsewhere"})
    try:
        async with connection.transaction():
            await way.send(Asyncpg(url), connection, 1)
            assert await connection.fetchval("SHOW search_path") == "elsewhere"
            assert await connection.fetchval("SHOW lock_timeout") == "0"
    finally:
        await connection.close()


async def test_a_connection_of_the_wrong_driver_kind_is_refused_with_the_remedy(
    url: str, jobs: Jobs, mailboxes: Mailboxes
) -> None:
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        with pytest.raises(
            NotInTransaction, match=r"asynchronous\. Use the method of this name without _sync"
        ):
            jobs.enqueue_sync(connection, "ship", Order(1))
    await connection.close()
    with psycopg.connect(url) as other:
        with pytest.raises(NotInTransaction, match="is synchronous and would block the event loop"):
            await mailboxes.append(other, "order", "o", "made", {})
        with pytest.raises(NotInTransaction, match="give the connection, not its Cursor"):
            jobs.enqueue_sync(other.cursor(), "ship", Order(1))
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with pytest.raises(NotInTransaction, match=r"with engine\.begin\(\)"):
        jobs.enqueue_sync(engine, "ship", Order(1))
    with pytest.raises(NotInTransaction, match=r"str is no transaction that is known here"):
        await mailboxes.append("order", "o", "made", "x", {})


async def test_an_error_about_missing_tables_names_what_creates_them(url: str) -> None:
    jobs = Jobs(url, [JobType("ship", Order, Policy())], schema="nowhere")
    connection = await asyncpg.connect(url)
    try:
        with pytest.raises(MigrationError, match=r"in schema nowhere\. `await prepare\(\)`"):
            async with connection.transaction():
                await jobs.enqueue(connection, "ship", Order(1))
    finally:
        await connection.close()
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session, pytest.raises(MigrationError, match="in schema nowhere"):
        jobs.enqueue_sync(session, "ship", Order(1))
    engine.dispose()


async def test_jobs_of_one_unique_key_are_one_and_many_jobs_stay_in_order(url: str, jobs: Jobs) -> None:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            made = await jobs.enqueue_many(
                connection, [jobs.new("ship", Order(n), unique_key=k) for n, k in enumerate(["b", "a", "b"])]
            )
            many = await jobs.enqueue_many(connection, (jobs.new("ship", Order(n)) for n in range(2_500)))
            again = await jobs.enqueue(connection, "ship", Order(9), unique_key="a", priority=3)
        assert [job.is_new for job in made] == [True, True, False]
        assert made[0].id == made[2].id
        assert (again.id, again.is_new, again.lane.priority) == (made[1].id, False, 3)
        rows = await connection.fetch("SELECT id, payload FROM queues.job_outbox WHERE unique_key IS NULL")
        numbers = {row["id"]: msgspec.json.decode(row["payload"])["number"] for row in rows}
        assert [numbers[job.id] for job in many] == list(range(2_500))
    finally:
        await connection.close()


async def test_events_of_one_transaction_are_numbered_in_order(url: str, mailboxes: Mailboxes) -> None:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            told = [("b", "1"), ("a", "1"), ("b", "2"), ("b", "1")]
            receipts = await mailboxes.append_many(
                connection, [new_event("order", key, "made", {}, dedupe_key=name) for key, name in told]
            )
        assert [(r.seq, r.created) for r in receipts] == [(1, True), (1, True), (2, True), (1, False)]
    finally:
        await connection.close()


async def test_transactions_that_name_mailboxes_in_opposite_order_do_not_deadlock(
    url: str, mailboxes: Mailboxes
) -> None:
    pool = await asyncpg.create_pool(url, min_size=2, max_size=2)

    async def append(keys: list[str]) -> None:
        for _ in range(50):
            async with pool.acquire() as connection, connection.transaction():
                await mailboxes.append_many(connection, [new_event("order", key, "made", {}) for key in keys])

    await asyncio.gather(append(["a", "b", "c"]), append(["c", "b", "a"]))
    assert await pool.fetchval("SELECT sum(appended) FROM queues.mailboxes") == 300
    await pool.close()


async def test_a_role_without_create_rights_can_open_existing_tables(url: str, jobs: Jobs) -> None:
    """A role that may only use the tables opens the object all the same."""
    connection = await asyncpg.connect(url)
    role = "clerk_" + urlsplit(url).path.lstrip("/")
    try:
        await connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
        await connection.execute(
            f"GRANT USAGE ON SCHEMA queues TO {role};"
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA queues TO {role}"
        )
        address = urlsplit(url)
        theirs = address._replace(netloc=f"{role}:x@{address.hostname}:{address.port}").geturl()
        async with Jobs(theirs, list(jobs.registry), schema=SCHEMA) as clerk:
            assert (await clerk.submit("ship", Order(1))).is_new
    finally:
        await connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
        await connection.close()


async def test_a_mailbox_handler_finds_the_tables_of_its_application(
    url: str, redis_url: str, key_prefix: str
) -> None:
    """And ours beside them, by the same connection."""
    written = asyncio.Event()

    @mailbox("order")
    async def keep(order: Mailbox) -> Any:
        async def write(tx: Any) -> None:
            await tx.execute("INSERT INTO orders VALUES (7)")
            written.set()

        return write

    connection = await asyncpg.connect(url)
    try:
        await connection.execute("CREATE TABLE orders (number int PRIMARY KEY)")
        async with Mailboxes.open(url, redis_url, [keep], prefix=key_prefix, schema=SCHEMA) as mailboxes:
            async with mailboxes.transaction() as work:
                await work.tx.execute("INSERT INTO orders VALUES (6)")
                await work.append("order", "o", "made", {})
            await asyncio.wait_for(written.wait(), 20)
        rows = await connection.fetch("SELECT number FROM public.orders ORDER BY 1")
        assert [row["number"] for row in rows] == [6, 7]
        assert await connection.fetchval("SELECT to_regclass('public.mailboxes')") is None
    finally:
        await connection.close()
