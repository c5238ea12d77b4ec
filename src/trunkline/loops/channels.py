"""Makes Valkey's channels what Postgres says they are: maxima of numbers, and who holds what.

- Numbers and pools as they are configured now.
- Holders that Postgres has and Valkey lacks are written: after memory was lost, before anything is granted over them.
- Holders that Postgres lacks are grants of a dialer that died, once they are older than a grant may be. Their leads go
  back to the schedule. Younger ones are left alone: their intent is being committed right now.

The two are read in this order on purpose: Valkey first, Postgres second. A grant that becomes an attempt in between is
then seen in both; the other way round it would look like a dead dialer's.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from trunkline.bus import channels, epoch, schedule
from trunkline.bus.connection import Bus
from trunkline.bus.schedule import GiveBack, Return, to_ms
from trunkline.control.controls import Controls
from trunkline.control.raising import raise_alarm
from trunkline.dispatch import configuration
from trunkline.dispatch.breaker import is_mass_free
from trunkline.dispatch.rollout import Rollout
from trunkline.loops.base import Loop
from trunkline.model import Holder, NumberLimit
from trunkline.store import schedule as store_schedule
from trunkline.store.database import Database
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)


class ChannelReconciler(Loop):
    name = "channels"

    def __init__(
        self,
        database: Database,
        bus: Bus,
        controls: Controls,
        rollout: Rollout | None = None,
        *,
        grant_ttl_s: float = 5.0,
        interval_s: float = 1.0,
    ):
        super().__init__(interval_s)
        self._controls = controls
        self._rollout = rollout
        self._generation = -1
        self._database = database
        self._bus = bus
        self._grant_ttl_s = grant_ttl_s

    async def run_once(self) -> int:
        """How many limits and holders had to be changed."""
        self._generation = self._controls.generation
        await epoch.ensure(self._bus)
        believed = await channels.holders(self._bus)
        async with self._database.connection() as conn:
            wanted = await configuration.read(conn, self._controls, self._rollout)
            truth = await store_schedule.holders(conn)
            now_ms = await store_schedule.clock_s(conn) * 1000
        changed = await channels.configure(self._bus, wanted)
        # Only what is missing here: a call that ended after Postgres was read must not get its channel back.
        known = {holder.attempt_id for holder in believed}
        written = await channels.hold(self._bus, [h for h in truth if h.attempt_id not in known])
        true_ids = {holder.attempt_id for holder in truth}
        oldest_ms = now_ms - self._grant_ttl_s * 1000
        dead = [h for h in believed if h.attempt_id not in true_ids and h.granted_ms < oldest_ms]
        given_back = await self._give_back(dead, held=len(believed))
        metrics.SCHEDULE_LEADS.set(await schedule.known(self._bus))
        metrics.CHANNEL_DRIFT.set(written + given_back)
        metrics.RECONCILER_FIXES.labels(self.name).inc(written + given_back)
        if written or given_back:
            log.warning("channels.healed", written=written, given_back=given_back)
        _report(wanted.numbers, truth)
        return written + given_back + changed

    async def wait(self) -> None:
        """A stop, and its end, reach the match at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.interval_s):
                await self._controls.changed(self._generation)

    async def _give_back(self, dead: Sequence[Holder], *, held: int) -> int:
        """Leads of dead grants return to the schedule if Postgres still wants them called. A holder whose attempt has
        ended was confirmed by the carrier; one without an attempt is only our own conclusion."""
        if not dead:
            return 0
        async with self._database.connection() as conn:
            confirmed = await store_schedule.known_attempts(conn, [h.attempt_id for h in dead])
            if is_mass_free(len(dead) - len(confirmed), held):
                metrics.MASS_FREES_STOPPED.inc()
                unconfirmed = len(dead) - len(confirmed)
                log.critical("channels.mass_free_stopped", unconfirmed=unconfirmed, held=held)
                await raise_alarm(
                    self._database, "mass_free_breaker", self.name, {"unconfirmed": unconfirmed, "held": held}
                )
                dead = [h for h in dead if h.attempt_id in confirmed]
            wanted = await store_schedule.places(conn, [h.lead_id for h in dead if h.lead_id])
        due = {lead_id: to_ms(entry.due_at) for lead_id, entry in wanted.items()}
        return await schedule.give_back(
            self._bus,
            [
                GiveBack(h.attempt_id, Return.AGAIN, due[h.lead_id])
                if h.lead_id in due
                else GiveBack(h.attempt_id, Return.FORGET)
                for h in dead
            ],
        )


def _report(limits: Sequence[NumberLimit], truth: Sequence[Holder]) -> None:
    in_use = {str(limit.number_id): 0.0 for limit in limits}
    for holder in truth:
        in_use[str(holder.number_id)] = in_use.get(str(holder.number_id), 0.0) + 1
    metrics.set_exactly(metrics.CHANNELS_IN_USE, in_use)
    metrics.set_exactly(metrics.CHANNELS_MAX, {str(limit.number_id): limit.max_channels for limit in limits})
