"""The follower: brings what became of a lead back to the occurrence that it was made for, with log lines and metrics.
It ends a series with its last occurrence.

The engine knows nothing of reminders. What it decides is in the lead and its attempts; this reads it a moment later, in
any number of processes, each occurrence by one of them.
"""

from trunkline.loops.base import Loop
from trunkline.reminders.states import followed, lines
from trunkline.store import reminder_states, reminders
from trunkline.store.database import Database
from trunkline.store.reminder_states import Followed, StateChange
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

BATCH_MAX = 500


class ReminderFollower(Loop):
    name = "reminder_follower"

    def __init__(self, database: Database, interval_s: float = 1.0):
        super().__init__(interval_s)
        self._database = database

    async def run_once(self) -> int:
        total = 0
        while found := await self._follow():
            total += found
            if found < BATCH_MAX:
                break
        # In a transaction of its own: who changes a series locks it before its occurrences.
        async with self._database.connection() as conn:
            await reminders.finish_all(conn)
        return total

    async def _follow(self) -> int:
        async with self._database.transaction() as tx:
            seen = await reminder_states.changed(tx, limit=BATCH_MAX)
            changes = [followed(each) for each in seen]
            if changes:
                await reminder_states.write(tx, changes)
        for before, change in zip(seen, changes, strict=True):
            _tell(before, change)
        return len(seen)


def _tell(seen: Followed, change: StateChange) -> None:
    for line in lines(seen, change):
        getattr(log, line.level)(line.text, reminder_id=str(seen.reminder_id))
    metrics.REMINDERS_RETRIED.inc(change.retries_told - seen.retries_told)
    if change.state in ("COMPLETED", "FAILED"):
        metrics.REMINDERS_PROCESSED.inc()
        if change.state == "FAILED":
            metrics.REMINDERS_FAILED.inc()
