"""Jobs for any application, with nothing but a Postgres.

    jobs = Jobs(database_url)                       # of every type that `@job` declared

    async with session.begin():                     # SQLAlchemy; or asyncpg, psycopg, Django
        session.add(order)
        await jobs.enqueue(session, send_report, Report(order.id))

    asyncio.run(jobs.run())                         # the worker, in a process of its own or beside

Tables and functions are in a schema of their own, created when the object is opened or by `prepare`. To enqueue in a
transaction of the application the object need not be open: it uses the application's connection.
"""

import asyncio
import os
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack
from uuid import UUID

from trunkline.errors import PoolEmpty
from trunkline.handlers import HandlerScope, current_scope
from trunkline.jobs.outbox import JobTransaction, Outbox
from trunkline.jobs.recurring import Recurring, declared_schedules
from trunkline.jobs.registry import JobOptions, JobType, Registry, declared
from trunkline.jobs.service import JobConfig, JobService
from trunkline.jobs.wakeups import JobNotifier
from trunkline.old_names import kept_names
from trunkline.queues.application import ApplicationQueue, OpenObject
from trunkline.store import adapters, job_admin
from trunkline.store.adapters import Adapter, entries
from trunkline.store.database import Database
from trunkline.store.jobs import Inserted, NewJob
from trunkline.store.migrate import migrate
from trunkline.store.tenants import PLATFORM

P = TypeVar("P")

# One statement each, in a pool of their own: open transactions do not keep a `submit` waiting.
SUBMIT_CONNECTIONS = 3
# For handlers: one per concurrent job, up to this. Postgres allows 100 connections by default, for all its clients.
HANDLER_CONNECTIONS_MAX = 20
HANDLER_WAIT_MAX_S = 5.0


