"""Loads the schedule: leads that are due soon go from Postgres to Valkey, flow by flow.

Ingest schedules a new lead itself, best effort. This loop is the guarantee: it loads the leads that ingest failed to
schedule and those that became due soon. Adding is idempotent, so the loader need not know what Valkey has. Its cursor
scans flows, not leads: a large backlog of one flow cannot hide a lost lead of another. On its way it compares
the flows with Valkey's other keys: a single key that was lost (evicted, or deleted by hand) is repaired within one
scan, although the epoch has not changed.

Several processes scan, and a scan of a large backlog loads Postgres: the more leads wait, the wider the starts of
scans are spread, always to later. The delay costs nothing, since a lead is loaded 15 minutes ahead.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from trunkline.bus import channels, epoch, schedule
from trunkline.bus.connection import Bus
from trunkline.control.controls import Controls
from trunkline.dispatch.channel_reconciler import read_configuration
from trunkline.dispatch.rollout import Rollout
from trunkline.loops.base import PROMPT_BACKOFF_MAX_S, Loop
from trunkline.model import Flow
from trunkline.store import schedule as store_schedule
from trunkline.store.database import Connection, Database
from trunkline.store.schedule import BEFORE_ALL
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

FLOWS_PER_RUN = 200
# 2,000 flows take 10 s.
NEXT_PAGE_S = 1.0
# A flow is refilled when it has fewer leads in Valkey than half of its cap.
REFILL_BELOW = schedule.FLOW_CAP // 2
# Of a fuller flow only the first leads are loaded: a lead that is missing in Valkey is loaded when its turn has come,
# even if the flow stays full. Larger than the number that may have moved to another pool (`match.lua`).
FIRST_OF_FULL = 200

# The backlog from which on the jitter has its full width.
FULL_JITTER_BACKLOG = 100_000
JITTER_MAX_S = 5.0
# After each page the rebuilder renews its mark, for the other processes: a page of full flows takes about a second.
FLOWS_PER_PAGE = 20


@dataclass(slots=True)
class FlowScan:
    """Counts of one scan."""

    began_s: float
    overdue: int = 0


async def load(
    conn: Connection,
    bus: Bus,
    flows: Sequence[Flow],
    limit: int = schedule.FLOW_CAP,
    scan: FlowScan | None = None,
) -> int:
    """Load the next leads of these flows into Valkey. Returns how many were new there."""
    added, seen = 0, {str(flow) for flow in flows}
    for flow in flows:
        entries = await store_schedule.heads(conn, flow, horizon_s=schedule.HORIZON_S, limit=limit)
        if scan is not None:
            now = datetime.now(UTC)
            scan.overdue += sum(entry.due_at <= now for entry in entries)
        # Most of them are in Valkey already, and a lookup sends 1/8 of the bytes of an add.
        lookup = await schedule.compare(bus, entries)
        added += await schedule.add(bus, lookup.missing)
        seen |= lookup.elsewhere
        if len(entries) >= schedule.FLOW_CAP:
            await schedule.mark_partial(bus, flow)
    mended = await schedule.mend(bus, sorted(seen))
    if mended:
        log.warning("schedule.mended", count=mended)
        metrics.RECONCILER_FIXES.labels("loader").inc(mended)
    return added


def jitter_s(backlog: int, widest_s: float) -> float:
    """Never negative: the loader never begins early."""
    share = min(1.0, backlog / FULL_JITTER_BACKLOG)
    # No secret: it only keeps processes from scanning at the same time.
    return random.uniform(0.0, widest_s * share)  # noqa: S311


class Loader(Loop):
    """Walks over all flows. At the last one it begins again."""

    name = "loader"

    def __init__(
        self,
        database: Database,
        bus: Bus,
        interval_s: float = 5.0,
        jitter_max_s: float = JITTER_MAX_S,
    ):
        super().__init__(interval_s)
        self._database = database
        self._bus = bus
        self._jitter_max_s = jitter_max_s
        self._after = BEFORE_ALL
        self._scan = FlowScan(time.monotonic())
        self._backlog = 0

    async def run_once(self) -> int:
        await epoch.ensure(self._bus)
        if self._after == BEFORE_ALL:
            self._scan = FlowScan(time.monotonic())
        async with self._database.connection() as conn:
            flows = await store_schedule.flows(conn, after=self._after, limit=FLOWS_PER_RUN)
            with_capacity = await _with_capacity(conn, self._bus, flows)
            full = [flow for flow in flows if flow not in with_capacity]
            added = await load(conn, self._bus, with_capacity, scan=self._scan)
            added += await load(conn, self._bus, full, FIRST_OF_FULL, self._scan)
            self._after = flows[-1] if len(flows) == FLOWS_PER_RUN else BEFORE_ALL
            if self._after == BEFORE_ALL:
                await self._report(conn)
        metrics.LOADER_LEADS.inc(added)
        return added

    async def _report(self, conn: Connection) -> None:
        """Runs at the end of a scan."""
        self._backlog, processing = await store_schedule.backlog_counts(conn)
        metrics.set_exactly(metrics.LEADS, {"BACKLOG": self._backlog, "PROCESSING": processing})
        metrics.LEADS_OVERDUE.set(self._scan.overdue)
        metrics.LOADER_LAP_SECONDS.set(time.monotonic() - self._scan.began_s)

    async def wait(self) -> None:
        if self._after != BEFORE_ALL:
            await self.pause(min(self.interval_s, NEXT_PAGE_S))
            return
        later_s = jitter_s(self._backlog, self._jitter_max_s)
        metrics.LOADER_JITTER_SECONDS.observe(later_s)
        await self.pause(self.interval_s + later_s)


async def schedule_leads(database: Database, bus: Bus, lead_ids: Sequence[UUID]) -> None:
    """Ingest schedules a new lead with this. The leads are safe in Postgres: after a failure the loader loads them
    within seconds."""
    metrics.LEADS_ACCEPTED.inc(len(lead_ids))
    outcome = "failed"
    try:
        await epoch.ensure(bus)
        async with database.connection() as conn:
            entries = await store_schedule.entries(conn, lead_ids)
        await schedule.add(bus, entries)
        outcome = "ok"
    finally:
        metrics.SCHEDULE_ADDS.labels(outcome).inc()


class Refiller(Loop):
    """Refills the flows that have more leads in Postgres than Valkey may hold of them."""

    name = "refiller"

    def __init__(self, database: Database, bus: Bus, interval_s: float = 1.0):
        super().__init__(interval_s)
        self._database = database
        self._bus = bus

    async def run_once(self) -> int:
        await epoch.ensure(self._bus)
        partial = sorted(await schedule.partial_flows(self._bus), key=str)
        if not partial:
            return 0
        async with self._database.connection() as conn:
            with_capacity = await _with_capacity(conn, self._bus, partial)
            # Before Postgres is read: a lead that finds its flow full in the meantime marks the flow again.
            await schedule.unmark_partial(self._bus, with_capacity)
            return await load(conn, self._bus, with_capacity)


async def _with_capacity(conn: Connection, bus: Bus, flows: Sequence[Flow]) -> list[Flow]:
    """Leads that were deferred beyond the horizon do not count: the loader replaces them by leads that are due
    sooner."""
    before_ms = int((await store_schedule.clock_s(conn) + schedule.HORIZON_S) * 1000)
    sizes = await schedule.sizes(bus, flows, before_ms=before_ms)
    return [flow for flow, size in zip(flows, sizes, strict=True) if size < REFILL_BELOW]


class Rebuilder(Loop):
    """Rebuilds Valkey's projection after it was lost: channels from live attempts, the schedule from the backlog.

    Until a new epoch is published every script refuses, so nothing is granted from a half-built projection. The rebuild
    writes under keys of its own epoch number, and scripts refuse a rebuilder with an older number.
    """

    name = "rebuilder"
    backoff_max_s = PROMPT_BACKOFF_MAX_S

    def __init__(
        self,
        database: Database,
        bus: Bus,
        controls: Controls,
        rollout: Rollout | None = None,
        interval_s: float = 1.0,
    ):
        super().__init__(interval_s)
        self._controls = controls
        self._rollout = rollout
        self._database = database
        self._bus = bus

    async def run_once(self) -> int:
        """1 if the projection had been lost and was rebuilt."""
        if await epoch.read(self._bus):
            return 0
        async with self._database.connection() as conn:
            number = await store_schedule.next_epoch(conn)
            building = await epoch.begin(self._bus, number)
            if building is None:
                return 0
            log.warning("projection.rebuilding", epoch=number)
            loaded = await self._rebuild(conn, building)
        if not await epoch.publish(self._bus, number):
            return 0
        metrics.RECONCILER_FIXES.labels(self.name).inc()
        removed = await epoch.sweep(self._bus)
        log.warning("projection.rebuilt", epoch=number, leads=loaded, old_keys_removed=removed)
        return 1

    async def _rebuild(self, conn: Connection, building: Bus) -> int:
        wanted = await read_configuration(conn, self._controls, self._rollout)
        await channels.configure(building, wanted)
        await channels.hold(building, await store_schedule.holders(conn))
        loaded, after = 0, BEFORE_ALL
        while flows := await store_schedule.flows(conn, after=after, limit=FLOWS_PER_PAGE):
            loaded += await load(conn, building, flows)
            after = flows[-1]
            await epoch.go_on(building, building.epoch)
        return loaded
