"""Loads the schedule: leads that are due soon go from Postgres to Valkey.

Ingest schedules a new lead itself, as a courtesy. This loop is the one that may be relied on: it brings what ingest
could not tell, what became due soon, and everything after Valkey lost its memory. Adding is idempotent, so it need
not know what Valkey has. It pages through the whole horizon with a cursor, so no pile can hide a lead behind it.
"""

from datetime import UTC, datetime
from uuid import UUID

from trunkline.bus import schedule
from trunkline.bus.connection import Bus
from trunkline.loops.base import Loop
from trunkline.store import dispatch
from trunkline.store.database import Database

HORIZON_S = 15 * 60.0
PAGE = 1000
_START = (datetime(1970, 1, 1, tzinfo=UTC), UUID(int=0))


class Loader(Loop):
    name = "loader"

    def __init__(self, database: Database, bus: Bus, interval_s: float = 1.0):
        super().__init__(interval_s)
        self._database = database
        self._bus = bus
        self._after = _START

    async def run_once(self) -> int:
        """Load one page; how many leads were new to Valkey. At the end of the horizon it begins again."""
        async with self._database.connection() as conn:
            page = await dispatch.due_soon(conn, horizon_s=HORIZON_S, after=self._after, limit=PAGE)
        added = await schedule.add(self._bus, page)
        self._after = (page[-1].due_at, page[-1].lead_id) if len(page) == PAGE else _START
        return added
