"""Ends leads that are no longer to be called: past the expiry that their sender set, or due before their merchant's
cutover from another system, which has called them.

Any number of processes may run it: each skips rows that another has locked. It need not be punctual, since the intent
refuses such leads by itself; it ensures that none waits for ever.
"""

from collections.abc import Awaitable, Callable

from trunkline.loops.base import Loop
from trunkline.store import lapses
from trunkline.store.database import Connection, Database
from trunkline.telemetry import get_logger

log = get_logger(__name__)

# Locked and ended in one statement: some 10 ms.
PAGE = 500

End = Callable[[Connection, int], Awaitable[int]]


class LapsedLeads(Loop):
    name = "lapsed_leads"

    def __init__(self, database: Database, interval_s: float = 1.0, page: int = PAGE):
        super().__init__(interval_s)
        self._database = database
        self._page = page

    async def run_once(self) -> int:
        """Returns how many leads were ended."""
        expired = await self._end_all(lapses.expire)
        cut_over = await self._end_all(lapses.end_cut_over)
        async with self._database.connection() as conn:
            await lapses.forget_cutovers(conn)
        if expired or cut_over:
            log.info("leads.lapsed", expired=expired, due_before_cutover=cut_over)
        return expired + cut_over

    async def _end_all(self, end: End) -> int:
        total = 0
        while not self.stopping:
            async with self._database.connection() as conn:
                ended = await end(conn, self._page)
            total += ended
            if ended < self._page:
                break
        return total
