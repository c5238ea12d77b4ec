"""Ends leads that are no longer to be called: past the expiry that their sender set, or due before their merchant's
cutover from another system, which has called them.

Any number of processes may run it: each skips rows that another has locked. It need not be punctual, since the intent
refuses such leads by itself; it ensures that none waits for ever.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from trunkline.loops.base import Loop
from trunkline.store import lead_edits
from trunkline.store.database import Connection, Database
from trunkline.telemetry import get_logger

log = get_logger(__name__)

# Locked and ended in one statement: some 10 ms.
PAGE = 500


class LapsedLeads(Loop):
    name = "lapsed_leads"

    def __init__(self, database: Database, interval_s: float = 1.0, page: int = PAGE):
        super().__init__(interval_s)
        self._database = database
        self._page = page

    async def run_once(self) -> int:
        """Returns how many leads were ended."""
        expired, cut_over = [
            await self.in_pages(self._page, partial(self._end, end))
            for end in (lead_edits.expire, lead_edits.end_cut_over)
        ]
        async with self._database.connection() as conn:
            await lead_edits.forget_cutovers(conn)
        if expired or cut_over:
            log.info("leads.lapsed", expired=expired, due_before_cutover=cut_over)
        return expired + cut_over

    async def _end(self, end: Callable[[Connection, int], Awaitable[int]]) -> int:
        async with self._database.connection() as conn:
            return await end(conn, self._page)
