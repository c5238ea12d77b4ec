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
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, TypeVar, Unpack
from uuid import UUID

from trunkline.errors import StoreUnavailable
from trunkline.event_loop import LoopThread, running_loop, wait_for_stop_signal
from trunkline.handlers import current_scope
from trunkline.jobs.handler_connections import HandlerConnections, size_for
from trunkline.jobs.notifier import JobNotifier
from trunkline.jobs.outbox import JobTransaction, Outbox
from trunkline.jobs.recurring import Recurring, declared_schedules
from trunkline.jobs.registry import JobOptions, JobType, Registry, declared
from trunkline.jobs.service import JobConfig, JobService
from trunkline.old_names import kept_names
from trunkline.store import adapters, job_admin
from trunkline.store import database as store_database
from trunkline.store.adapters import Adapter, entries
from trunkline.store.database import Database
from trunkline.store.jobs import Inserted, NewJob
from trunkline.store.migrate import migrate, search_path_with
from trunkline.store.tenants import PLATFORM

P = TypeVar("P")

# One statement each, in a pool of their own: open transactions do not keep a `submit` waiting.
SUBMIT_CONNECTIONS = 3


@kept_names
class Jobs:
    """The jobs of an application: enqueue them anywhere, run them where a worker is."""

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
        self.registry = declared if types is None else Registry(types)
        self.schema = schema
        self._url = database_url
        self._direct_url = direct_url or (None if behind_pooler else database_url)
        self._behind_pooler = behind_pooler
        self._pool_size = pool_size
        self._schedules = declared_schedules if recurring is None and types is None else recurring or ()
        self._config = config or JobConfig(identity=f"{socket.gethostname()}-{os.getpid()}")
        self._thread = LoopThread("trunkline jobs", lambda: JobNotifier(self._wake_url))
        self._open: _Open | None = None

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
        adapter = adapters.for_async(tx)
        answers = [
            await adapters.call_async(adapter, self.schema, entries.ENQUEUE_JOBS, text)
            for text in entries.jobs_in(listed)
        ]
        return self._enqueued(listed, answers, adapter)

    def enqueue_sync(
        self, tx: Any, job_type: JobType[P] | str, payload: P, **options: Unpack[JobOptions]
    ) -> Inserted:
        """As `enqueue`, for a connection or session that is not asynchronous."""
        return self.enqueue_many_sync(tx, [self.new(job_type, payload, **options)])[0]

    def enqueue_many_sync(self, tx: Any, new: Iterable[NewJob]) -> list[Inserted]:
        listed = list(new)
        adapter = adapters.for_sync(tx)
        answers = [
            adapters.call_sync(adapter, self.schema, entries.ENQUEUE_JOBS, text)
            for text in entries.jobs_in(listed)
        ]
        return self._enqueued(listed, answers, adapter)

    def new(self, job_type: JobType[P] | str, payload: P, **options: Unpack[JobOptions]) -> NewJob:
        """A job that can be enqueued, or `InvalidJob`."""
        kind: JobType[Any] = self.registry[job_type] if isinstance(job_type, str) else job_type
        return kind.new(payload, **options)

    def wake(self, *enqueued: Inserted) -> None:
        """Wake the workers. Call it after the commit: before it they find nothing. Sessions of SQLAlchemy and Django do
        it by themselves. Without it the poller finds a job within a second. Never waits, in any thread."""
        if self._open is None:
            self._thread.call(lambda notifier: notifier.wake(*enqueued))
        elif self._open.loop is running_loop():
            self._open.notifier.wake(*enqueued)
        else:
            self._open.loop.call_soon_threadsafe(self._open.notifier.wake, *enqueued)

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
        return await migrate(self._direct_url or self._url, area="jobs", schema=self.schema)

    def prepare_sync(self) -> list[str]:
        return asyncio.run(self.prepare())

    def close(self) -> None:
        """For a synchronous process: send the last wakeups and end the thread that sends them. A process that ends
        without it loses at most those wakeups, and the poller finds the jobs within a second."""
        self._thread.close(JobNotifier.close)

    async def __aenter__(self) -> "Jobs":
        assert self._open is None, "open already"
        await self.prepare()
        path = None if self.schema is None else await search_path_with(self._url, self.schema)
        async with AsyncExitStack() as stack:
            database = await stack.enter_async_context(
                self._connections("trunkline jobs", self._pool_size, path)
            )
            submits = await stack.enter_async_context(
                self._connections("trunkline jobs: submits", SUBMIT_CONNECTIONS, path)
            )
            notifier = JobNotifier(self._wake_url)
            stack.push_async_callback(notifier.close)
            self._open = _Open(database, submits, notifier, self.registry, path, stack.pop_all())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened = self._opened()
        self._open = None
        await opened.closing.aclose()

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[JobService]:
        """Run jobs until the end of the block, beside whatever else the process does."""
        opened = self._opened()
        size = size_for(self._config.executor.running_max)
        async with self._connections("trunkline jobs: handlers", size, opened.search_path) as database:
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

    async def run(self) -> None:
        """Run jobs until SIGTERM, SIGINT or a cancellation; then the worker finishes or returns what runs. Opens the
        object if it is not open."""
        async with AsyncExitStack() as stack:
            if self._open is None:
                await stack.enter_async_context(self)
            await stack.enter_async_context(self.worker())
            await wait_for_stop_signal()

    @asynccontextmanager
    async def _connections(self, name: str, size: int, search_path: str | None) -> AsyncIterator[Database]:
        database = await store_database.connect(
            self._url,
            pool_size=size,
            behind_pooler=self._behind_pooler,
            application_name=name,
            search_path=search_path,
        )
        try:
            yield database
        finally:
            await database.close()

    @property
    def _wake_url(self) -> str | None:
        return self._direct_url if self._config.notify else None

    def _opened(self) -> "_Open":
        if self._open is None:
            raise StoreUnavailable("These jobs are not open: `async with jobs:` around what uses them.")
        return self._open

    def _enqueued(self, new: Sequence[NewJob], answers: Iterable[str], adapter: Adapter) -> list[Inserted]:
        enqueued = entries.jobs_out(new, answers)
        adapter.after_commit(lambda: self.wake(*enqueued))
        return enqueued


class _Open:
    """What an open object holds, and the loop that it was opened in."""

    def __init__(
        self,
        database: Database,
        submits: Database,
        notifier: JobNotifier,
        registry: Registry,
        search_path: str | None,
        closing: AsyncExitStack,
    ):
        self.loop = asyncio.get_running_loop()
        # Connections for the application's transactions, for `submit`, and, while a worker runs, for handlers.
        self.database = database
        self.submits = submits
        self.handler_connections: HandlerConnections | None = None
        self.notifier = notifier
        self.outbox = Outbox(registry, notifier)
        self.search_path = search_path
        self.closing = closing
