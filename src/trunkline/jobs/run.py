"""A job in the hands of this process: its claim, and the run that its handler sees."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from trunkline.errors import NotInTransaction, TrunklineError
from trunkline.handlers import HandlerScope
from trunkline.jobs.outcomes import MESSAGE_MAX, clean
from trunkline.store import jobs
from trunkline.store.database import Connection
from trunkline.store.jobs import Claimant, End, JobClaim, Lane
from trunkline.store.tenants import Tenant


class StopReason(StrEnum):
    """Why a running job is stopped from outside."""

    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    LEASE_LOST = "lease_lost"
    SHUTDOWN = "shutdown"


@dataclass(slots=True, eq=False)
class ClaimedJob:
    """A job that this process claimed. Times are of `ClaimedJobs.now_s`."""

    job: JobClaim
    renewed_s: float
    lease_until_s: float
    # When it may begin, if it was claimed before it was due.
    begin_s: float = 0.0
    started_s: float = 0.0
    duration_s: float = 0.0
    task: asyncio.Task[None] | None = None
    scope: HandlerScope | None = None
    stop_reason: StopReason | None = None
    # When the lease renewer first saw it run on after its cancellation.
    stop_seen_s: float | None = None
    # It did not stop: the executor has released its slot and its lease.
    is_abandoned: bool = False
    fraction: float | None = None
    note: str | None = None
    is_reported: bool = True

    def stop(self, reason: StopReason) -> None:
        """End the handler at its next await. The first reason counts."""
        if self.stop_reason is None:
            self.stop_reason = reason
            if self.task is not None:
                self.task.cancel()


class ClaimedJobs:
    """The jobs that a worker holds a claim on, whether queued, running, or with a verdict to be written. By id: a
    process holds a job under one claim at a time."""

    def __init__(self, claimant: Claimant, now_s: Callable[[], float]):
        self.claimant = claimant
        # The clock that also counts while the machine sleeps.
        self.now_s = now_s
        self._by_id: dict[UUID, ClaimedJob] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[ClaimedJob]:
        return iter(list(self._by_id.values()))

    def __contains__(self, held: ClaimedJob) -> bool:
        return self._by_id.get(held.job.id) is held

    @property
    def ids(self) -> list[UUID]:
        return list(self._by_id)

    def add(self, held: ClaimedJob) -> None:
        """An older claim on the same job has lost its lease, and its run is stopped."""
        older = self._by_id.get(held.job.id)
        self._by_id[held.job.id] = held
        if older is not None:
            older.stop(StopReason.LEASE_LOST)

    def drop(self, held: ClaimedJob) -> None:
        if held in self:
            del self._by_id[held.job.id]


class LeaseLost(TrunklineError):
    """Another worker owns this job now: this run must commit nothing."""


class Run:
    """One run of one job. A job may run more than once: handlers must be idempotent."""

    __slots__ = ("_held", "_running_max", "_worker", "is_finished", "unparked")

    def __init__(self, held: ClaimedJob, worker: str, running_max: dict[str, int]):
        self._held = held
        self._worker = worker
        self._running_max = running_max
        self.is_finished = False
        # The positions of jobs that had to wait for this one.
        self.unparked: list[tuple[Lane, datetime]] = []

    @property
    def job_id(self) -> UUID:
        return self._held.job.id

    @property
    def item_id(self) -> str | None:
        """The job's unique key. Log lines have it too."""
        return self._held.job.unique_key

    @property
    def attempt(self) -> int:
        return self._held.job.attempt

    @property
    def is_last_attempt(self) -> bool:
        return self._held.job.attempt >= self._held.job.max_attempts

    @property
    def fence(self) -> int:
        """Grows from claim to claim, for systems that refuse an older one."""
        return self._held.job.fence

    @property
    def enqueued_at(self) -> datetime:
        return self._held.job.created_at

    @property
    def tenant(self) -> Tenant:
        return Tenant(self._held.job.reseller_id, self._held.job.merchant_id)

    def progress(self, fraction: float, note: str | None = None) -> None:
        """Report progress, from 0 to 1. Costs nothing: the worker writes the last report once a second."""
        self._held.fraction = min(1.0, max(0.0, fraction))
        self._held.note = None if note is None else clean(note, MESSAGE_MAX)
        self._held.is_reported = False

    async def finish(self, tx: Connection, result: Any = None) -> None:
        """Finish the job in the handler's own transaction: its effects and its end are one.

        `LeaseLost` undoes both. The handler's return value is ignored afterwards. The call may come early in a long
        transaction: the job stays claimed by this run until the transaction ends, and only jobs with the same
        concurrency key wait for it.
        """
        if not hasattr(tx, "is_in_transaction"):
            raise NotInTransaction(
                f"run.finish takes a connection of asyncpg and not {type(tx).__module__}.{type(tx).__qualname__}: one "
                "in a transaction that finds the tables of jobs, such as `work.tx` of `jobs.transaction()`."
            )
        if not tx.is_in_transaction():
            raise NotInTransaction(
                "run.finish was given a connection in no transaction: the job would end before the handler's effects "
                "do. Begin a transaction first, and commit both."
            )
        await jobs.lock_held(tx, self.job_id, self.fence, self._worker)
        encoded = None if result is None else msgspec.json.encode(result).decode()
        end = End(self.job_id, self.fence, result=encoded, fraction=self._held.fraction, note=self._held.note)
        ended = await jobs.finish(tx, [end], self._worker)
        if not ended:
            raise LeaseLost(f"Job {self.job_id} belongs to another worker now")
        self.unparked = await jobs.free_keys(tx, ended, self._running_max)
        self.is_finished = True
