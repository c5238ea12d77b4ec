"""Writes the verdicts of runs, in batches.

Verdicts that come in during a write go into the next batch. No verdict waits for a lock of another transaction: one
whose row or concurrency key is locked is retried by itself, and the others of its batch are written. Only a job that
returns under a unique key can meet an open transaction that has just inserted the key, and must wait for its end; these
are written apart from all others, with a short lock timeout each.

A verdict that cannot be written is retried until its lease ends; then the reaper takes the job.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from trunkline.crashpoint import crash_point
from trunkline.jobs.claimed_jobs import ClaimedJob, ClaimedJobs
from trunkline.jobs.notifier import JobNotifier
from trunkline.jobs.outcomes import JobVerdict
from trunkline.jobs.record import WrittenVerdicts, record
from trunkline.store import jobs
from trunkline.store.database import ROW_HELD, Connection, Database, describe, may_pass
from trunkline.store.driver import CONTENTION
from trunkline.store.jobs import Death, End, EndedJob, Lane, ReturnedClaim
from trunkline.telemetry import get_logger

log = get_logger(__name__)

BATCH_MAX = 1000
# How long a verdict waits for others of its batch.
BATCH_DELAY_S = 0.003
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0
# How long a returned job waits for an open transaction with its unique key, before others have their turn.
CONTENDED_LOCK_TIMEOUT_MS = 50
# The same for parts of a batch that timed out: short transactions ended while the whole batch waited.
PART_LOCK_TIMEOUT_MS = 10
# How long verdicts that timed out before are retried one by one, before new ones have their turn.
ALONE_TURN_S = 0.2


async def write(
    tx: Connection, verdicts: Sequence[JobVerdict], worker: str | None, running_max: dict[str, int]
) -> WrittenVerdicts:
    """Write verdicts in one transaction: lock their keys, end the jobs, unpark others of the keys. Jobs that another
    transaction has locked are skipped and returned as postponed."""
    written = WrittenVerdicts(postponed=await jobs.lock_keys_of(tx, [v.id for v in verdicts]))
    free = [v for v in verdicts if v.id not in written.postponed]
    if ends := [v for v in free if isinstance(v, End)]:
        written.ended = await jobs.finish(tx, ends, worker)
    if returns := [v for v in free if isinstance(v, ReturnedClaim)]:
        written.returned = await jobs.put_back(tx, returns, worker)
    if deaths := [v for v in free if isinstance(v, Death)]:
        written.buried = await jobs.bury(tx, deaths, worker)
    freed = [*written.ended, *(r.ended for r in written.returned), *written.buried]
    unparked = await jobs.free_keys(tx, freed, running_max)
    written.places = [*((r.lane, r.run_at) for r in written.returned if r.run_at is not None), *unparked]
    written.postponed |= await _locked(tx, free, {ended.id for ended in freed}, worker)
    return written


async def _locked(
    conn: Connection, verdicts: Sequence[JobVerdict], written: set[UUID], worker: str | None
) -> set[UUID]:
    """The verdicts that were skipped and whose jobs the worker still owns."""
    if len(written) == len(verdicts):
        return set()
    return await jobs.held(conn, {v.id: v.fence for v in verdicts if v.id not in written}, worker)


def may_wait(verdict: JobVerdict, unique_key: str | None) -> bool:
    """Whether an open transaction elsewhere can block this write."""
    return isinstance(verdict, ReturnedClaim) and unique_key is not None


@dataclass(slots=True, eq=False)
class _Waiting:
    held: ClaimedJob
    verdict: JobVerdict
    pause_s: float = RETRY_FIRST_S
    # The connection broke during the write: it may be written already.
    is_retry: bool = False
    # It blocked its batch, and is written by itself.
    is_alone: bool = False


class Finisher:
    """One per worker."""

    def __init__(
        self,
        database: Database,
        claimed_jobs: ClaimedJobs,
        notifier: JobNotifier,
        worker: str,
        running_max: dict[str, int],
        *,
        now_s: Callable[[], float],
        on_room: Callable[[], None],
    ):
        self._database = database
        self._claimed_jobs = claimed_jobs
        self._notifier = notifier
        self._worker = worker
        self._running_max = running_max
        self._now_s = now_s
        self._on_room = on_room
        self._changed = asyncio.Event()
        self._plain = _Queue("finisher", self._flush_plain, self._changed)
        self._contended = _Queue("finisher_contended", self._flush_contended, self._changed)
        self._postponed: dict[_Waiting, asyncio.TimerHandle] = {}

    def add(self, held: ClaimedJob, verdict: JobVerdict) -> None:
        self._add(_Waiting(held, verdict))

    def _add(self, waiting: _Waiting) -> None:
        unique_key = waiting.held.job.unique_key
        is_plain = unique_key is None or not may_wait(waiting.verdict, unique_key)
        (self._plain if is_plain else self._contended).add(waiting)

    def finished(self, held: ClaimedJob, unparked: Sequence[tuple[Lane, datetime]]) -> None:
        """The handler finished the job itself, in its own transaction."""
        job = held.job
        self._claimed_jobs.drop(held)
        self._notifier.wake_lanes(unparked)
        ended = EndedJob(job.id, job.job_type, job.concurrency_key)
        record({held: End(job.id, job.fence)}, WrittenVerdicts(ended=[ended]), retried=())

    async def flushed(self) -> None:
        """Wait until every verdict so far is written or dropped."""
        while self._postponed or self._plain.flusher or self._contended.flusher:
            self._changed.clear()
            await self._changed.wait()

    async def _flush_plain(self) -> None:
        await asyncio.sleep(BATCH_DELAY_S)
        while batch := self._plain.take(BATCH_MAX):
            await self._write(batch)

    async def _flush_contended(self) -> None:
        await asyncio.sleep(BATCH_DELAY_S)
        while batch := self._contended.take(BATCH_MAX):
            # Computed before the writes below: a verdict that blocks its batch is alone from its next turn on.
            alone = [waiting for waiting in batch if waiting.is_alone]
            together = [waiting for waiting in batch if not waiting.is_alone]
            if together:
                await self._write(together, lock_timeout_ms=CONTENDED_LOCK_TIMEOUT_MS)
            turn_ends_s = self._now_s() + ALONE_TURN_S
            while alone and self._now_s() < turn_ends_s:
                await self._write([alone.pop(0)], lock_timeout_ms=PART_LOCK_TIMEOUT_MS)
            self._contended.put_back(alone)

    async def _write(self, batch: list[_Waiting], *, lock_timeout_ms: int | None = None) -> None:
        while batch:
            crash_point("jobs.before_finish")
            try:
                written = await self._try(batch, lock_timeout_ms)
            except Exception as error:
                if not may_pass(error):
                    await self._write_singly(batch, error, lock_timeout_ms)
                    return
                if isinstance(error, CONTENTION):
                    await self._write_by_halves(batch, error, is_bounded=lock_timeout_ms is not None)
                    return
                log.warning("jobs.results_delayed", count=len(batch), error=describe(error))
                await asyncio.sleep(max(waiting.pause_s for waiting in batch))
                for waiting in batch:
                    waiting.pause_s, waiting.is_retry = min(RETRY_MAX_S, waiting.pause_s * 2), True
                batch = self._still_leased(batch)
            else:
                self._conclude(batch, written)
                return

    async def _try(self, batch: Sequence[_Waiting], lock_timeout_ms: int | None) -> WrittenVerdicts:
        plain = [
            w.verdict for w in batch if isinstance(w.verdict, End) and w.held.job.concurrency_key is None
        ]
        if len(plain) == len(batch):
            # By far the most frequent case: one statement, one round trip.
            async with self._database.connection() as conn:
                ended = await self._finish(conn, plain)
                if len(ended) == len(plain):
                    return WrittenVerdicts(ended=ended)
                locked = await _locked(conn, plain, {each.id for each in ended}, self._worker)
                return WrittenVerdicts(ended=ended, postponed=locked)
        verdicts = [waiting.verdict for waiting in batch]
        async with self._database.transaction() as tx:
            if lock_timeout_ms is not None:
                await jobs.limit_waiting(tx, lock_timeout_ms)
            return await write(tx, verdicts, self._worker, self._running_max)

    async def _finish(self, conn: Connection, ends: Sequence[End]) -> list[EndedJob]:
        if conn.is_in_transaction():
            # Behind a pooler the session is shared, and has no lock_timeout that ends a wait.
            return await jobs.finish(conn, ends, self._worker)
        try:
            return await jobs.finish_at_once(conn, ends, self._worker)
        except ROW_HELD:
            return await jobs.finish(conn, ends, self._worker)

    async def _write_by_halves(self, batch: list[_Waiting], error: Exception, *, is_bounded: bool) -> None:
        """Bisect down to the verdict that another transaction blocks, and postpone it."""
        if len(batch) > 1:
            middle = len(batch) // 2
            part_ms = PART_LOCK_TIMEOUT_MS if is_bounded else None
            await self._write(batch[:middle], lock_timeout_ms=part_ms)
            await self._write(batch[middle:], lock_timeout_ms=part_ms)
            return
        log.debug("jobs.result_held_up", job_id=batch[0].held.job.id, error=describe(error))
        self._postpone(batch[0])

    async def _write_singly(
        self, batch: list[_Waiting], error: Exception, lock_timeout_ms: int | None
    ) -> None:
        """A verdict that Postgres refuses must not fail the others of its batch. Its claim is dropped: its lease is not
        renewed any more, and the reaper takes the job."""
        if len(batch) > 1:
            for waiting in batch:
                await self._write([waiting], lock_timeout_ms=lock_timeout_ms)
            return
        for waiting in batch:
            job = waiting.held.job
            log.error("jobs.result_refused", job_id=job.id, error=describe(error), exc_info=error)
            self._claimed_jobs.drop(waiting.held)

    def _postpone(self, waiting: _Waiting) -> None:
        """Another transaction has it locked: retry after a pause, for as long as its lease lasts."""
        if not self._still_leased([waiting]):
            return
        waiting.is_alone = True
        loop = asyncio.get_running_loop()
        self._postponed[waiting] = loop.call_later(waiting.pause_s, self._retry, waiting)
        waiting.pause_s = min(RETRY_MAX_S, waiting.pause_s * 2)

    def _retry(self, waiting: _Waiting) -> None:
        del self._postponed[waiting]
        self._add(waiting)

    def _still_leased(self, batch: Iterable[_Waiting]) -> list[_Waiting]:
        now_s = self._now_s()
        leased: list[_Waiting] = []
        for waiting in batch:
            if waiting.held.lease_until_s > now_s:
                leased.append(waiting)
            else:
                job = waiting.held.job
                log.error("jobs.result_lost", job_id=job.id, job_type=job.job_type)
                self._claimed_jobs.drop(waiting.held)
        return leased

    def _conclude(self, batch: Sequence[_Waiting], written: WrittenVerdicts) -> None:
        if written.postponed:
            for waiting in batch:
                if waiting.held.job.id in written.postponed:
                    self._postpone(waiting)
            batch = [waiting for waiting in batch if waiting.held.job.id not in written.postponed]
        for waiting in batch:
            self._claimed_jobs.drop(waiting.held)
        self._notifier.wake_lanes(written.places)
        record(
            {waiting.held: waiting.verdict for waiting in batch},
            written,
            retried=[waiting.held for waiting in batch if waiting.is_retry],
        )
        self._on_room()


class _Queue:
    """Verdicts that wait for one kind of write, and the task that writes them while there are any."""

    def __init__(self, name: str, flush: Callable[[], Coroutine[Any, Any, None]], idle: asyncio.Event):
        self._name = name
        self._flush = flush
        self._idle = idle
        self._task: asyncio.Task[None] | None = None
        self.waiting: list[_Waiting] = []

    @property
    def flusher(self) -> asyncio.Task[None] | None:
        return self._task if self._task is not None and not self._task.done() else None

    def add(self, waiting: _Waiting) -> None:
        self.waiting.append(waiting)
        if self.flusher is None:
            self._task = asyncio.create_task(self._flush(), name=self._name)
            self._task.add_done_callback(lambda _: self._idle.set())

    def take(self, count: int) -> list[_Waiting]:
        batch, self.waiting = self.waiting[:count], self.waiting[count:]
        return batch

    def put_back(self, batch: list[_Waiting]) -> None:
        """Behind those that were added meanwhile."""
        self.waiting += batch
