"""The way in: a job is enqueued in the transaction of the change that it follows from. Both happen, or neither does.

    async with database.transaction() as tx:
        await leads.finish(tx, …)
        job = await outbox.enqueue(tx, DELIVER_WEBHOOK, payload)
    outbox.poke(job)

The poke comes after the commit. Who forgets it waits for a second. `transaction` remembers it, and `submit` is for a
job that follows from nothing else.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, TypeVar

from trunkline.jobs.poker import Poker
from trunkline.jobs.registry import JobType, Registry
from trunkline.store import jobs
from trunkline.store.database import Connection, Database
from trunkline.store.jobs import Inserted, NewJob
from trunkline.store.tenants import PLATFORM, Tenant

P = TypeVar("P")

# From so many jobs on COPY is faster than INSERT.
COPY_MIN = 20
# Bounds one statement; a larger batch is several.
CHUNK = 5000


class Outbox:
    def __init__(self, registry: Registry, poker: Poker):
        self._registry = registry
        self._poker = poker

    async def enqueue(
        self,
        tx: Connection,
        job_type: JobType[P] | str,
        payload: P,
        *,
        run_at: datetime | None = None,
        priority: int | None = None,
        unique_key: str | None = None,
        concurrency_key: str | None = None,
        max_attempts: int | None = None,
        tenant: Tenant = PLATFORM,
    ) -> Inserted:
        """Enqueue one job, or find the pending one with the same unique key. `InvalidJob` if it cannot be."""
        kind: JobType[Any] = self._registry[job_type] if isinstance(job_type, str) else job_type
        new = kind.new(
            payload,
            run_at=run_at,
            priority=priority,
            unique_key=unique_key,
            concurrency_key=concurrency_key,
            max_attempts=max_attempts,
            tenant=tenant,
        )
        return (await jobs.insert(tx, [new]))[0]

    async def submit(
        self, database: Database, job_type: JobType[P] | str, payload: P, **options: Any
    ) -> Inserted:
        """Enqueue one job by itself, in one round trip, and poke."""
        async with database.connection() as conn:
            job = await self.enqueue(conn, job_type, payload, **options)
        self.poke(job)
        return job

    async def enqueue_many(self, tx: Connection, new: Iterable[NewJob]) -> list[Inserted]:
        """Enqueue jobs made by `JobType.new`, in order. Two with the same unique key are one."""
        listed = list(new)
        unique = {(job.job_type, job.unique_key) for job in listed if job.unique_key is not None}
        if not unique and len(listed) >= COPY_MIN:
            return [
                job
                for start in range(0, len(listed), CHUNK)
                for job in await jobs.copy(tx, listed[start : start + CHUNK])
            ]
        return await self._insert(tx, listed)

    def poke(self, *enqueued: Inserted) -> None:
        """Wake the workers. After the commit: before it they would find nothing."""
        self._poker.poke(*enqueued)

    @asynccontextmanager
    async def transaction(self, database: Database) -> "AsyncIterator[Pokes]":
        """A transaction that pokes by itself once it is committed."""
        async with database.transaction() as tx:
            pokes = Pokes(self, tx)
            yield pokes
        self.poke(*pokes.enqueued)

    async def _insert(self, tx: Connection, new: list[NewJob]) -> list[Inserted]:
        """All in one order of unique keys, also over several statements: it is the order of their locks."""
        first: dict[object, NewJob] = {}
        for job in new:
            first.setdefault(_identity(job), job)
        ordered = sorted(first.values(), key=lambda job: (job.job_type, job.unique_key or "", job.id))
        done: dict[object, Inserted] = {}
        for start in range(0, len(ordered), CHUNK):
            chunk = ordered[start : start + CHUNK]
            for job, inserted in zip(chunk, await jobs.insert(tx, chunk), strict=True):
                done[_identity(job)] = inserted
        return [done[_identity(job)] for job in new]


class Pokes:
    """A transaction, and what was enqueued in it."""

    def __init__(self, outbox: Outbox, tx: Connection):
        self.tx = tx
        self.enqueued: list[Inserted] = []
        self._outbox = outbox

    async def enqueue(self, job_type: JobType[P] | str, payload: P, **options: Any) -> Inserted:
        job = await self._outbox.enqueue(self.tx, job_type, payload, **options)
        self.enqueued.append(job)
        return job

    async def enqueue_many(self, new: Iterable[NewJob]) -> list[Inserted]:
        jobs = await self._outbox.enqueue_many(self.tx, new)
        self.enqueued.extend(jobs)
        return jobs


def _identity(job: NewJob) -> object:
    return job.id if job.unique_key is None else (job.job_type, job.unique_key)
