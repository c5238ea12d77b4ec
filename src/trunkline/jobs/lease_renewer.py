"""Keeps the leases of held jobs, stops what runs too long or is no longer wanted, and writes progress down.

A lease that cannot be renewed ends here, on this process's own clock counted from before it was asked for, no later
than in Postgres: what we cannot be sure to own we stop running. A row that is locked is not lost, whoever holds it: a
handler that finishes its job early, in a transaction that it keeps open, or an application. Nobody can claim it or take
it away meanwhile.
"""

from collections.abc import Callable

from trunkline.jobs.claimed_jobs import ClaimedJob, ClaimedJobs, StopReason
from trunkline.jobs.executor import GIVE_BACK_AGE_S, Executor
from trunkline.jobs.registry import Registry
from trunkline.loops.base import Loop
from trunkline.store import job_progress, jobs
from trunkline.store.database import Database
from trunkline.store.jobs import Claimant
from trunkline.telemetry import get_logger

log = get_logger(__name__)


class LeaseRenewer(Loop):
    name = "job_leases"

    def __init__(
        self,
        database: Database,
        registry: Registry,
        claimed_jobs: ClaimedJobs,
        executor: Executor,
        claimant: Claimant,
        *,
        renew_s: float,
        now_s: Callable[[], float],
        cancel_grace_s: float = 5.0,
        interval_s: float = 1.0,
    ):
        super().__init__(interval_s)
        self._database = database
        self._registry = registry
        self._claimed_jobs = claimed_jobs
        self._executor = executor
        self._claimant = claimant
        self._renew_s = renew_s
        # How long a handler may still take that was told to stop.
        self._cancel_grace_s = cancel_grace_s
        # Until the next look at a row that is locked, and one that fails.
        self._locked_grace_s = 3 * interval_s
        self._now_s = now_s

    async def run_once(self) -> int:
        """How many leases were renewed."""
        now_s = self._now_s()
        self._stop_overdue(now_s)
        self._executor.give_back(older_than_s=GIVE_BACK_AGE_S)
        due = [held for held in self._claimed_jobs if now_s - held.renewed_s >= self._renew_s]
        renewed = await self.renew(due)
        await self._report()
        return renewed

    async def check_cancelled(self) -> None:
        """Somebody cancelled a job: the answer to a renewal says whether it is one of ours."""
        await self.renew([held for held in self._claimed_jobs if held.task is not None])

    async def renew_all(self) -> int:
        return await self.renew(list(self._claimed_jobs))

    async def renew(self, due: list[ClaimedJob]) -> int:
        if not due:
            return 0
        asked_s = self._now_s()
        async with self._database.connection() as conn:
            kept = await jobs.renew(conn, {h.job.id: h.job.fence for h in due}, self._claimant)
        for held in due:
            renewal = kept.get(held.job.id)
            if renewal is None:
                self._lost(held)
                continue
            if renewal.is_renewed:
                held.renewed_s, held.lease_until_s = asked_s, asked_s + self._claimant.lease_s
            else:
                # Asked about again at the next look: while somebody has it locked nobody can take it from us.
                held.lease_until_s = max(held.lease_until_s, asked_s + self._locked_grace_s)
            if renewal.is_to_cancel:
                held.stop(StopReason.CANCELLED)
        return len(kept)

    def _stop_overdue(self, now_s: float) -> None:
        for held in self._executor.running:
            if held.stop_reason is not None:
                self._abandon_if_it_goes_on(held, now_s)
            elif held.lease_until_s <= now_s:
                held.stop(StopReason.LEASE_LOST)
            elif now_s - held.started_s > self._registry.policy(held.job.job_type).timeout_s:
                held.stop(StopReason.TIMEOUT)

    def _abandon_if_it_goes_on(self, held: ClaimedJob, now_s: float) -> None:
        if held.stop_seen_s is None:
            held.stop_seen_s = now_s
        elif now_s - held.stop_seen_s >= self._cancel_grace_s:
            self._executor.abandon(held)

    def _lost(self, held: ClaimedJob) -> None:
        if held.task is not None:
            log.warning(
                "jobs.lease_lost", job_id=held.job.id, job_type=held.job.job_type, fence=held.job.fence
            )
            held.stop(StopReason.LEASE_LOST)
        else:
            # Not begun: it will not be. Or ended meanwhile, and its row is gone because that was written.
            self._claimed_jobs.drop(held)

    async def _report(self) -> None:
        unreported = [held for held in self._claimed_jobs if not held.reported]
        if not unreported:
            return
        for held in unreported:
            held.reported = True
        async with self._database.connection() as conn:
            await job_progress.write(
                conn, [(h.job.id, h.job.fence, h.fraction or 0.0, h.note) for h in unreported]
            )
