"""The jobs that this process holds a claim on, whether queued, running, or with a verdict to be written."""

import asyncio
from collections.abc import Iterator
from enum import StrEnum
from uuid import UUID

from trunkline.handlers import HandlerScope
from trunkline.store.jobs import JobClaim


class StopReason(StrEnum):
    """Why a running job is stopped from outside."""

    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    LEASE_LOST = "lease_lost"
    SHUTDOWN = "shutdown"


class ClaimedJob:
    """A job that this process claimed. Times are of the clock that also counts while the machine sleeps."""

    __slots__ = (
        "begin_s", "duration_s", "fraction", "is_abandoned", "job", "lease_until_s", "note", "renewed_s", "reported",
        "scope", "started_s", "stop_reason", "stop_seen_s", "task",
    )  # fmt: skip

    def __init__(self, job: JobClaim, requested_s: float, lease_s: float):
        self.job = job
        # When it may begin, if it was claimed before it was due.
        self.begin_s = 0.0
        self.renewed_s = requested_s
        self.lease_until_s = requested_s + lease_s
        self.started_s = 0.0
        self.duration_s = 0.0
        self.task: asyncio.Task[None] | None = None
        self.scope: HandlerScope | None = None
        self.stop_reason: StopReason | None = None
        # When the lease renewer first saw it run on after its cancellation.
        self.stop_seen_s: float | None = None
        # It did not stop: the executor has released its slot and its lease.
        self.is_abandoned = False
        self.fraction: float | None = None
        self.note: str | None = None
        self.reported = True

    def stop(self, reason: StopReason) -> None:
        """End the handler at its next await. The first reason counts."""
        if self.stop_reason is None:
            self.stop_reason = reason
            if self.task is not None:
                self.task.cancel()


class ClaimedJobs:
    """By id: a process holds a job under one claim at a time."""

    def __init__(self) -> None:
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
