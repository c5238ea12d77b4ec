"""Renews the leases of claimed jobs, stops jobs that run too long or were cancelled, and writes their progress.

A lease that cannot be renewed ends by this process's own clock, counted from before the request, no later than in
Postgres: a job that may belong to another worker is stopped. A locked row is not lost, whether a handler that finished
its job early in an open transaction or an application holds the lock: no other worker can claim it meanwhile.
"""

from trunkline.jobs.executor import GIVE_BACK_AGE_S, Executor
from trunkline.jobs.run import ClaimedJob, ClaimedJobs, StopReason
from trunkline.loops.base import Loop
from trunkline.store import jobs
from trunkline.store.database import Database
from trunkline.telemetry import get_logger

log = get_logger(__name__)


class LeaseRenewer(Loop):
    name = "job_leases"

    def __init__(self, database: Database, claimed_jobs: ClaimedJobs, executor: Executor, renew_s: float):
        super().__init__(interval_s=min(1.0, renew_s / 2))
        self._database = database
        self._claimed_jobs = claimed_jobs
        self._executor = executor
        self._renew_s = renew_s
        # How much longer the lease of a locked row counts: two more renewals.
        self._locked_grace_s = 3 * self.interval_s

    async def run_once(self) -> int:
        """Returns how many leases were renewed."""
        now_s = self._claimed_jobs.now_s()
        self._stop_overdue(now_s)
        self._executor.give_back(older_than_s=GIVE_BACK_AGE_S)
        due = [held for held in self._claimed_jobs if now_s - held.renewed_s >= self._renew_s]
        renewed = await self.renew(due)
        await self._report()
        return renewed

    async def check_cancelled(self) -> None:
        """A job was cancelled: the reply to a renewal says whether this worker has it."""
        await self.renew([held for held in self._claimed_jobs if held.task is not None])

    async def renew_all(self) -> int:
        return await self.renew(list(self._claimed_jobs))

    async def renew(self, due: list[ClaimedJob]) -> int:
        if not due:
            return 0
        requested_s, claimant = self._claimed_jobs.now_s(), self._claimed_jobs.claimant
        async with self._database.connection() as conn:
            renewals = await jobs.renew(conn, {h.job.id: h.job.fence for h in due}, claimant)
        for held in due:
            renewal = renewals.get(held.job.id)
            if renewal is None:
                self._lost(held)
                continue
            if renewal.is_renewed:
                held.renewed_s, held.lease_until_s = requested_s, requested_s + claimant.lease_s
            else:
                # Renewed at the next run: while its row is locked no other worker can claim it.
                held.lease_until_s = max(held.lease_until_s, requested_s + self._locked_grace_s)
            if renewal.is_to_cancel:
                held.stop(StopReason.CANCELLED)
        return len(renewals)

    def _stop_overdue(self, now_s: float) -> None:
        for held in self._executor.running:
            if held.stop_reason is not None:
                if held.stop_seen_s is None:
                    held.stop_seen_s = now_s
                elif now_s - held.stop_seen_s >= self._executor.cancel_grace_s:
                    self._executor.abandon(held)
            elif held.lease_until_s <= now_s:
                held.stop(StopReason.LEASE_LOST)
            elif now_s - held.started_s > self._executor.registry.policy(held.job.job_type).timeout_s:
                held.stop(StopReason.TIMEOUT)

    def _lost(self, held: ClaimedJob) -> None:
        if held.task is not None:
            job = held.job
            log.warning("jobs.lease_lost", job_id=job.id, job_type=job.job_type, fence=job.fence)
            held.stop(StopReason.LEASE_LOST)
        else:
            # It had not begun, and will not. Or it ended meanwhile, and its row is gone with the verdict.
            self._claimed_jobs.drop(held)

    async def _report(self) -> None:
        unreported = [held for held in self._claimed_jobs if not held.is_reported]
        if not unreported:
            return
        for held in unreported:
            held.is_reported = True
        reports = [(h.job.id, h.job.fence, h.fraction or 0.0, h.note) for h in unreported]
        async with self._database.connection() as conn:
            await jobs.write_progress(conn, reports)
