"""Maintains the outbox: vacuum, retention, counts of concurrency keys, the depth of the queue.

Every worker runs it: each step is idempotent and skips rows that another worker has locked.
"""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from trunkline.jobs.registry import Registry
from trunkline.jobs.wakeups import JobNotifier
from trunkline.loops.base import Loop
from trunkline.store import job_admin, job_upkeep
from trunkline.store.database import Database, now
from trunkline.store.driver import NOT_PERMITTED
from trunkline.store.jobs import FIRST_KEY
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

PAGE = 500
FORGET_MAX = 5000


@dataclass(frozen=True, slots=True)
class JobMaintenanceLimits:
    history_s: float = 7 * 86400.0
    dead_s: float = 30 * 86400.0
    depth_every_s: float = 15.0
    forget_every_s: float = 60.0
    # Autovacuum runs once a minute; at 1,000 jobs per second that leaves 120,000 dead rows.
    vacuum_every_s: float = 10.0
    vacuum_from: int = 10_000


class JobMaintenance(Loop):
    name = "job_upkeep"

    def __init__(
        self,
        database: Database,
        registry: Registry,
        notifier: JobNotifier,
        limits: JobMaintenanceLimits,
    ):
        super().__init__(interval_s=5.0)
        self._database = database
        self._registry = registry
        self._notifier = notifier
        self._limits = limits
        self._due_s: dict[str, float] = {}
        self._after_key = FIRST_KEY

    async def run_once(self) -> int:
        """Returns how many rows were corrected or removed."""
        changed = await self.recount_keys()
        if self._is_due("depth", self._limits.depth_every_s):
            await self.measure_depth()
        if self._is_due("vacuum", self._limits.vacuum_every_s):
            changed += await self.vacuum()
        if self._is_due("forget", self._limits.forget_every_s):
            changed += await self.forget()
        return changed

    async def recount_keys(self) -> int:
        """One page of keys; the next run continues behind it."""
        async with self._database.transaction() as tx:
            keys = await job_upkeep.lock_keys(tx, self._after_key, PAGE)
            wrong, unparked = await job_upkeep.recount_keys(tx, keys, self._registry.running_max)
        self._after_key = keys[-1] if len(keys) == PAGE else FIRST_KEY
        if wrong or unparked:
            log.warning("jobs.keys_corrected", wrong=wrong, unparked=len(unparked))
        self._notifier.wake_lanes(unparked)
        return wrong + len(unparked)

    async def measure_depth(self) -> None:
        async with self._database.connection() as conn:
            states = await job_admin.types(conn, [job_type.name for job_type in self._registry])
            dead = await job_admin.dead_letters(conn)
        metrics.set_exactly(metrics.JOB_QUEUE_DEPTH, {state.job_type: state.pending for state in states})
        # Including types that no process declares any more: an operator has to see them.
        metrics.set_exactly(metrics.JOB_DEAD_LETTERS, dict.fromkeys((s.job_type for s in states), 0) | dead)

    async def vacuum(self) -> int:
        """Only the owner of the table may vacuum it. For another role autovacuum has to do."""
        async with self._database.warm_pool.acquire() as conn:
            dead = await job_upkeep.dead_rows(conn)
            if dead < self._limits.vacuum_from:
                return 0
            try:
                await job_upkeep.vacuum(conn)
            except NOT_PERMITTED as error:
                log.debug("jobs.vacuum_refused", error=str(error))
                return 0
        return dead

    async def forget(self) -> int:
        async with self._database.connection() as conn:
            today = await now(conn)
            history_before = today - timedelta(seconds=self._limits.history_s)
            dead_before = today - timedelta(seconds=self._limits.dead_s)
            return (
                await job_upkeep.forget_progress(conn)
                + await self.in_pages(
                    FORGET_MAX, lambda: job_upkeep.forget_history(conn, history_before, FORGET_MAX)
                )
                + await job_upkeep.forget_dead(conn, dead_before, FORGET_MAX)
            )

    def _is_due(self, duty: str, every_s: float) -> bool:
        now_s = asyncio.get_running_loop().time()
        if now_s < self._due_s.get(duty, 0.0):
            return False
        self._due_s[duty] = now_s + every_s
        return True
