"""Removes processed events after their retention, then mailboxes that are empty.

The retention is also how long a duplicate event is recognised: its dedupe key goes with it. Safe to run in many
processes.
"""

from trunkline.loops.base import Loop
from trunkline.store import mailbox_admin
from trunkline.store.database import Database
from trunkline.telemetry import get_logger

log = get_logger(__name__)

DAY_S = 86_400.0
# Keeps one statement in the milliseconds, so that it blocks no other.
CHUNK = 2_000


class MailboxRetention(Loop):
    name = "mailbox_retention"

    def __init__(self, database: Database, *, keep_s: float = 7 * DAY_S, interval_s: float = 600.0):
        super().__init__(interval_s)
        self._database = database
        self._keep_s = keep_s

    async def run_once(self) -> int:
        """Returns how many rows were removed."""
        events, mailboxes = await self._events(), await self._mailboxes()
        if events or mailboxes:
            log.info("mailbox.retired", events=events, mailboxes=mailboxes)
        return events + mailboxes

    async def _events(self) -> int:
        total, after = 0, mailbox_admin.LONG_AGO
        while not self.stopping:
            async with self._database.connection() as conn:
                removed, upto = await mailbox_admin.retire_events(
                    conn, older_than_s=self._keep_s, limit=CHUNK, after=after
                )
            total += removed
            if removed < CHUNK or upto is None:
                break
            after = upto
        return total

    async def _mailboxes(self) -> int:
        total = 0
        while not self.stopping:
            async with self._database.connection() as conn:
                removed = await mailbox_admin.retire_mailboxes(conn, idle_for_s=self._keep_s, limit=CHUNK)
            total += removed
            if removed < CHUNK:
                break
        return total
