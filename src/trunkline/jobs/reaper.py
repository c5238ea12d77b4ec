"""Finds jobs whose worker is gone. A lost lease counts as a run that failed: by the table, or for good.

Each worker runs one; a job is locked by whoever finds it first. It looks from where the last look ended, because
finished jobs leave their dead entries in this index too, and at everything now and then.
"""

import asyncio
from datetime import datetime, timedelta

from trunkline.crashpoint import crash_point
from trunkline.jobs import finisher
from trunkline.jobs.outcomes import Failed, failure
from trunkline.jobs.poker import Poker
from trunkline.jobs.record import Written
from trunkline.jobs.registry import Registry
from trunkline.loops.base import Loop
from trunkline.store import jobs
from trunkline.store.database import Connection, Database
from trunkline.store.jobs import BEGINNING, Expired
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

BATCH_MAX = 500
LOOK_AT_ALL_S = 30.0
# Leases always end in the future of the moment that writes them; a slow commit is covered by this much.
MARGIN = timedelta(seconds=60)


class Reaper(Loop):
    name = "job_reaper"

    def __init__(self, database: Database, registry: Registry, poker: Poker, interval_s: float = 1.0):
        super().__init__(interval_s)
        self._database = database
        self._registry = registry
        self._poker = poker
        self._since: datetime = BEGINNING
        self._look_at_all_s = 0.0

    async def run_once(self) -> int:
        """How many jobs were taken from workers that are gone."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._look_at_all_s:
            self._since, self._look_at_all_s = BEGINNING, now_s + LOOK_AT_ALL_S
        async with self._database.transaction() as tx:
            now = await jobs.now(tx)
            expired = await jobs.lock_expired(tx, self._since, BATCH_MAX)
            crash_point("jobs.reaper_locked")
            written = await self._fail(tx, expired)
        if len(expired) < BATCH_MAX:
            self._since = now - MARGIN
        self._poker.poke_places(written.places)
        _record(expired, written)
        return len(expired)

    async def _fail(self, tx: Connection, expired: list[Expired]) -> Written:
        if not expired:
            return Written()
        verdicts = [
            failure(
                job.id,
                job.fence,
                job.attempt,
                job.max_attempts,
                self._registry.policy(job.job_type),
                Failed("lease_lost", f"{job.locked_by} did not renew its lease"),
            )
            for job in expired
        ]
        return await finisher.write(tx, verdicts, None, self._registry.running_max)


def _record(expired: list[Expired], written: Written) -> None:
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
