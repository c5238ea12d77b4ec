"""Takes jobs from workers that are gone. A lost lease counts as a failed run: a retry by the table, or a dead letter.

Each worker runs a reaper; the first that finds a job locks it. A run scans from where the last one ended, because
finished jobs leave dead entries in this index too, and every 30 s it scans everything. It waits for no lock: a job that
an open transaction blocks is left for later, and the others are taken.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from uuid import UUID

from trunkline.crashpoint import crash_point
from trunkline.jobs import finisher
from trunkline.jobs.finisher import CONTENDED_LOCK_TIMEOUT_MS, PART_LOCK_TIMEOUT_MS, WrittenVerdicts, may_wait
from trunkline.jobs.outcomes import Failed, JobVerdict, failure
from trunkline.jobs.registry import Registry
from trunkline.jobs.wakeups import JobNotifier
from trunkline.loops.base import Loop
from trunkline.queues.server_clock import SETTLE_S, ClockJumps
from trunkline.store import job_upkeep, jobs
from trunkline.store.database import Connection, Database, limit_waiting, now
from trunkline.store.driver import CONTENTION
from trunkline.store.jobs import BEGINNING, Expired
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

BATCH_MAX = 500
# Jobs with unique keys that are returned in one transaction.
PAGE = 50
# How long one run returns such jobs before it ends.
CONTENDED_TURN_S = 0.5
# When a job that an open transaction blocks is tried again.
BLOCKED_RETRY_S = 2.0
FULL_SCAN_S = 30.0
# A lease always ends later than it was written; this covers a slow commit.
MARGIN = timedelta(seconds=60)


class Reaper(Loop):
    name = "job_reaper"

    def __init__(
        self,
        database: Database,
        registry: Registry,
        notifier: JobNotifier,
        *,
        lease_s: float = 15.0,
        on_clock_forward: Callable[[], Awaitable[object]] | None = None,
    ):
        super().__init__(interval_s=1.0)
        self._database = database
        self._registry = registry
        self._notifier = notifier
        self._lease_s = lease_s
        self._on_clock_forward = on_clock_forward
        self._since: datetime = BEGINNING
        self._full_scan_s = 0.0
        # Jobs that an open transaction blocks, and when each is tried again.
        self._blocked: dict[UUID, float] = {}
        self._clock = ClockJumps(settle_s=max(SETTLE_S, lease_s))
        self._has_looked_back = False

    async def run_once(self) -> int:
        """Returns how many jobs were taken from workers that are gone."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._full_scan_s:
            self._since, self._full_scan_s = BEGINNING, now_s + FULL_SCAN_S
            self._blocked = {job: again_s for job, again_s in self._blocked.items() if again_s > now_s}
        await self._check_clock()
        async with self._database.transaction() as tx:
            looked_at = await now(tx)
            # Leases that ended only by the jump of the clock are left to their owners to renew.
            expired = await jobs.lock_expired(tx, self._since, BATCH_MAX, jump_s=self._clock.forward_s(now_s))
            crash_point("jobs.reaper_locked")
            verdicts = {job: self._failed(job) for job in expired}
            contended = [job for job in expired if may_wait(verdicts[job], job.unique_key)]
            written = await self._write(tx, [v for job, v in verdicts.items() if job not in contended])
        taken = self._publish([job for job in expired if job not in contended], written)
        turn_ends_s = asyncio.get_running_loop().time() + CONTENDED_TURN_S
        ready = [job for job in contended if now_s >= self._blocked.get(job.id, 0.0)]
        for start in range(0, len(ready), PAGE):
            # Bounded: contended jobs must not delay the next run, and with it jobs of other workers that are gone.
            if asyncio.get_running_loop().time() < turn_ends_s:
                taken += await self._take_contended(ready[start : start + PAGE])
        if taken == len(expired):
            if len(expired) < BATCH_MAX:
                self._since = looked_at - MARGIN
        elif len(expired) == BATCH_MAX:
            # Blocked jobs must not hide the jobs behind them. The full scan comes back to them.
            self._since = expired[-1].lease_expires_at
        return taken

    async def _take_contended(
        self, expired: list[Expired], lock_timeout_ms: int = CONTENDED_LOCK_TIMEOUT_MS
    ) -> int:
        """Return jobs under a unique key that an open transaction may have just inserted: apart from the others, and
        bisected down to the one that has to wait."""
        try:
            async with self._database.transaction() as tx:
                await limit_waiting(tx, lock_timeout_ms)
                # Their owners may have renewed them since.
                still = await jobs.lock_expired(tx, BEGINNING, len(expired), [job.id for job in expired])
                written = await self._write(tx, [self._failed(job) for job in still])
        except CONTENTION:
            if len(expired) == 1:
                self._blocked[expired[0].id] = asyncio.get_running_loop().time() + BLOCKED_RETRY_S
                return 0
            middle = len(expired) // 2
            halves = expired[:middle], expired[middle:]
            return sum([await self._take_contended(half, PART_LOCK_TIMEOUT_MS) for half in halves])
        return self._publish(still, written)

    def _publish(self, expired: list[Expired], written: WrittenVerdicts) -> int:
        self._notifier.wake_lanes(written.places)
        taken = [job for job in expired if job.id not in written.postponed]
        dead = {ended.id for ended in written.buried}
        for job in taken:
            status = "dead" if job.id in dead else "failed"
            metrics.JOBS_COMPLETED.labels(job.job_type, status).inc()
            log.warning(
                "job_failed",
                job_id=job.id,
                job_type=job.job_type,
                attempt=job.attempt,
                error_code="lease_lost",
                worker_id=job.locked_by,
                will_retry=status == "failed",
            )
        return len(taken)

    async def _write(self, tx: Connection, verdicts: list[JobVerdict]) -> WrittenVerdicts:
        if not verdicts:
            return WrittenVerdicts()
        return await finisher.write(tx, verdicts, None, self._registry.running_max)

    def _failed(self, job: Expired) -> JobVerdict:
        return failure(
            job.id,
            job.fence,
            job.attempt,
            job.max_attempts,
            self._registry.policy(job.job_type),
            Failed("lease_lost", f"{job.locked_by} did not renew its lease"),
        )

    async def _check_clock(self) -> None:
        jump_s = await self._clock.check(self._database, every_s=self.interval_s)
        if not self._has_looked_back:
            # The clock may have been set back while no worker ran.
            await self._follow_clock_back(None)
            self._has_looked_back = True
        if jump_s:
            log.warning("jobs.clock_jumped", jump_s=round(jump_s, 1))
        if jump_s > 0 and self._on_clock_forward is not None:
            await self._on_clock_forward()
        if self._clock.is_settling:
            self._since = BEGINNING
            if self._clock.went_back_s:
                await self._follow_clock_back(self._clock.went_back_s)

    async def _follow_clock_back(self, jump_s: float | None) -> None:
        async with self._database.transaction() as tx:
            places = await job_upkeep.follow_clock_back(tx, jump_s, lease_s=self._lease_s)
        self._notifier.wake_lanes(places)
