"""Keeps the leases of held jobs, stops what runs too long or is no longer wanted, and writes progress down.

A lease that cannot be renewed ends here, on this process's own clock counted from before it was asked for, no later
than in Postgres: what we cannot be sure to own we stop running.
"""

from collections.abc import Callable

from trunkline.jobs.crew import GIVE_BACK_AGE_S, Crew
from trunkline.jobs.held import Held, Hold, Stop
from trunkline.jobs.registry import Registry
from trunkline.loops.base import Loop
from trunkline.store import job_progress, jobs
from trunkline.store.database import Database
from trunkline.store.jobs import Claimant
from trunkline.telemetry import get_logger

log = get_logger(__name__)


class LeaseKeeper(Loop):
    name = "job_leases"

    def __init__(
        self,
        database: Database,
        registry: Registry,
        hold: Hold,
        crew: Crew,
        claimant: Claimant,
        *,
        renew_s: float,
        now_s: Callable[[], float],
        interval_s: float = 1.0,
    ):
        super().__init__(interval_s)
        self._database = database
        self._registry = registry
        self._hold = hold
        self._crew = crew
        self._claimant = claimant
        self._renew_s = renew_s
        self._now_s = now_s

    async def run_once(self) -> int:
        """How many leases were renewed."""
        now_s = self._now_s()
        self._stop_overdue(now_s)
        self._crew.give_back(older_than_s=GIVE_BACK_AGE_S)
        due = [held for held in self._hold if now_s - held.renewed_s >= self._renew_s]
        renewed = await self.renew(due)
        await self._report()
        return renewed

    async def check_cancelled(self) -> None:
        """Somebody cancelled a job: the answer to a renewal says whether it is one of ours."""
        await self.renew([held for held in self._hold if held.task is not None])

    async def renew(self, due: list[Held]) -> int:
        if not due:
            return 0
        asked_s = self._now_s()
        async with self._database.connection() as conn:
            kept = await jobs.renew(conn, {h.job.id: h.job.fence for h in due}, self._claimant)
        for held in due:
            if held.job.id not in kept:
                self._lost(held)
            else:
                held.renewed_s, held.lease_until_s = asked_s, asked_s + self._claimant.lease_s
                if kept[held.job.id]:
                    held.stop(Stop.CANCELLED)
        return len(kept)

    def _stop_overdue(self, now_s: float) -> None:
        for held in self._hold:
            if held.task is None:
                continue
            if held.lease_until_s <= now_s:
                held.stop(Stop.LEASE_LOST)
            elif now_s - held.started_s > self._registry.policy(held.job.job_type).timeout_s:
                held.stop(Stop.TIMEOUT)

    def _lost(self, held: Held) -> None:
        if held.task is not None:
            log.warning(
                "job_lease_lost", job_id=held.job.id, job_type=held.job.job_type, fence=held.job.fence
            )
            held.stop(Stop.LEASE_LOST)
        else:
            # Not begun: it will not be. Or ended meanwhile, and its row is gone because that was written.
            self._hold.drop(held)

    async def _report(self) -> None:
        unreported = [held for held in self._hold if not held.reported]
        if not unreported:
            return
        for held in unreported:
            held.reported = True
        async with self._database.connection() as conn:
            await job_progress.write(
                conn, [(h.job.id, h.job.fence, h.fraction or 0.0, h.note) for h in unreported]
            )
