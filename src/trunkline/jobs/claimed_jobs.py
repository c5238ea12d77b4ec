"""The jobs that this process holds: claimed and not yet given up, whether waiting, running, or being written down."""

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
    """One job in our hands. Times are of the clock that also counts while the machine sleeps."""

    __slots__ = (
        "begin_s", "duration_s", "fraction", "is_abandoned", "job", "lease_until_s", "note", "renewed_s", "reported",
        "scope", "started_s", "stop_reason", "stop_seen_s", "task",
    )  # fmt: skip

    def __init__(self, job: JobClaim, asked_s: float, lease_s: float):
        self.job = job
        # Not before: it was claimed ahead of its time.
        self.begin_s = 0.0
        self.renewed_s = asked_s
        self.lease_until_s = asked_s + lease_s
        self.started_s = 0.0
        self.duration_s = 0.0
        self.task: asyncio.Task[None] | None = None
        self.scope: HandlerScope | None = None
        self.stop_reason: StopReason | None = None
        # When it was first seen to go on although it was told to stop.
        self.stop_seen_s: float | None = None
        # It never stopped: its slot and its lease were given up.
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
        self._held: dict[UUID, ClaimedJob] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[ClaimedJob]:
        return iter(list(self._held.values()))

    def __contains__(self, held: ClaimedJob) -> bool:
        return self._held.get(held.job.id) is held

    @property
    def ids(self) -> list[UUID]:
        return list(self._held)

    def add(self, held: ClaimedJob) -> None:
        """Claimed anew: an older claim of the same job has lost its lease, whether or not it knows."""
        older = self._held.get(held.job.id)
        self._held[held.job.id] = held
        if older is not None:
            older.stop(StopReason.LEASE_LOST)

    def drop(self, held: ClaimedJob) -> None:
        if held in self:
            del self._held[held.job.id]
