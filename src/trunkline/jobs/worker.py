"""Finds and claims due jobs for the executor: at a wakeup, at a timer, and after a poll.

Nothing depends on a wakeup: the poller scans all lanes once a second, and at the start. It runs beside the claims and
never blocks them: an outbox full of dead rows makes a poll slow, while the worker claims what wakeups name. Polls take
at most 5 % of the time, so that they do not load such an outbox further; a poll that was slow because the machine was
does not count.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf

from trunkline.crashpoint import crash_point
from trunkline.event_loop import ends_within
from trunkline.jobs.executor import Executor
from trunkline.jobs.finisher import write
from trunkline.jobs.lanes import LaneBook, lane_of
from trunkline.jobs.run import ClaimedJob, ClaimedJobs
from trunkline.loops.base import Loop
from trunkline.queues.server_clock import ServerClock
from trunkline.store import jobs
from trunkline.store.database import Database
from trunkline.store.jobs import (
    ClaimResult,
    JobClaim,
    Key,
    Lane,
    LanePosition,
    ReturnedClaim,
    Survey,
)
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

# Locked keys that one claim skips. Beyond this many at once, jobs behind them have to wait.
BUSY_KEYS_MAX = 1000
# Polls whose cheapest counts: all of them are expensive only if the outbox makes them so.
SAMPLES = 3


@dataclass(frozen=True, slots=True)
class PollLimits:
    probe_s: float = 1.0
    # The longest interval between two polls.
    poll_s: float = 30.0
    share_max: float = 0.05


@dataclass(frozen=True, slots=True)
class ClaimLimits:
    batch_max: int = 500
    # A claim takes milliseconds, more with a slow commit: begun this early, it is done when the job is due.
    ahead_s: float = 0.025


class JobWorker(Loop):
    name = "job_worker"

    def __init__(
        self,
        database: Database,
        claimed_jobs: ClaimedJobs,
        executor: Executor,
        limits: ClaimLimits,
        poll_limits: PollLimits,
    ):
        super().__init__(interval_s=0.0)
        self._database = database
        self._claimed_jobs = claimed_jobs
        self._claimant = claimed_jobs.claimant
        self._now_s = claimed_jobs.now_s
        self._executor = executor
        self._job_types = executor.registry.runnable
        self._running_max = executor.registry.running_max
        self._limits = limits
        self.poller = Poller(database, self._job_types, poll_limits, self._now_s, self._found)
        self._book = LaneBook(limits.ahead_s)
        self._server_clock = ServerClock()
        self._signal = asyncio.Event()
        self._surveyed = False
        self._has_unknown_claims = False

    def wake(self, places: Mapping[Lane, datetime] | None = None) -> None:
        """There may be due jobs in these lanes; None: in any lane."""
        if places is None:
            self.poller.poll_now()
            return
        places = {lane: run_at for lane, run_at in places.items() if lane.job_type in self._job_types}
        if places:
            self._book.woken(places)
            self._signal.set()

    def _found(self, surveys: Sequence[Survey], now_s: float) -> None:
        self._book.surveyed(surveys, now_s)
        self._surveyed = True
        self._signal.set()

    def room_again(self) -> None:
        if self._book.is_hot:
            self._signal.set()

    def stop(self) -> None:
        super().stop()
        self._signal.set()

    async def wait(self) -> None:
        next_s = self._book.next_due_s
        wait_s = max(0.0, next_s - self._now_s()) if next_s < inf else None
        await ends_within(wait_s, self._signal.wait())

    async def run_once(self) -> int:
        """Claim until no job is due or the executor is full. Returns how many were claimed."""
        self._signal.clear()
        if self._has_unknown_claims:
            await self._give_back_unknown()
        surveyed, self._surveyed = self._surveyed, False
        claimed = 0
        while not self.stopping:
            count = await self._claim(keyed=False) + await self._claim(keyed=True)
            claimed += count
            if not count:
                break
        if surveyed and claimed:
            metrics.JOBS_FOUND_BY_POLL.inc(claimed)
        return claimed

    async def _claim(self, *, keyed: bool) -> int:
        lanes = self._book.hot(self._now_s(), keyed=keyed)
        limit = min(self._limits.batch_max, self._executor.room())
        if not lanes or limit <= 0 or self.stopping:
            return 0
        requested_s = self._now_s()
        ahead_s = 0.0 if keyed or not self._server_clock.is_known else self._limits.ahead_s
        # Until the reply is here, this worker may own jobs that it has no record of.
        self._has_unknown_claims = True
        if keyed:
            result = await self._claim_keyed(lanes, limit)
        else:
            async with self._database.connection() as conn:
                result = await jobs.claim(conn, lanes, limit, self._claimant, ahead_s=ahead_s)
        self._has_unknown_claims = False
        crash_point("jobs.after_claim")
        if result.claimed:
            looked_at = result.at - timedelta(seconds=ahead_s)
            self._begin(result.claimed, lanes, requested_s, looked_at, is_full=not result.was_all)
        if result.was_all and result.is_whole:
            await self._read_next_due(lanes, result.at)
        elif not result.is_whole:
            self._book.busy(lanes, self._now_s())
        return len(result.claimed)

    async def _read_next_due(self, lanes: Mapping[Lane, LanePosition], looked_at: datetime) -> None:
        """The lanes are empty: when is their next job due?"""
        async with self._database.connection() as conn:
            coming = await jobs.next_due(conn, lanes, looked_at)
        now_s = self._now_s()
        for next_due in coming:
            self._server_clock.note(next_due.seen_at, now_s)
        self._book.emptied(coming, looked_at, now_s)

    async def _claim_keyed(self, lanes: Mapping[Lane, LanePosition], limit: int) -> ClaimResult:
        """Skips locked keys with all jobs that wait under them, and claims those behind."""
        claims: list[JobClaim] = []
        busy: set[Key] = set()
        while True:
            async with self._database.connection() as conn:
                looked_at, candidates = await jobs.keyed_candidates(conn, lanes, limit - len(claims), busy)
            if not candidates:
                return ClaimResult(looked_at, claims, was_all=True, is_whole=not busy)
            async with self._database.transaction() as tx:
                claimed, now_busy = await jobs.claim_keyed(tx, candidates, self._claimant, self._running_max)
            claims += claimed
            was_all = len(candidates) < limit - len(claims) + len(claimed)
            busy |= now_busy
            if not now_busy or was_all or len(claims) >= limit or len(busy) > BUSY_KEYS_MAX:
                return ClaimResult(looked_at, claims, was_all, is_whole=not busy)

    def _begin(
        self,
        claimed: list[JobClaim],
        lanes: Iterable[Lane],
        requested_s: float,
        looked_at: datetime,
        *,
        is_full: bool,
    ) -> None:
        turn = {lane: place for place, lane in enumerate(lanes)}
        if len(turn) > 1:
            claimed.sort(key=lambda job: (turn[lane_of(job)], job.run_at, job.id))
        else:
            claimed.sort(key=lambda job: (job.run_at, job.id))
        self._book.claimed(claimed)
        now_s = self._now_s()
        lease_until_s = requested_s + self._claimant.lease_s
        batch = [ClaimedJob(job, requested_s, lease_until_s) for job in claimed]
        for held in batch:
            # A job that was due at the time of the claim may begin. For the others that time is a bound, whatever the
            # offset of the server's clock was before: the clock may have been set since.
            if (early := held.job.run_at - looked_at) > timedelta(0):
                latest_s = now_s + early.total_seconds()
                held.begin_s = min(self._server_clock.local_s(held.job.run_at), latest_s)
        self._executor.take(batch, was_full=is_full)
        # The jobs begin first; their log lines come after.
        asyncio.get_running_loop().call_soon(_record, claimed, self._claimant.worker)

    async def _give_back_unknown(self) -> None:
        """The reply to a claim was lost. Its jobs did not begin, so they need not wait for their leases to end."""
        async with self._database.transaction() as tx:
            unknown = await jobs.lock_unknown(tx, self._claimant.worker, self._claimed_jobs.ids)
            # A job with a unique key could meet an open transaction, so it waits for its lease to end instead.
            returns = [
                ReturnedClaim(job_id, fence, counted=False)
                for job_id, fence, unique_key in unknown
                if not unique_key
            ]
            if returns:
                await write(tx, returns, self._claimant.worker, self._running_max)
        self._has_unknown_claims = False
        if unknown:
            log.warning("jobs.claim_undone", count=len(returns), left=len(unknown) - len(returns))
            self.poller.poll_now()


class Poller(Loop):
    """Finds the first waiting job of every lane."""

    name = "job_survey"

    def __init__(
        self,
        database: Database,
        job_types: Sequence[str],
        limits: PollLimits,
        now_s: Callable[[], float],
        on_found: Callable[[Sequence[Survey], float], None],
    ):
        super().__init__(limits.probe_s)
        self._database = database
        self._job_types = job_types
        self._limits = limits
        self._now_s = now_s
        self._on_found = on_found
        self._costs_s: deque[float] = deque(maxlen=SAMPLES)
        self._wanted = asyncio.Event()

    def poll_now(self) -> None:
        """There may be a due job in any lane."""
        self._wanted.set()

    async def run_once(self) -> int:
        """Returns how many lanes have a waiting job."""
        self._wanted.clear()
        started_s = self._now_s()
        async with self._database.connection() as conn:
            surveys = await jobs.survey(conn, self._job_types)
        now_s = self._now_s()
        self._costs_s.append(now_s - started_s)
        self._on_found(surveys, now_s)
        return len(surveys)

    async def wait(self) -> None:
        await ends_within(wait_s(self._costs_s, self._limits), self._wanted.wait())


def wait_s(costs_s: Sequence[float], limits: PollLimits) -> float:
    """By the cheapest of the last polls."""
    cost_s = min(costs_s) if len(costs_s) == SAMPLES else 0.0
    return min(limits.poll_s, max(limits.probe_s, cost_s / limits.share_max))


def _record(claimed: list[JobClaim], worker: str) -> None:
    bound = log.bind()
    for job in claimed:
        bound.info(
            "job_claimed",
            job_id=job.id,
            job_type=job.job_type,
            item_id=job.unique_key,
            attempt=job.attempt,
            worker_id=worker,
        )
    for job_type, count in Counter(job.job_type for job in claimed).items():
        metrics.JOBS_CLAIMED.labels(job_type, worker).inc(count)
