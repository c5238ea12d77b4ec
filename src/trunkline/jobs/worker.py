"""Claims due jobs for the executor: at a wakeup, at a timer, and what a poll has found.

Nothing depends on a wakeup: a lost one costs until the next poll, a second. The first poll is made at the start.
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

# Keys that are stepped over in one look. Somebody who holds more of them at once holds up what is behind.
BUSY_KEYS_MAX = 1000


@dataclass(frozen=True, slots=True)
class ClaimLimits:
    batch_max: int = 500
    # A claim takes milliseconds, and sometimes a slow commit more: begun so early, it is over when the job is due.
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
        on_doubt: Callable[[], None],
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
        # Something may be anywhere: somebody has to look at everything.
        self._on_doubt = on_doubt
        self._signal = asyncio.Event()
        self._surveyed = False
        self._doubtful = False

    def wake(self, places: Mapping[Lane, datetime] | None = None) -> None:
        """There may be something in these lanes, or, if nobody knows where, anywhere."""
        if places is None:
            self._on_doubt()
            return
        known = set(self._registry.runnable)
        places = {lane: run_at for lane, run_at in places.items() if lane.job_type in known}
        if places:
            self._book.woken(places)
            self._signal.set()

    def surveyed(self, found: Sequence[Survey], now_s: float) -> None:
        """A look at everything has found these."""
        self._book.surveyed(found, now_s)
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
        """Claim until nothing is due or nothing more can be run; how many were claimed."""
        self._signal.clear()
        if self._doubtful:
            await self._give_back_unknown()
        surveyed, self._surveyed = self._surveyed, False
        claimed = 0
        while not self.stopping:
            found = await self._claim(keyed=False) + await self._claim(keyed=True)
            claimed += found
            if not found:
                break
        if surveyed and claimed:
            metrics.JOBS_FOUND_BY_POLL.inc(claimed)
        return claimed

    async def _claim(self, *, keyed: bool) -> int:
        lanes = self._book.hot(self._now_s(), keyed=keyed)
        limit = min(self._limits.batch_max, self._executor.room())
        if not lanes or limit <= 0 or self.stopping:
            return 0
        asked_s = self._now_s()
        ahead_s = 0.0 if keyed or not self._server_clock.is_known else self._limits.ahead_s
        look, was_all = await self._ask(lanes, limit, ahead_s, keyed=keyed)
        crash_point("jobs.after_claim")
        if look.claimed:
            looked_at = look.at - timedelta(seconds=ahead_s)
            self._begin(look.claimed, lanes, asked_s, looked_at, is_full=not was_all)
        if was_all and look.is_whole:
            await self._look_forward(lanes, look.at)
        elif not look.is_whole:
            self._book.busy(lanes, self._now_s())
        return len(look.claimed)

    async def _look_forward(self, lanes: Mapping[Lane, LanePosition], looked_at: datetime) -> None:
        """Nothing was left: when is there something again?"""
        async with self._database.connection() as conn:
            coming = await jobs.next_due(conn, lanes, looked_at)
        now_s = self._now_s()
        for next_due in coming:
            self._server_clock.note(next_due.seen_at, now_s)
        self._book.emptied(coming, looked_at, now_s)

    async def _ask(
        self, lanes: Mapping[Lane, LanePosition], limit: int, ahead_s: float, *, keyed: bool
    ) -> tuple[ClaimResult, bool]:
        """What was claimed, and whether that was all there is."""
        self._doubtful = True  # until the answer is here, we may own jobs that we do not know of
        if keyed:
            answer = await self._ask_keyed(lanes, limit)
        else:
            answer = await self._ask_plain(lanes, limit, ahead_s)
        self._doubtful = False
        return answer

    async def _ask_plain(
        self, lanes: Mapping[Lane, LanePosition], limit: int, ahead_s: float
    ) -> tuple[ClaimResult, bool]:
        async with self._database.connection() as conn:
            look = await jobs.claim(conn, lanes, limit, self._claimant, ahead_s=ahead_s)
        return look, len(look.claimed) < limit

    async def _ask_keyed(self, lanes: Mapping[Lane, LanePosition], limit: int) -> tuple[ClaimResult, bool]:
        """Keys that somebody holds are passed over, and so is all that waits under them: others are behind it."""
        found: list[JobClaim] = []
        busy: set[Key] = set()
        while True:
            async with self._database.connection() as conn:
                looked_at, candidates = await jobs.keyed_candidates(conn, lanes, limit - len(found), busy)
            if not candidates:
                return ClaimResult(looked_at, found, is_whole=not busy), True
            async with self._database.transaction() as tx:
                claimed, now_busy = await jobs.claim_keyed(
                    tx, candidates, self._claimant, self._registry.running_max
                )
            found += claimed
            was_all = len(candidates) < limit - len(found) + len(claimed)
            busy |= now_busy
            if not now_busy or was_all or len(found) >= limit or len(busy) > BUSY_KEYS_MAX:
                return ClaimResult(looked_at, found, is_whole=not busy), was_all

    def _begin(
        self,
        claimed: list[JobClaim],
        lanes: Iterable[Lane],
        asked_s: float,
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
        batch = [ClaimedJob(job, asked_s, self._claimant.lease_s) for job in claimed]
        for held in batch:
            # What was due when Postgres looked need not be reckoned: it may begin. For the others the look itself is a
            # bound, whatever was thought of the server's clock before: it may have been set since.
            if (early := held.job.run_at - looked_at) > timedelta(0):
                latest_s = now_s + early.total_seconds()
                held.begin_s = min(self._server_clock.ours_s(held.job.run_at), latest_s)
        self._executor.take(batch, was_full=is_full)
        # The jobs begin first; telling of them takes its turn after.
        asyncio.get_running_loop().call_soon(_record, claimed, self._claimant.worker)

    async def _give_back_unknown(self) -> None:
        """The reply to a claim was lost. What it claimed was not begun, so it need not wait for its lease to end."""
        async with self._database.transaction() as tx:
            unknown = await jobs.lock_unknown(tx, self._claimant.worker, self._claimed_jobs.ids)
            # One with a unique key could have to wait for an open transaction. It waits for its lease to end instead.
            returns = [
                ReturnedClaim(found.id, found.fence, None, counted=False)
                for found in unknown
                if not found.unique_key
            ]
            if returns:
                await write(tx, returns, self._claimant.worker, self._registry.running_max)
        self._doubtful = False
        if unknown:
            log.warning("jobs.claim_undone", count=len(returns), left=len(unknown) - len(returns))
            self._on_doubt()


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
