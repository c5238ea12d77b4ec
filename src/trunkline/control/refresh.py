"""Keeps this process's controls and flags at most half a second behind Postgres. Every process runs it.

It reads one row of versions twice a second, and controls or flags only if their version changed. So a change is in
force everywhere within a second, and a thousand polls cost a thousand reads of one row.
"""

import asyncio

from trunkline.control.continuity import Guardian
from trunkline.control.controls import Controls
from trunkline.control.flags import FlagBoard
from trunkline.loops.base import Loop
from trunkline.store import controls as store_controls
from trunkline.store import flags as store_flags
from trunkline.store.controls import Scope
from trunkline.store.database import Database
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

INTERVAL_S = 0.5
# A poll that takes longer is cancelled: the next one may get another connection.
POLL_TIMEOUT_S = 2.0
WAITING = "The guardian has not yet checked whether Postgres was restored to an earlier moment."


class ControlRefresh(Loop):
    name = "controls"

    def __init__(
        self,
        database: Database,
        guardian: Guardian,
        controls: Controls,
        flags: FlagBoard,
        interval_s: float = INTERVAL_S,
    ):
        super().__init__(interval_s)
        self._database = database
        self._guardian = guardian
        self._controls = controls
        self._flags = flags
        self._controls_version = -1
        self._flags_version = -1
        self._was_stale = False

    async def run_once(self) -> int:
        """Poll once. Returns 1 if controls or flags had changed."""
        try:
            async with asyncio.timeout(POLL_TIMEOUT_S):
                return await self._poll()
        finally:
            self._report()

    async def pause(self, seconds: float) -> None:
        """Without backoff after failures: a change must be in force soon after Postgres is back."""
        await super().pause(min(seconds, self.interval_s))

    async def _poll(self) -> int:
        poll = await self._guardian.poll()
        if poll is None:
            self._controls.close(WAITING)
            return 0
        has_new_flags = poll.flags_version != self._flags_version
        has_new_controls = poll.controls_version != self._controls_version
        if has_new_flags:  # first: reading the controls is what lets dispatch begin
            async with self._database.connection() as conn:
                self._flags.read(await store_flags.list_flags(conn))
            self._flags_version = poll.flags_version
        if has_new_controls:
            async with self._database.connection() as conn:
                in_force = await store_controls.in_force(conn)
            self._controls.read(poll.now, in_force)
            self._controls_version = poll.controls_version
            log.info("controls.changed", version=poll.controls_version, in_force=len(in_force))
        else:
            self._controls.read(poll.now)
        return int(has_new_controls or has_new_flags)

    def _report(self) -> None:
        age_s, is_stale = self._controls.age_s, self._controls.is_stale
        metrics.CONTROLS_AGE_SECONDS.set(age_s)
        stopped = dict.fromkeys(map(str, Scope), 0.0)
        for control in self._controls.in_force:
            stopped[control.scope] += 1
        metrics.set_exactly(metrics.CONTROLS, stopped)
        if is_stale != self._was_stale:
            self._was_stale = is_stale
            metrics.ALARM.labels("postgres_unreachable").set(float(is_stale))
            if is_stale:
                log.error("controls.stale", age_s=round(age_s, 1), kept="the last known state")
            else:
                log.info("controls.fresh")
