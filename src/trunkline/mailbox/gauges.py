"""Tells the metrics page what Postgres says of mailboxes: how many are not idle, what waits in them, and since when."""

from trunkline.loops.base import Loop
from trunkline.store import mailbox_admin
from trunkline.store.database import Database
from trunkline.telemetry import metrics


class MailboxGauges(Loop):
    name = "mailbox_gauges"

    def __init__(self, database: Database, *, interval_s: float = 15.0):
        super().__init__(interval_s)
        self._database = database

    async def run_once(self) -> int:
        """Count; how many mailboxes are not idle. A kind or status that is gone stops being reported."""
        async with self._database.connection() as conn:
            summary = await mailbox_admin.summary(conn)
        for gauge in (metrics.MAILBOXES, metrics.MAILBOX_EVENTS_PENDING, metrics.MAILBOX_OLDEST_SECONDS):
            gauge.clear()
        for each in summary:
            metrics.MAILBOXES.labels(each.kind, each.status).set(each.mailboxes)
            metrics.MAILBOX_EVENTS_PENDING.labels(each.kind, each.status).set(each.events)
            metrics.MAILBOX_OLDEST_SECONDS.labels(each.kind, each.status).set(each.oldest_s)
        return sum(each.mailboxes for each in summary)
