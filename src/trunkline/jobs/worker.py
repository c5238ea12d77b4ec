"""Claims due jobs for the crew: at a poke, when a timer says so, after a look at everything once a second.

Nothing depends on being poked. A lost poke costs until the next survey, a second; after a start the survey is the first
thing that happens. Surveys take at most a twentieth of the time, so that an outbox full of dead rows is not made worse.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from trunkline.crashpoint import crash_point
from trunkline.jobs.crew import Crew
from trunkline.jobs.held import Held, Hold
from trunkline.jobs.lanes import LaneBook
from trunkline.jobs.registry import Registry
from trunkline.loops.base import Loop
from trunkline.store import jobs
from trunkline.store.database import Database
from trunkline.store.jobs import Claimant, Claimed, Lane, Place, Return
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClaimLimits:
    batch_max: int = 500
    probe_s: float = 1.0
    # A survey is never put off for longer than this.
    poll_s: float = 30.0
    survey_share_max: float = 0.05


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
    ):
        super().__init__(limits.probe_s)
        self._database = database
        self._registry = registry
        self._hold = hold
        self._crew = crew
        self._claimant = claimant
        self._limits = limits
        self._now_s = now_s
        self._book = LaneBook()
        self._signal = asyncio.Event()
        self._survey_at_s = float("-inf")
        self._doubtful = False

    def wake(self, places: Mapping[Lane, datetime] | None = None) -> None:
        """There may be something in these lanes, or, if nobody knows where, anywhere."""
        if places is None:
            self._survey_at_s = float("-inf")
        else:
            known = set(self._registry.runnable)
            places = {lane: run_at for lane, run_at in places.items() if lane.job_type in known}
            if not places:
                return
            self._book.poked(places)
        self._signal.set()

    def room_again(self) -> None:
        if self._book.is_hot:
            self._signal.set()

    def stop(self) -> None:
        super().stop()
        self._signal.set()

    async def wait(self) -> None:
        next_s = min(self._survey_at_s, self._book.next_due_s)
        try:
            async with asyncio.timeout(max(0.0, next_s - self._now_s())):
                await self._signal.wait()
        except TimeoutError:
            pass

    async def run_once(self) -> int:
        """Claim until nothing is due or nothing more can be run; how many were claimed."""
        self._signal.clear()
        if self._doubtful:
            await self._give_back_unknown()
        surveyed = self._now_s() >= self._survey_at_s
        if surveyed:
            await self._survey()
        claimed = 0
        while not self.stopping:
            found = await self._claim(keyed=False) + await self._claim(keyed=True)
            claimed += found
            if not found:
                break
        if surveyed and claimed:
            metrics.JOBS_FOUND_BY_POLL.inc(claimed)
        return claimed

    async def _survey(self) -> None:
        started_s = self._now_s()
        async with self._database.connection() as conn:
            found = await jobs.survey(conn, self._registry.runnable)
        now_s = self._now_s()
        self._book.surveyed(found, now_s)
        wait_s = max(self._limits.probe_s, (now_s - started_s) / self._limits.survey_share_max)
        self._survey_at_s = now_s + min(self._limits.poll_s, wait_s)

    async def _claim(self, *, keyed: bool) -> int:
        lanes = self._book.hot(self._now_s(), keyed=keyed)
        limit = min(self._limits.batch_max, self._crew.room())
        if not lanes or limit <= 0 or self.stopping:
            return 0
        asked_s = self._now_s()
        claimed = await self._ask(lanes, limit, keyed=keyed)
        crash_point("jobs.after_claim")
        is_full = len(claimed) == limit
        if claimed:
            self._begin(claimed, asked_s, is_full=is_full)
        if not is_full:
            async with self._database.connection() as conn:
                coming = await jobs.next_due(conn, lanes, since_s=self._now_s() - asked_s)
            self._book.emptied(coming, asked_s, self._now_s())
        return len(claimed)

    async def _ask(self, lanes: Mapping[Lane, Place], limit: int, *, keyed: bool) -> list[Claimed]:
        self._doubtful = True  # until the answer is here, we may own jobs that we do not know of
        claimed = await (self._ask_keyed(lanes, limit) if keyed else self._ask_plain(lanes, limit))
        self._doubtful = False
        return claimed

    async def _ask_plain(self, lanes: Mapping[Lane, Place], limit: int) -> list[Claimed]:
        async with self._database.connection() as conn:
            return await jobs.claim(conn, lanes, limit, self._claimant)

    async def _ask_keyed(self, lanes: Mapping[Lane, Place], limit: int) -> list[Claimed]:
        async with self._database.connection() as conn:
            candidates = await jobs.keyed_candidates(conn, lanes, limit)
        if not candidates:
            return []
        async with self._database.transaction() as tx:
            return await jobs.claim_keyed(tx, candidates, self._claimant, self._registry.running_max)

    def _begin(self, claimed: list[Claimed], asked_s: float, *, is_full: bool) -> None:
        claimed.sort(key=lambda job: (job.priority, job.run_at, job.id))
        self._book.claimed(claimed)
        self._crew.take([Held(job, asked_s, self._claimant.lease_s) for job in claimed], was_full=is_full)
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
            self._survey_at_s = float("-inf")


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
