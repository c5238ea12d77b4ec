"""The follower: copies a lead's state to the occurrence that it was made for, with log lines and metrics. It ends a
series with its last occurrence.

Dispatch knows nothing of reminders. Its decisions are in the lead and its attempts; the follower reads them within a
second, in any number of processes, each occurrence in one of them.
"""

from trunkline.loops.base import Loop
from trunkline.reminders.states import followed, lines
from trunkline.store import reminders
from trunkline.store.database import Database
from trunkline.store.reminders import Followed, StateChange
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
        while followed_count := await self._follow():
            total += followed_count
            if followed_count < BATCH_MAX:
                break
        # In a transaction of its own: a change of a series locks it before its occurrences.
        async with self._database.connection() as conn:
            await reminders.finish_all(conn)
        return total

    async def _follow(self) -> int:
        async with self._database.transaction() as tx:
            occurrences = await reminders.changed_occurrences(tx, limit=BATCH_MAX)
            changes = [followed(each) for each in occurrences]
            if changes:
                await reminders.write_states(tx, changes)
        for before, change in zip(occurrences, changes, strict=True):
            _report(before, change)
        return len(occurrences)


def _report(seen: Followed, change: StateChange) -> None:
    for line in lines(seen, change):
        getattr(log, line.level)(line.text, reminder_id=str(seen.reminder_id))
    metrics.REMINDERS_RETRIED.inc(change.retries_told - seen.retries_told)
    if change.state in ("COMPLETED", "FAILED"):
        metrics.REMINDERS_PROCESSED.inc()
        if change.state == "FAILED":
            metrics.REMINDERS_FAILED.inc()
