"""Finds jobs whose worker is gone. A lost lease counts as a run that failed: by the table, or for good.

Each worker runs one; a job is locked by whoever finds it first. It looks from where the last look ended, because
finished jobs leave their dead entries in this index too, and at everything now and then. It waits for nobody: a job
that an open transaction holds up is left for later, and the others are taken.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from uuid import UUID

from trunkline.clock import ClockJumps
from trunkline.crashpoint import crash_point
from trunkline.jobs import finisher
from trunkline.jobs.finisher import CONTENDED_LOCK_TIMEOUT_MS, PART_LOCK_TIMEOUT_MS, may_wait
from trunkline.jobs.notifier import JobNotifier
from trunkline.jobs.outcomes import Failed, JobVerdict, failure
from trunkline.jobs.record import WrittenVerdicts
from trunkline.jobs.registry import Registry
from trunkline.loops.base import Loop
from trunkline.store import job_upkeep, jobs
from trunkline.store.database import Connection, Database
from trunkline.store.driver import CONTENTION
from trunkline.store.jobs import BEGINNING, Expired
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

BATCH_MAX = 500
# Jobs with unique keys that go back in one transaction.
PAGE = 50
# How long one run takes such jobs back before it goes on.
CONTENDED_TURN_S = 0.5
# When a job is tried again that an open transaction holds up.
HELD_UP_S = 2.0
# How long statements may be under way that began before the clock was set.
SETTLE_S = 10.0
LOOK_AT_ALL_S = 30.0
# Leases always end in the future of the moment that writes them; a slow commit is covered by this much.
MARGIN = timedelta(seconds=60)


class Reaper(Loop):
    name = "job_reaper"

    def __init__(
        self,
        database: Database,
        registry: Registry,
        notifier: JobNotifier,
        interval_s: float = 1.0,
        *,
        lease_s: float = 15.0,
        on_clock_forward: Callable[[], Awaitable[object]] | None = None,
    ):
        super().__init__(interval_s)
        self._database = database
        self._registry = registry
        self._notifier = notifier
        self._lease_s = lease_s
        self._on_clock_forward = on_clock_forward
        self._since: datetime = BEGINNING
        self._look_at_all_s = 0.0
        # Jobs that an open transaction holds up, and when each is tried again.
        self._held_up: dict[UUID, float] = {}
        self._jumps = ClockJumps()
        self._not_before_s = 0.0
        self._unsettled_until_s = 0.0
        self._went_back_s = 0.0
        self._has_looked_back = False

    async def run_once(self) -> int:
        """How many jobs were taken from workers that are gone."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._look_at_all_s:
            self._since, self._look_at_all_s = BEGINNING, now_s + LOOK_AT_ALL_S
            self._held_up = {job: again_s for job, again_s in self._held_up.items() if again_s > now_s}
        await self._watch_the_clock()
        # Leases that the jump alone ended are their owners' to renew.
        jump_s = self._jumps.forward_most_s if now_s < self._not_before_s else 0.0
        async with self._database.transaction() as tx:
            now = await jobs.now(tx)
            expired = await jobs.lock_expired(tx, self._since, BATCH_MAX, jump_s=jump_s)
            crash_point("jobs.reaper_locked")
            verdicts = {job: self._failed(job) for job in expired}
            contended = [job for job in expired if may_wait(verdicts[job], job.unique_key)]
            written = await self._write(tx, [v for job, v in verdicts.items() if job not in contended])
        taken = self._tell([job for job in expired if job not in contended], written)
        turn_ends_s = asyncio.get_running_loop().time() + CONTENDED_TURN_S
        for page in _pages([job for job in contended if now_s >= self._held_up.get(job.id, 0.0)]):
            # What is left for the next run must not keep that from others whose worker is gone.
            if asyncio.get_running_loop().time() < turn_ends_s:
                taken += await self._take_contended(page)
        if taken == len(expired):
            if len(expired) < BATCH_MAX:
                self._since = now - MARGIN
        elif len(expired) == BATCH_MAX:
            # What somebody holds up must not hide what lies behind it. The look at everything comes back to it.
            self._since = expired[-1].lease_expires_at
        return taken

    async def _take_contended(
        self, expired: list[Expired], lock_timeout_ms: int = CONTENDED_LOCK_TIMEOUT_MS
    ) -> int:
        """Jobs that go back under a unique key, which an open transaction may have just taken: apart from the others,
        and by halves, until the one is found that has to wait."""
        try:
            async with self._database.transaction() as tx:
                await jobs.limit_waiting(tx, lock_timeout_ms)
                # Its owner may have come back since.
                still = await jobs.lock_expired(tx, BEGINNING, len(expired), [job.id for job in expired])
                written = await self._write(tx, [self._failed(job) for job in still])
        except CONTENTION:
            if len(expired) == 1:
                self._held_up[expired[0].id] = asyncio.get_running_loop().time() + HELD_UP_S
                return 0
            middle = len(expired) // 2
            halves = expired[:middle], expired[middle:]
            return sum([await self._take_contended(half, PART_LOCK_TIMEOUT_MS) for half in halves])
        return self._tell(still, written)

    def _tell(self, expired: list[Expired], written: WrittenVerdicts) -> int:
        self._notifier.wake_lanes(written.places)
        taken = [job for job in expired if job.id not in written.postponed]
        _record(taken, written)
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

    async def _watch_the_clock(self) -> None:
        """A server whose clock was set forward ends every lease at once: their owners renew them first. One whose clock
        was set back would keep leases and waiting jobs for as long as the jump was."""
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        async with self._database.connection() as conn:
            now = await jobs.now(conn)
        jump_s = self._jumps.note(now, asked_s, loop.time())
        if not self._has_looked_back:
            # It may have been set back while no worker ran.
            await self._follow_clock_back(None)
            self._has_looked_back = True
        if jump_s:
            log.warning("jobs.clock_jumped", jump_s=round(jump_s, 1))
            self._unsettled_until_s = loop.time() + max(SETTLE_S, self._lease_s)
            self._went_back_s = max(0.0, -jump_s)
            if jump_s > 0:
                # Every worker notices within one look, and renews what it has.
                self._not_before_s = loop.time() + 1.5 * self.interval_s
                if self._on_clock_forward is not None:
                    await self._on_clock_forward()
        if loop.time() < self._unsettled_until_s:
            # Statements that were under way still write times of the old clock: so it is looked at again for a while.
            self._since = BEGINNING
            if self._went_back_s:
                await self._follow_clock_back(self._went_back_s)

    async def _follow_clock_back(self, jump_s: float | None) -> None:
        async with self._database.transaction() as tx:
            places = await job_upkeep.follow_clock_back(tx, jump_s, lease_s=self._lease_s)
        self._notifier.wake_lanes(places)


def _pages(jobs: list[Expired]) -> list[list[Expired]]:
    return [jobs[start : start + PAGE] for start in range(0, len(jobs), PAGE)]


def _record(expired: list[Expired], written: WrittenVerdicts) -> None:
    dead = {ended.id for ended in written.buried}
    for job in expired:
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
