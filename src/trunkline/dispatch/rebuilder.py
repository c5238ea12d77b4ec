"""Rebuilds Valkey's projection after it was lost: channels from live attempts, the schedule from the backlog.

Until a new epoch is published every script refuses, so nothing is granted from a half-built projection. The rebuild
writes under keys of its own epoch number, and scripts refuse a rebuilder with an older number.
"""

from trunkline.bus import channels, epoch
from trunkline.bus.connection import Bus
from trunkline.control.controls import Controls
from trunkline.dispatch.channel_reconciler import read_configuration
from trunkline.dispatch.loader import load
from trunkline.dispatch.rollout import Rollout
from trunkline.loops.base import PROMPT_BACKOFF_MAX_S, Loop
from trunkline.store import schedule as store_schedule
from trunkline.store.database import Connection, Database
from trunkline.store.schedule import BEFORE_ALL
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

# After each page the rebuilder renews its mark, for the other processes: a page of full flows takes about a second.
FLOWS_PER_PAGE = 20


class Rebuilder(Loop):
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
