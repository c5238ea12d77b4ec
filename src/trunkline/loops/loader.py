"""Loads the schedule: leads that are due soon go from Postgres to Valkey, flow by flow.

Ingest schedules a new lead itself, as a courtesy. This loop is the one that may be relied on: it brings what ingest
could not tell and what became due soon. Adding is idempotent, so it need not know what Valkey has. It walks over flows
with a cursor, not over leads: no pile, however high, can hide a lost lead of another flow behind it.
"""

from collections.abc import Sequence

from trunkline.bus import epoch, schedule
from trunkline.bus.connection import Bus
from trunkline.loops.base import Loop
from trunkline.model import Flow
from trunkline.store import schedule as store_schedule
from trunkline.store.database import Connection, Database
from trunkline.store.schedule import BEFORE_ALL

HORIZON_S = 15 * 60.0
FLOWS_PER_RUN = 100
# A flow is refilled when half of what it may have here is gone.
REFILL_BELOW = schedule.FLOW_CAP // 2


async def load(conn: Connection, bus: Bus, flows: Sequence[Flow]) -> int:
    """Bring the next leads of these flows; how many were new to Valkey."""
    added = 0
    for flow in flows:
        entries = await store_schedule.heads(conn, flow, horizon_s=HORIZON_S, limit=schedule.FLOW_CAP)
        # Most of them are there already, and to ask is eight times less to send than to add.
        added += await schedule.add(bus, await schedule.unknown(bus, entries))
    return added


class Loader(Loop):
    """Walks over all flows. At the last one it begins again."""

    name = "loader"

    def __init__(self, database: Database, bus: Bus, interval_s: float = 5.0):
        super().__init__(interval_s)
        self._database = database
        self._bus = bus
        self._after = BEFORE_ALL

    async def run_once(self) -> int:
        await epoch.ensure(self._bus)
        async with self._database.connection() as conn:
            flows = await store_schedule.flows(conn, after=self._after, limit=FLOWS_PER_RUN)
            added = await load(conn, self._bus, await _roomy(self._bus, flows))
        self._after = flows[-1] if len(flows) == FLOWS_PER_RUN else BEFORE_ALL
        return added


class Refiller(Loop):
    """Refills the flows that have more leads in Postgres than may be here at once."""

    name = "refiller"

    def __init__(self, database: Database, bus: Bus, interval_s: float = 1.0):
        super().__init__(interval_s)
        self._database = database
        self._bus = bus

    async def run_once(self) -> int:
        await epoch.ensure(self._bus)
        partial = await _roomy(self._bus, sorted(await schedule.partial_flows(self._bus), key=str))
        if not partial:
            return 0
        async with self._database.connection() as conn:
            return await load(conn, self._bus, partial)


async def _roomy(bus: Bus, flows: Sequence[Flow]) -> list[Flow]:
    sizes = await schedule.sizes(bus, flows)
    return [flow for flow, size in zip(flows, sizes, strict=True) if size < REFILL_BELOW]
