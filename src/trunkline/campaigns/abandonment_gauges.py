"""Exports the share of abandoned calls as a metric: the counters of calls restart with each process, and cannot give it
over 30 days."""

from trunkline.loops.base import Loop
from trunkline.store import abandonment
from trunkline.store.database import Database
from trunkline.store.tenants import PLATFORM
from trunkline.telemetry import metrics

INTERVAL_S = 10.0


class AbandonmentGauges(Loop):
    name = "abandonment_gauges"

    def __init__(self, database: Database, interval_s: float = INTERVAL_S):
        super().__init__(interval_s)
        self._database = database

    async def run_once(self) -> int:
        async with self._database.connection() as conn:
            measured = await abandonment.measured_by_tenant(conn, PLATFORM)
        spans = {"10m": measured.last_10m, "24h": measured.last_24h, "30d": measured.last_30d}
        shares = {span: counted.abandoned_share for span, counted in spans.items()}
        # A span in which no person answered has no share.
        metrics.set_exactly(
            metrics.ABANDONED_SHARE, {span: share for span, share in shares.items() if share is not None}
        )
        return len(shares)
