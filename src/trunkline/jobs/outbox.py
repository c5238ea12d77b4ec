"""Enqueues a job in the transaction of the change that it follows from. Both are committed, or neither is.

    async with database.transaction() as tx:
        await leads.finish(tx, …)
        job = await outbox.enqueue(tx, DELIVER_WEBHOOK, payload)
    outbox.wake(job)

The wakeup comes after the commit; without it the poller finds the job within a second. `transaction` sends it by
itself, and `submit` is for a job that follows from no other change.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar, Unpack

from trunkline.errors import NotInTransaction
from trunkline.jobs.registry import JobOptions, JobType, Registry
from trunkline.jobs.wakeups import JobNotifier
from trunkline.old_names import kept_names
from trunkline.store import jobs
from trunkline.store.database import Connection, Database
from trunkline.store.jobs import Inserted, NewJob

P = TypeVar("P")

# From this many jobs on COPY is faster than INSERT.
COPY_MIN = 20
# Bounds one statement; a larger batch is several.
CHUNK = 5000


@kept_names
class Outbox:
    def __init__(self, registry: Registry, notifier: JobNotifier):
        self._registry = registry
        self._notifier = notifier

    async def enqueue(
        self, tx: Connection, job_type: JobType[P] | str, payload: P, **options: Unpack[JobOptions]
    ) -> Inserted:
        """Enqueue one job, or find the tenant's pending one with the same unique key. Raises `InvalidJob`, or
        `NotInTransaction` outside a transaction."""
        check_in_transaction(tx)
        return (await jobs.insert(tx, [self._registry.new(job_type, payload, **options)]))[0]

    async def submit(
        self, database: Database, job_type: JobType[P] | str, payload: P, **options: Unpack[JobOptions]
    ) -> Inserted:
        """Enqueue one job by itself, in one round trip, and wake a worker."""
        async with database.connection() as conn:
            [job] = await jobs.insert(conn, [self._registry.new(job_type, payload, **options)])
        self.wake(job)
        return job

    async def enqueue_many(self, tx: Connection, new: Iterable[NewJob]) -> list[Inserted]:
        """Enqueue jobs made by `JobType.new`, in order. Two with the same unique key are one."""
        check_in_transaction(tx)
        listed = list(new)
        if all(job.unique_key is None for job in listed) and len(listed) >= COPY_MIN:
            return [
                job
                for start in range(0, len(listed), CHUNK)
                for job in await jobs.copy(tx, listed[start : start + CHUNK])
            ]
        return await self._insert(tx, listed)

    def wake(self, *enqueued: Inserted) -> None:
        """Wake the workers. After the commit: before it they would find nothing."""
        self._notifier.wake(*enqueued)

    @asynccontextmanager
    async def transaction(self, database: Database) -> "AsyncIterator[JobTransaction]":
        """A transaction that wakes workers by itself once it is committed."""
        async with database.transaction() as tx:
            transaction = JobTransaction(self, tx)
            yield transaction
        self.wake(*transaction.enqueued)

    async def _insert(self, tx: Connection, new: list[NewJob]) -> list[Inserted]:
        done: dict[object, Inserted] = {}
        for chunk in jobs.in_lock_order(new, CHUNK):
            for job, inserted in zip(chunk, await jobs.insert(tx, chunk), strict=True):
                done[job.identity] = inserted
        return [done[job.identity] for job in new]


class JobTransaction:
    """A transaction, and the jobs that were enqueued in it."""

    def __init__(self, outbox: Outbox, tx: Connection):
        self.tx = tx
        self.enqueued: list[Inserted] = []
        self._outbox = outbox

    async def enqueue(
        self, job_type: JobType[P] | str, payload: P, **options: Unpack[JobOptions]
    ) -> Inserted:
        job = await self._outbox.enqueue(self.tx, job_type, payload, **options)
        self.enqueued.append(job)
        return job

    async def enqueue_many(self, new: Iterable[NewJob]) -> list[Inserted]:
        jobs = await self._outbox.enqueue_many(self.tx, new)
        self.enqueued.extend(jobs)
        return jobs


def check_in_transaction(tx: Connection) -> None:
    """Outside a transaction the job is committed by itself, and runs even if the change that it follows from fails. A
    session whose driver begins a transaction with its first statement is outside too, if this is the first."""
    if not tx.is_in_transaction():
        raise NotInTransaction(
            "The connection is in no transaction, so the job would run even if the caller's work is rolled back. Begin "
            "one first; for a job that follows from nothing else there is `submit`."
        )
