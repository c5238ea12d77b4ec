"""Claims due jobs for the crew: at a poke, when a timer says so, and what a survey has found.

Nothing depends on being poked. A lost poke costs until the next survey, a second; the first one is made at the start.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from trunkline.crashpoint import crash_point
from trunkline.jobs.crew import Crew
from trunkline.jobs.held import Held, Hold
from trunkline.jobs.lanes import LaneBook
from trunkline.jobs.registry import Registry
from trunkline.jobs.server_clock import ServerClock
from trunkline.loops.base import Loop
from trunkline.store import jobs
from trunkline.store.database import Database
from trunkline.store.jobs import Claimant, Claimed, Lane, Look, Place, Return, Survey
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)


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
        hold: Hold,
        crew: Crew,
        claimant: Claimant,
        limits: ClaimLimits,
        *,
        now_s: Callable[[], float],
        on_doubt: Callable[[], None],
    ):
        super().__init__(interval_s=0.0)
        self._database = database
        self._registry = registry
        self._hold = hold
        self._crew = crew
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
            self._book.poked(places)
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
        limit = min(self._limits.batch_max, self._crew.room())
        if not lanes or limit <= 0 or self.stopping:
            return 0
        asked_s = self._now_s()
        ahead_s = 0.0 if keyed or not self._server_clock.is_known else self._limits.ahead_s
        look, was_all = await self._ask(lanes, limit, ahead_s, keyed=keyed)
        crash_point("jobs.after_claim")
        if look.claimed:
            looked_at = look.at - timedelta(seconds=ahead_s)
            self._begin(look.claimed, asked_s, looked_at, is_full=not was_all)
        if was_all and look.is_whole:
            await self._look_forward(lanes, look.at)
        elif not look.is_whole:
            self._book.busy(lanes, self._now_s())
        return len(look.claimed)

    async def _look_forward(self, lanes: Mapping[Lane, Place], looked_at: datetime) -> None:
        """Nothing was left: when is there something again?"""
        async with self._database.connection() as conn:
            coming = await jobs.next_due(conn, lanes, looked_at)
        now_s = self._now_s()
        for next_due in coming:
            self._server_clock.note(next_due.seen_at, now_s)
        self._book.emptied(coming, looked_at, now_s)

    async def _ask(
        self, lanes: Mapping[Lane, Place], limit: int, ahead_s: float, *, keyed: bool
    ) -> tuple[Look, bool]:
        """What was claimed, and whether that was all there is."""
        self._doubtful = True  # until the answer is here, we may own jobs that we do not know of
        if keyed:
            answer = await self._ask_keyed(lanes, limit)
        else:
            answer = await self._ask_plain(lanes, limit, ahead_s)
        self._doubtful = False
        return answer

    async def _ask_plain(self, lanes: Mapping[Lane, Place], limit: int, ahead_s: float) -> tuple[Look, bool]:
        async with self._database.connection() as conn:
            look = await jobs.claim(conn, lanes, limit, self._claimant, ahead_s=ahead_s)
        return look, len(look.claimed) < limit

    async def _ask_keyed(self, lanes: Mapping[Lane, Place], limit: int) -> tuple[Look, bool]:
        async with self._database.connection() as conn:
            looked_at, candidates = await jobs.keyed_candidates(conn, lanes, limit)
        if not candidates:
            return Look(looked_at, []), True
        async with self._database.transaction() as tx:
            claimed, is_whole = await jobs.claim_keyed(
                tx, candidates, self._claimant, self._registry.running_max
            )
        return Look(looked_at, claimed, is_whole), len(candidates) < limit

    def _begin(self, claimed: list[Claimed], asked_s: float, looked_at: datetime, *, is_full: bool) -> None:
        claimed.sort(key=lambda job: (job.priority, job.run_at, job.id))
        self._book.claimed(claimed)
        batch = [Held(job, asked_s, self._claimant.lease_s) for job in claimed]
        for held in batch:
            # What was due when Postgres looked need not be reckoned: it may begin.
            if held.job.run_at > looked_at:
                held.begin_s = self._server_clock.ours_s(held.job.run_at)
        self._crew.take(batch, was_full=is_full)
        # The jobs begin first; telling of them takes its turn after.
        asyncio.get_running_loop().call_soon(_record, claimed, self._claimant.worker)

    async def _give_back_unknown(self) -> None:
        """The reply to a claim was lost. What it claimed was not begun, so it need not wait for its lease to end."""
        async with self._database.transaction() as tx:
            unknown = await jobs.lock_unknown(tx, self._claimant.worker, self._hold.ids)
            returns = [Return(job_id, fence, None, counted=False) for job_id, fence in unknown.items()]
            if returns:
                await jobs.put_back(tx, returns, self._claimant.worker)
        self._doubtful = False
        if returns:
            log.warning("job_claim_undone", count=len(returns))
            self._on_doubt()


def _record(claimed: list[Claimed], worker: str) -> None:
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
