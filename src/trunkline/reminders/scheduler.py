"""The scheduler: finds reminders that are due, claims each, makes its occurrence.

    find due (no lock) ─► claim one (SKIP LOCKED) ─► occurrence + lead + next position, one transaction ─► schedule

Any number of processes may run it. Its horizon is two intervals, so that an occurrence becomes a lead before its time
comes; from then on dispatch decides when to call. A full batch is followed by the next at once: a thousand reminders at
nine o'clock do not wait for a hundred rounds.
"""

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from trunkline.crashpoint import crash_point
from trunkline.loops.base import Loop
from trunkline.reminders.lifecycle import make_due
from trunkline.store import reminders
from trunkline.store.database import Database
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

# Errors of a reminder itself. An error of Postgres pauses no reminder.
BROKEN = (AssertionError, ValueError, LookupError, TypeError)

OnLeads = Callable[[Sequence[UUID]], Awaitable[object]]


class ReminderScheduler(Loop):
    name = "reminder_scheduler"

    def __init__(self, database: Database, on_leads: OnLeads, *, interval_s: float, batch_max: int):
        super().__init__(interval_s)
        self._database = database
        self._on_leads = on_leads
        self._batch_max = batch_max
        self.horizon_s = 2 * interval_s

    async def run_once(self) -> int:
        total = 0
        while True:
            async with self._database.connection() as conn:
                due = await reminders.due(conn, horizon_s=self.horizon_s, limit=self._batch_max)
            claimed = [await self._try(reminder_id) for reminder_id in due]
            total += sum(claimed)
            if len(due) < self._batch_max or not any(claimed) or self.stopping:
                return total

    async def _try(self, reminder_id: UUID) -> bool:
        """A broken reminder must not delay the others, now or in the next round: it is paused."""
        try:
            return await self._make(reminder_id)
        except BROKEN as error:
            log.error("reminders.paused_as_broken", reminder_id=str(reminder_id), exc_info=error)
            async with self._database.transaction() as tx:
                await reminders.pause_broken(tx, reminder_id)
            return True

    async def _make(self, reminder_id: UUID) -> bool:
        """Whether this process claimed it."""
        async with self._database.transaction() as tx:
            reminder = await reminders.claim(tx, reminder_id, horizon_s=self.horizon_s)
            if reminder is None:
                metrics.REMINDER_LOCK_CONTENTION.inc()
                log.debug(f"Reminder {reminder_id} already being processed")
                return False
            crash_point("reminders.after_claim")
            _, made = await make_due(tx, reminder, self.horizon_s)
            crash_point("reminders.before_commit")
        crash_point("reminders.after_commit")
        await self._schedule(made)
        return True

    async def _schedule(self, lead_ids: Sequence[UUID]) -> None:
        """Best effort: the leads are in Postgres, and the loader would schedule them."""
        if not lead_ids:
            return
        try:
            await self._on_leads(lead_ids)
        except Exception as error:
            log.warning("reminders.not_scheduled", count=len(lead_ids), reason=str(error))
