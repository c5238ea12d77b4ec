"""Maintains mailboxes: retention, and gauges. Safe to run in many processes."""

from collections.abc import Collection

from trunkline.loops.base import Loop
from trunkline.states import MailboxStatus
from trunkline.store import mailbox_admin
from trunkline.store.database import Database
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

DAY_S = 86_400.0
# Keeps one statement in the milliseconds, so that it blocks no other.
CHUNK = 2_000
# As long as the platform's alarm for them lasts: an operator who leaves the event set aside has nothing more to do.
SET_ASIDE_S = 900.0


class MailboxRetention(Loop):
    """Removes processed events after their retention, then mailboxes that are empty. The retention is also how long a
    duplicate event is recognised: its dedupe key goes with it."""

    name = "mailbox_retention"

    def __init__(self, database: Database, *, keep_s: float = 7 * DAY_S):
        super().__init__(interval_s=600.0)
        self._database = database
        self._keep_s = keep_s
        self._after = mailbox_admin.LONG_AGO

    async def run_once(self) -> int:
        """Returns how many rows were removed."""
        self._after = mailbox_admin.LONG_AGO
        events = await self.in_pages(CHUNK, self._remove_events)
        mailboxes = await self.in_pages(CHUNK, self._remove_mailboxes)
        if events or mailboxes:
            log.info("mailbox.retired", events=events, mailboxes=mailboxes)
        return events + mailboxes

    async def _remove_events(self) -> int:
        async with self._database.connection() as conn:
            removed, upto = await mailbox_admin.retire_events(
                conn, older_than_s=self._keep_s, limit=CHUNK, after=self._after
            )
        self._after = upto or self._after
        return removed

    async def _remove_mailboxes(self) -> int:
        async with self._database.connection() as conn:
            return await mailbox_admin.retire_mailboxes(conn, idle_for_s=self._keep_s, limit=CHUNK)


class MailboxGauges(Loop):
    """Sets the gauges of mailboxes from Postgres: how many are not idle, their pending events and the age of the
    oldest, events that were set aside, and mailboxes that this worker has no handler for."""

    name = "mailbox_gauges"

    def __init__(self, database: Database, *, handled: Collection[str] | None = None):
        """`handled` are the kinds that this process has handlers for; None in a platform, whose alarms cover the
        rest."""
        super().__init__(interval_s=15.0)
        self._database = database
        self._handled = handled

    async def run_once(self) -> int:
        """Returns how many mailboxes are not idle. A kind or status that no row has is no longer reported."""
        async with self._database.connection() as conn:
            summary = await mailbox_admin.summary(conn)
            set_aside = await mailbox_admin.set_aside_lately(conn, within_s=SET_ASIDE_S)
        for gauge in (metrics.MAILBOXES, metrics.MAILBOX_EVENTS_PENDING, metrics.MAILBOX_OLDEST_SECONDS):
            gauge.clear()
        for each in summary:
            metrics.MAILBOXES.labels(each.kind, each.status).set(each.mailboxes)
            metrics.MAILBOX_EVENTS_PENDING.labels(each.kind, each.status).set(each.events)
            metrics.MAILBOX_OLDEST_SECONDS.labels(each.kind, each.status).set(each.oldest_s)
        metrics.set_exactly(metrics.MAILBOX_EVENTS_SET_ASIDE, set_aside)
        if self._handled is not None:
            # Handled kinds are reported as 0, which overrides the gauge of a worker that does not handle them.
            unhandled: dict[str, float] = dict.fromkeys(self._handled, 0)
            for each in summary:
                if each.kind not in self._handled and each.status != MailboxStatus.DEAD:
                    unhandled[each.kind] = unhandled.get(each.kind, 0) + each.mailboxes
            metrics.set_exactly(metrics.MAILBOXES_UNHANDLED, unhandled)
        return sum(each.mailboxes for each in summary)
