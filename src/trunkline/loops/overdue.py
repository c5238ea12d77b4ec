"""Finds attempts that nobody is waiting for any more.

A dialer that died, or lost Postgres, leaves attempts in `dialing`. Past the deadline of their request nobody knows
whether the carrier dialled, so they become `in_doubt`. They keep their channel until that is known.
"""

from trunkline.loops.base import Loop
from trunkline.store import attempts
from trunkline.store.database import Database
from trunkline.telemetry import get_logger

log = get_logger(__name__)

BATCH = 500
# The request's own deadline is exact; this is room for its answer to be written down.
WRITE_ALLOWANCE_S = 10.0


class Overdue(Loop):
    name = "overdue"

    def __init__(self, database: Database, request_timeout_s: float, interval_s: float = 5.0):
        super().__init__(interval_s)
        self._database = database
        self._age_s = request_timeout_s + WRITE_ALLOWANCE_S

    async def run_once(self) -> int:
        async with self._database.connection() as conn:
            doubted = await attempts.doubt_overdue(conn, age_s=self._age_s, limit=BATCH)
        for attempt_id in doubted:
            log.error("attempt.in_doubt", attempt_id=str(attempt_id), reason="no_reply")
        return len(doubted)
