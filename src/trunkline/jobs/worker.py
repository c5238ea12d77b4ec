"""Claims due jobs for the executor: at a wakeup, at a timer, and after a poll.

Nothing depends on a wakeup: a lost one costs until the next poll, one second. The first poll is at the start.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from trunkline.crashpoint import crash_point
from trunkline.jobs.claimed_jobs import ClaimedJob, ClaimedJobs
from trunkline.jobs.executor import Executor
from trunkline.jobs.finisher import write
from trunkline.jobs.lanes import LaneBook, lane_of
from trunkline.jobs.registry import Registry
from trunkline.jobs.server_clock import ServerClock
from trunkline.loops.base import Loop
from trunkline.store import jobs
from trunkline.store.database import Database
from trunkline.store.jobs import (
    Claimant,
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
        registry: Registry,
        claimed_jobs: ClaimedJobs,
        executor: Executor,
        claimant: Claimant,
        limits: ClaimLimits,
        *,
        now_s: Callable[[], float],
        poll_now: Callable[[], None],
    ):
        super().__init__(interval_s=0.0)
        self._database = database
        self._registry = registry
        self._claimed_jobs = claimed_jobs
        self._executor = executor
        self._claimant = claimant
        self._limits = limits
        self._now_s = now_s
        self._book = LaneBook(limits.ahead_s)
        self._server_clock = ServerClock()
        self._poll_now = poll_now
        self._signal = asyncio.Event()
        self._surveyed = False
        self._has_unknown_claims = False

    def wake(self, places: Mapping[Lane, datetime] | None = None) -> None:
        """There may be due jobs in these lanes; None: in any lane."""
        if places is None:
            self._poll_now()
            return
        known = set(self._registry.runnable)
        places = {lane: run_at for lane, run_at in places.items() if lane.job_type in known}
        if places:
            self._book.woken(places)
            self._signal.set()

    def surveyed(self, surveys: Sequence[Survey], now_s: float) -> None:
        """The poller found these."""
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
        try:
            async with asyncio.timeout(max(0.0, next_s - self._now_s()) if next_s < float("inf") else None):
                await self._signal.wait()
        except TimeoutError:
            pass

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
        result, was_all = await self._request_claim(lanes, limit, ahead_s, keyed=keyed)
        crash_point("jobs.after_claim")
        if result.claimed:
            looked_at = result.at - timedelta(seconds=ahead_s)
            self._begin(result.claimed, lanes, requested_s, looked_at, is_full=not was_all)
        if was_all and result.is_whole:
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

    async def _request_claim(
        self, lanes: Mapping[Lane, LanePosition], limit: int, ahead_s: float, *, keyed: bool
    ) -> tuple[ClaimResult, bool]:
        """The claimed jobs, and whether no more were due."""
        # Until the reply is here, this worker may own jobs that it has no record of.
        self._has_unknown_claims = True
        if keyed:
            answer = await self._claim_keyed(lanes, limit)
        else:
            answer = await self._claim_plain(lanes, limit, ahead_s)
        self._has_unknown_claims = False
        return answer

    async def _claim_plain(
        self, lanes: Mapping[Lane, LanePosition], limit: int, ahead_s: float
    ) -> tuple[ClaimResult, bool]:
        async with self._database.connection() as conn:
            result = await jobs.claim(conn, lanes, limit, self._claimant, ahead_s=ahead_s)
        return result, len(result.claimed) < limit

    async def _claim_keyed(self, lanes: Mapping[Lane, LanePosition], limit: int) -> tuple[ClaimResult, bool]:
        """Skips locked keys with all jobs that wait under them, and claims those behind."""
        claims: list[JobClaim] = []
        busy: set[Key] = set()
        while True:
            async with self._database.connection() as conn:
                looked_at, candidates = await jobs.keyed_candidates(conn, lanes, limit - len(claims), busy)
            if not candidates:
                return ClaimResult(looked_at, claims, is_whole=not busy), True
            async with self._database.transaction() as tx:
                claimed, now_busy = await jobs.claim_keyed(
                    tx, candidates, self._claimant, self._registry.running_max
                )
            claims += claimed
            was_all = len(candidates) < limit - len(claims) + len(claimed)
            busy |= now_busy
            if not now_busy or was_all or len(claims) >= limit or len(busy) > BUSY_KEYS_MAX:
                return ClaimResult(looked_at, claims, is_whole=not busy), was_all

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
        batch = [ClaimedJob(job, requested_s, self._claimant.lease_s) for job in claimed]
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
                ReturnedClaim(job.id, job.fence, None, counted=False) for job in unknown if not job.unique_key
            ]
            if returns:
                await write(tx, returns, self._claimant.worker, self._registry.running_max)
        self._has_unknown_claims = False
        if unknown:
            log.warning("jobs.claim_undone", count=len(returns), left=len(unknown) - len(returns))
            self._poll_now()


def _record(claimed: list[JobClaim], worker: str) -> None:
    bound = log.bind()
    counts: dict[str, int] = {}
    for job in claimed:
        counts[job.job_type] = counts.get(job.job_type, 0) + 1
        bound.info(
            "job_claimed",
            job_id=job.id,
            job_type=job.job_type,
            item_id=job.unique_key,
            attempt=job.attempt,
            worker_id=worker,
        )
    for job_type, count in counts.items():
        metrics.JOBS_CLAIMED.labels(job_type, worker).inc(count)