@kept_names
class Jobs(ApplicationQueue[JobNotifier, "_OpenJobs"]):
    """The jobs of an application: enqueue them anywhere, run them where a worker is."""

    area = "jobs"

    def __init__(
        self,
        database_url: str,
        types: Iterable[JobType[Any]] | None = None,
        *,
        schema: str | None = "trunkline",
        recurring: Sequence[Recurring] | None = None,
        direct_url: str | None = None,
        behind_pooler: bool = False,
        pool_size: int = 4,
        config: JobConfig | None = None,
    ):
        """Without types: those that `@job` declared, and the schedules of `recurring`. `schema=None` is the outbox of a
        platform, which has the tables already. Behind a transaction pooler `direct_url` bypasses it, for LISTEN;
        without one the poller finds jobs, within a second. `pool_size` is how many transactions an application may have
        open; those of handlers have a pool of their own."""
        super().__init__(database_url, schema, behind_pooler=behind_pooler)
        self.registry = declared if types is None else Registry(types)
        self._direct_url = direct_url or (None if behind_pooler else database_url)
        self._pool_size = pool_size
        self._schedules = declared_schedules if recurring is None and types is None else recurring or ()
        self._config = config or JobConfig(identity=f"{socket.gethostname()}-{os.getpid()}")

    # In a transaction of the application

    async def enqueue(
        self, tx: Any, job_type: JobType[P] | str, payload: P, **options: Unpack[JobOptions]
    ) -> Inserted:
        """Enqueue one job in an open transaction, or find the pending one with the same unique key. Raises
        `InvalidJob`, or `NotInTransaction` outside a transaction; nothing was sent then, and the transaction can go
        on."""
        return (await self.enqueue_many(tx, [self.new(job_type, payload, **options)]))[0]

    async def enqueue_many(self, tx: Any, new: Iterable[NewJob]) -> list[Inserted]:
        """Enqueue jobs made by `new`, in order. Two with the same unique key are one."""
        listed = list(new)
        texts = entries.jobs_in(listed)
        return self._enqueued(
            listed, *await adapters.call_async(tx, self.schema, entries.ENQUEUE_JOBS, texts)
        )

    def enqueue_sync(
        self, tx: Any, job_type: JobType[P] | str, payload: P, **options: Unpack[JobOptions]
    ) -> Inserted:
        """As `enqueue`, for a connection or session that is not asynchronous."""
        return self.enqueue_many_sync(tx, [self.new(job_type, payload, **options)])[0]

    def enqueue_many_sync(self, tx: Any, new: Iterable[NewJob]) -> list[Inserted]:
        listed = list(new)
        texts = entries.jobs_in(listed)
        return self._enqueued(listed, *adapters.call_sync(tx, self.schema, entries.ENQUEUE_JOBS, texts))

    def new(self, job_type: JobType[P] | str, payload: P, **options: Unpack[JobOptions]) -> NewJob:
        """A job that can be enqueued, or `InvalidJob`."""
        return self.registry.new(job_type, payload, **options)

    def wake(self, *enqueued: Inserted) -> None:
        """Wake the workers. Call it after the commit: before it they find nothing. Sessions of SQLAlchemy and Django do
        it by themselves. Without it the poller finds a job within a second. Never waits, in any thread."""
        self._notify(lambda notifier: notifier.wake(*enqueued))

    # On connections of its own

    async def submit(self, job_type: JobType[P] | str, payload: P, **options: Unpack[JobOptions]) -> Inserted:
        """Enqueue one job that follows from nothing else, and wake the workers."""
        opened = self._opened()
        return await opened.outbox.submit(opened.submits, job_type, payload, **options)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[JobTransaction]:
        """A transaction on a connection of this object (`tx` of the value); it wakes the workers after the commit. In a
        handler the connection is of the handlers' pool, of which one type may use half."""
        opened = self._opened()
        scope = current_scope()
        if scope is None or opened.handler_connections is None:
            async with opened.outbox.transaction(opened.database) as work:
                yield work
        else:
            async with opened.handler_connections.transaction(opened.outbox, scope) as work:
                yield work

    # By an operator

    async def replay(self, job_type: JobType[Any] | str | None = None, *, job_id: UUID | None = None) -> int:
        """Run dead letters again, with all their attempts: those of a type, one of them, or all. Returns how many, at
        most 1,000: call it again until it returns 0. One whose unique key another pending job has ends as
        superseded."""
        name = job_type.name if isinstance(job_type, JobType) else job_type
        async with self.transaction() as work:
            count, back = await job_admin.replay(work.tx, PLATFORM, job_id=job_id, job_type=name)
        self.wake(*back)
        return count

    # Opening and closing

    async def prepare(self) -> list[str]:
        """Create or migrate the tables, as opening the object does; returns the names of the migrations. The role must
        be allowed to create tables; if none is missing, nothing is written."""
        if self.schema is None:
            return []
        return await migrate(self._direct_url or self._url, area=self.area, schema=self.schema)

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[JobService]:
        """Run jobs until the end of the block, beside whatever else the process does."""
        opened = self._opened()
        size = max(2, min(HANDLER_CONNECTIONS_MAX, self._config.executor.running_max))
        async with AsyncExitStack() as stack:
            database = await self._pool(stack, "trunkline jobs: handlers", size, opened.search_path)
            connections = opened.handler_connections = HandlerConnections(database, size)
            try:
                async with JobService.open(
                    self._config,
                    self.registry,
                    self._url,
                    direct_url=self._direct_url,
                    behind_pooler=self._behind_pooler,
                    recurring=self._schedules,
                    notifier=opened.notifier,
                    search_path=opened.search_path,
                ) as service:
                    yield service
            finally:
                if opened.handler_connections is connections:
                    opened.handler_connections = None

    def _working(self) -> AbstractAsyncContextManager[JobService]:
        return self.worker()

    def _make_notifier(self) -> JobNotifier:
        return JobNotifier(self._direct_url if self._config.notify else None)

    async def _connect(self, stack: AsyncExitStack, search_path: str | None) -> "_OpenJobs":
        database = await self._pool(stack, "trunkline jobs", self._pool_size, search_path)
        submits = await self._pool(stack, "trunkline jobs: submits", SUBMIT_CONNECTIONS, search_path)
        notifier = self._make_notifier()
        stack.push_async_callback(notifier.close)
        return _OpenJobs(notifier, database, submits, Outbox(self.registry, notifier), search_path)

    def _enqueued(self, new: Sequence[NewJob], adapter: Adapter, answers: Iterable[str]) -> list[Inserted]:
        enqueued = entries.jobs_out(new, answers)
        adapter.after_commit(lambda: self.wake(*enqueued))
        return enqueued


class HandlerConnections:
    """The pool for handlers that open `jobs.transaction()`, apart from those of the application and of `submit`.

    A handler may hold a transaction open for long: no type gets more than half of the pool, so that jobs of other types
    still find a connection. An abandoned handler loses its connection with its slot: Postgres rolls its transaction
    back, and the next run does not cost one more."""

    def __init__(self, database: Database, size: int):
        self._database = database
        self._share = size // 2
        self._wait_max_s = HANDLER_WAIT_MAX_S
        self._free: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(self._share))

    @asynccontextmanager
    async def transaction(self, outbox: Outbox, scope: HandlerScope) -> AsyncIterator[JobTransaction]:
        """A transaction of this run. `PoolEmpty` if other runs of its type use all connections of the type."""
        free = self._free[scope.name]
        try:
            async with asyncio.timeout(self._wait_max_s):
                await free.acquire()
        except TimeoutError as error:
            raise PoolEmpty(
                f"Jobs of type {scope.name} hold {self._share} transactions open, the most that one type may, and "
                f"none ended within {self._wait_max_s:g} s."
            ) from error
        is_released = False

        def release() -> None:
            nonlocal is_released
            if not is_released:
                is_released = True
                free.release()

        try:
            with scope.holding(release):
                async with outbox.transaction(self._database) as work:
                    with scope.holding(work.tx.terminate):
                        yield work
        finally:
            release()


@dataclass(eq=False)
class _OpenJobs(OpenObject[JobNotifier]):
    # Connections for the application's transactions, for `submit`, and, while a worker runs, for handlers.
    database: Database
    submits: Database
    outbox: Outbox
    search_path: str | None
    handler_connections: HandlerConnections | None = None
