"""Writes the verdicts of runs, in batches, and records them in metrics and in log lines, whose events are those of the
source documents.

Verdicts that come in during a write go into the next batch. No verdict waits for a lock of another transaction: one
whose row or concurrency key is locked is retried by itself, and the others of its batch are written. Only a job that
returns under a unique key can meet an open transaction that has just inserted the key, and must wait for its end; these
are written apart from all others, with a short lock timeout each.

A verdict that cannot be written is retried until its lease ends; then the reaper takes the job.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from structlog.typing import FilteringBoundLogger

from trunkline.crashpoint import crash_point
from trunkline.event_loop import OnDemandTask
from trunkline.jobs.outcomes import JobVerdict
from trunkline.jobs.run import ClaimedJob, ClaimedJobs
from trunkline.jobs.wakeups import JobNotifier
from trunkline.store import jobs
from trunkline.store.database import ROW_HELD, Connection, Database, describe, limit_waiting, may_pass
from trunkline.store.driver import CONTENTION
from trunkline.store.jobs import Death, End, EndedJob, Lane, Returned, ReturnedClaim
from trunkline.telemetry import get_logger, metrics

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


@dataclass(slots=True)
class WrittenVerdicts:
    """The result of writing a batch of verdicts, and the positions at which jobs wait because of it."""

    ended: list[EndedJob] = field(default_factory=list)
    returned: list[Returned] = field(default_factory=list)
    buried: list[EndedJob] = field(default_factory=list)
    places: list[tuple[Lane, datetime]] = field(default_factory=list)
    # Another transaction has these or their concurrency keys locked: they are not written yet.
    postponed: set[UUID] = field(default_factory=set)


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
    freed = [*written.ended, *written.returned, *written.buried]
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
        running_max: dict[str, int],
        on_room: Callable[[], None],
    ):
        self._database = database
        self._claimed_jobs = claimed_jobs
        self._notifier = notifier
        self._worker = claimed_jobs.claimant.worker
        self._now_s = claimed_jobs.now_s
        self._running_max = running_max
        self._on_room = on_room
        self._changed = asyncio.Event()
        self._plain: list[_Waiting] = []
        self._plain_writer = OnDemandTask(self._flush_plain, "finisher")
        self._contended: list[_Waiting] = []
        self._contended_writer = OnDemandTask(self._flush_contended, "finisher_contended")
        self._postponed: dict[_Waiting, asyncio.TimerHandle] = {}

    def add(self, held: ClaimedJob, verdict: JobVerdict) -> None:
        self._add(_Waiting(held, verdict))

    def _add(self, waiting: _Waiting) -> None:
        if may_wait(waiting.verdict, waiting.held.job.unique_key):
            self._contended.append(waiting)
            self._contended_writer.start()
        else:
            self._plain.append(waiting)
            self._plain_writer.start()

    def finished(self, held: ClaimedJob, unparked: Sequence[tuple[Lane, datetime]]) -> None:
        """The handler finished the job itself, in its own transaction."""
        job = held.job
        self._claimed_jobs.drop(held)
        self._notifier.wake_lanes(unparked)
        ended = EndedJob(job.id, job.job_type, job.concurrency_key)
        record({held: End(job.id, job.fence)}, WrittenVerdicts(ended=[ended]), retried=())

    async def flushed(self) -> None:
        """Wait until every verdict so far is written or dropped."""
        while self._postponed or self._plain_writer.is_running or self._contended_writer.is_running:
            self._changed.clear()
            await self._changed.wait()

    async def _flush_plain(self) -> None:
        try:
            await asyncio.sleep(BATCH_DELAY_S)
            while self._plain:
                batch, self._plain = self._plain[:BATCH_MAX], self._plain[BATCH_MAX:]
                await self._write(batch)
        finally:
            self._changed.set()

    async def _flush_contended(self) -> None:
        try:
            await asyncio.sleep(BATCH_DELAY_S)
            while self._contended:
                batch, self._contended = self._contended[:BATCH_MAX], self._contended[BATCH_MAX:]
                # Computed before the writes below: a verdict that blocks its batch is alone from its next turn on.
                alone = [waiting for waiting in batch if waiting.is_alone]
                together = [waiting for waiting in batch if not waiting.is_alone]
                if together:
                    await self._write(together, lock_timeout_ms=CONTENDED_LOCK_TIMEOUT_MS)
                turn_ends_s = self._now_s() + ALONE_TURN_S
                while alone and self._now_s() < turn_ends_s:
                    await self._write([alone.pop(0)], lock_timeout_ms=PART_LOCK_TIMEOUT_MS)
                # Behind those that were added meanwhile.
                self._contended += alone
        finally:
            self._changed.set()

    async def _write(self, batch: list[_Waiting], *, lock_timeout_ms: int | None = None) -> None:
        while batch:
            crash_point("jobs.before_finish")
            try:
                written = await self._try(batch, lock_timeout_ms)
            except Exception as error:
                if not may_pass(error) or isinstance(error, CONTENTION):
                    await self._write_by_halves(batch, error, lock_timeout_ms)
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
                await limit_waiting(tx, lock_timeout_ms)
            return await write(tx, verdicts, self._worker, self._running_max)

    async def _finish(self, conn: Connection, ends: Sequence[End]) -> list[EndedJob]:
        if conn.is_in_transaction():
            # Behind a pooler the session is shared, and has no lock_timeout that ends a wait.
            return await jobs.finish(conn, ends, self._worker)
        try:
            return await jobs.finish_at_once(conn, ends, self._worker)
        except ROW_HELD:
            return await jobs.finish(conn, ends, self._worker)

    async def _write_by_halves(
        self, batch: list[_Waiting], error: Exception, lock_timeout_ms: int | None
    ) -> None:
        """Bisect down to the verdict that must not fail the others. One that another transaction blocks is postponed;
        the claim of one that Postgres refuses is dropped: its lease is not renewed any more, and the reaper takes the
        job."""
        if len(batch) > 1:
            middle = len(batch) // 2
            part_ms = None if lock_timeout_ms is None else PART_LOCK_TIMEOUT_MS
            await self._write(batch[:middle], lock_timeout_ms=part_ms)
            await self._write(batch[middle:], lock_timeout_ms=part_ms)
            return
        [waiting] = batch
        job_id = waiting.held.job.id
        if isinstance(error, CONTENTION):
            log.debug("jobs.result_held_up", job_id=job_id, error=describe(error))
            self._postpone(waiting)
        else:
            log.error("jobs.result_refused", job_id=job_id, error=describe(error), exc_info=error)
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


def record(
    batch: Mapping[ClaimedJob, JobVerdict], written: WrittenVerdicts, *, retried: Collection[ClaimedJob]
) -> None:
    """A retried verdict whose job is missing does not count as a lost lease: the first try may have written it."""
    outcomes = {e.id: "" for e in written.ended} | {e.id: "" for e in written.buried}
    outcomes |= {r.id: r.outcome or "" for r in written.returned}
    counts: Counter[tuple[str, str]] = Counter()
    bound = log.bind()  # once for the batch: below the log level a line then costs next to nothing
    for held, verdict in batch.items():
        job = held.job
        if job.id in outcomes or held in retried:
            status = outcomes.get(job.id) or _status(verdict)
            counts[job.job_type, status] += 1
            _log(bound, held, verdict, status)
        else:
            counts[job.job_type, "lease_lost"] += 1
            bound.warning("jobs.lease_lost", job_id=job.id, job_type=job.job_type, fence=job.fence)
    for (job_type, status), count in counts.items():
        metrics.JOBS_COMPLETED.labels(job_type, status).inc(count)


def _status(verdict: JobVerdict) -> str:
    match verdict:
        case End(outcome="succeeded"):
            return "success"
        case End(outcome=outcome):
            return outcome
        case ReturnedClaim(error_code=None):
            return "returned"
        case ReturnedClaim():
            return "failed"
        case Death():
            return "dead"


def _log(bound: FilteringBoundLogger, held: ClaimedJob, verdict: JobVerdict, status: str) -> None:
    job = held.job
    if status == "success":
        bound.info(
            "job_completed",
            job_id=job.id,
            job_type=job.job_type,
            item_id=job.unique_key,
            duration_ms=round(held.duration_s * 1000),
        )
    elif isinstance(verdict, ReturnedClaim | Death) and status in ("failed", "dead"):
        log_at_level = bound.error if status == "dead" else bound.warning
        log_at_level(
            "job_failed",
            job_id=job.id,
            job_type=job.job_type,
            item_id=job.unique_key,
            attempt=job.attempt,
            error_code=verdict.error_code,
            error_message=verdict.error_message,
            will_retry=status == "failed",
        )
    else:
        bound.info("jobs.ended", job_id=job.id, job_type=job.job_type, status=status)
