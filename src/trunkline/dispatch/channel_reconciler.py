"""Makes Valkey's channels what Postgres has: the maxima of numbers, and the holder of each channel.

- Numbers and pools as they are configured now.
- Holders that Postgres has and Valkey lacks are written before anything is granted over them.
- What follows from both (free channels, the calls of a merchant) is compared one page of numbers at a time: a single
  key that was lost is repaired although the epoch has not changed.
- Holders that Postgres lacks are grants of a dialer that died, once they are older than a grant's lifetime. Their leads
  go back to the schedule. Younger ones stay: their intent is being committed right now.

The order of reading matters: Valkey first, Postgres second. A grant that becomes an attempt in between is then seen in
both; the other way round it would look like a dead dialer's.

Many dead holders at once are more likely our error than the truth (`is_mass_free`), with one exception: a grant that
was made while this process was running and never seen with an attempt. The intent refuses grants over 3 s, so an older
one was not dialled and never will be. Holders whose attempt Postgres had and has lost are kept until an operator frees
them (`free_dead`).
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

from trunkline.bus import channels, epoch, schedule
from trunkline.bus.channels import ALL, Configuration
from trunkline.bus.connection import Bus
from trunkline.bus.schedule import GiveBack, GrantReturn, to_ms
from trunkline.control.controls import Controls
from trunkline.control.raising import raise_alarm
from trunkline.dispatch.rollout import LEFT_OUT, Rollout
from trunkline.loops.base import Loop
from trunkline.model import Holder, NumberLimit
from trunkline.settings.tiers import COMMON, own_tier
from trunkline.store import cooldowns
from trunkline.store import schedule as store_schedule
from trunkline.store.controls import Scope
from trunkline.store.database import Connection, Database
from trunkline.telemetry import get_logger, metrics
from trunkline.value import replace

log = get_logger(__name__)

# Comparing a number takes 8 µs, in which Valkey does nothing else: 10,000 numbers are compared within 100 s.
NUMBERS_PER_RUN = 100
# The mass-free breaker: a reconciler that is about to free very many channels is more likely wrong than right. It
# counts only frees without confirmation, neither by the carrier, call by call, nor because nothing can have been
# dialled. After an outage in which 200 calls really ended, 200 channels are freed, and reconciling must not stop.
MASS_FREE_MIN = 50
MASS_FREE_SHARE = 0.2
_SUBJECTS = {Scope.RESELLER: "r", Scope.MERCHANT: "m", Scope.CAMPAIGN: "c"}


def is_mass_free(unconfirmed: int, held: int) -> bool:
    """More than 50 channels and more than 20 % of those held."""
    return unconfirmed > MASS_FREE_MIN and unconfirmed > MASS_FREE_SHARE * held


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
        # The first run, and the holders that any run saw with an attempt.
        self._running_since_ms = float("inf")
        self._intended: set[UUID] = set()
        self._mend_cursor = 0

    async def run_once(self) -> int:
        """Returns how many limits and holders had to be changed."""
        self._generation = self._controls.generation
        await epoch.ensure(self._bus)
        projected, calls = await channels.holders_and_calls(self._bus)
        async with self._database.connection() as conn:
            config = await read_configuration(conn, self._controls, self._rollout)
            stored = await store_schedule.holders(conn)
            now_ms = await store_schedule.clock_s(conn) * 1000
        self._running_since_ms = min(self._running_since_ms, now_ms)
        projected_ids = {holder.attempt_id for holder in projected}
        self._intended = (self._intended | {holder.attempt_id for holder in stored}) & projected_ids
        changed = await channels.configure(self._bus, config)
        # Only those that Valkey lacks: a call that ended after Postgres was read must not get its channel back.
        written = await channels.hold(self._bus, [h for h in stored if h.attempt_id not in projected_ids])
        mended = await self._mend(config.numbers, stored, recounts=calls != channels.calls_of(projected))
        dead = self._dead(projected, stored, now_ms)
        given_back = await self._give_back(await self._freeable(dead, held=len(projected)))
        metrics.SCHEDULE_LEADS.set(await schedule.lead_count(self._bus))
        metrics.CHANNEL_DRIFT.set(written + given_back + mended)
        metrics.RECONCILER_FIXES.labels(self.name).inc(written + given_back + mended)
        if written or given_back or mended:
            log.warning("channels.healed", written=written, given_back=given_back, mended=mended)
        _report(config.numbers, stored)
        return written + given_back + changed + mended

    async def _mend(self, numbers: Sequence[NumberLimit], stored: Sequence[Holder], *, recounts: bool) -> int:
        """The next page of numbers; after the last one it begins anew."""
        page = numbers[self._mend_cursor : self._mend_cursor + NUMBERS_PER_RUN]
        after = self._mend_cursor + len(page)
        self._mend_cursor = after if after < len(numbers) else 0
        return await channels.mend(self._bus, [n.number_id for n in page], stored, recounts=recounts)

    async def wait(self) -> None:
        """A stop, and its end, reach the match at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.interval_s):
                await self._controls.changed(self._generation)

    async def free_dead(self) -> int:
        """Operator override: free every holder that Postgres does not have, however many."""
        await epoch.ensure(self._bus)
        projected = await channels.holders(self._bus)
        async with self._database.connection() as conn:
            stored = await store_schedule.holders(conn)
            now_ms = await store_schedule.clock_s(conn) * 1000
        freed = await self._give_back(self._dead(projected, stored, now_ms))
        log.warning("channels.freed_by_hand", freed=freed)
        return freed

    def _dead(self, projected: Sequence[Holder], stored: Sequence[Holder], now_ms: float) -> list[Holder]:
        true_ids = {holder.attempt_id for holder in stored}
        oldest_ms = now_ms - self._grant_ttl_s * 1000
        return [h for h in projected if h.attempt_id not in true_ids and h.granted_ms < oldest_ms]

    async def _freeable(self, dead: Sequence[Holder], *, held: int) -> Sequence[Holder]:
        """Those that may be freed. A holder whose attempt has ended was confirmed by the carrier; one without an
        attempt, unless it certainly never had one, is only our own conclusion."""
        if not dead:
            return dead
        async with self._database.connection() as conn:
            ended = await store_schedule.known_attempts(conn, [h.attempt_id for h in dead])
        never_intended = {
            h.attempt_id
            for h in dead
            if h.granted_ms > self._running_since_ms and h.attempt_id not in self._intended
        }
        certain = [h for h in dead if h.attempt_id in ended or h.attempt_id in never_intended]
        unconfirmed = len(dead) - len(certain)
        if not is_mass_free(unconfirmed, held):
            return dead
        metrics.MASS_FREES_STOPPED.inc()
        log.critical("channels.mass_free_stopped", unconfirmed=unconfirmed, held=held)
        detail = {"unconfirmed": unconfirmed, "held": held}
        await raise_alarm(self._database, "mass_free_breaker", self.name, detail)
        return certain

    async def _give_back(self, dead: Sequence[Holder]) -> int:
        """Their leads return to the schedule if they are still to be called in Postgres."""
        if not dead:
            return 0
        async with self._database.connection() as conn:
            entries = await store_schedule.entries(conn, [h.lead_id for h in dead if h.lead_id])
        due = {entry.lead_id: to_ms(entry.due_at) for entry in entries}
        return await schedule.give_back(
            self._bus,
            [
                GiveBack(h.attempt_id, GrantReturn.AGAIN, due[h.lead_id])
                if h.lead_id in due
                else GiveBack(h.attempt_id, GrantReturn.FORGET)
                for h in dead
            ],
        )


def _report(limits: Sequence[NumberLimit], stored: Sequence[Holder]) -> None:
    in_use = {str(limit.number_id): 0.0 for limit in limits}
    for holder in stored:
        in_use[str(holder.number_id)] = in_use.get(str(holder.number_id), 0.0) + 1
    metrics.set_exactly(metrics.CHANNELS_IN_USE, in_use)
    metrics.set_exactly(metrics.CHANNELS_MAX, {str(limit.number_id): limit.max_channels for limit in limits})


async def read_configuration(
    conn: Connection, controls: Controls, rollout: Rollout | None = None
) -> Configuration:
    numbers = await store_schedule.numbers(conn)
    left_out = await rollout.left_out(conn) if rollout else ()
    configs = await store_schedule.merchant_tiers(conn)
    own_tiers = {merchant: own_tier(merchant, config) for merchant, config in configs.items()}
    return Configuration(
        numbers=tuple(_allowed(limit, carrier, controls) for limit, carrier in numbers),
        weights=await store_schedule.weights(conn),
        caps=await store_schedule.caps(conn),
        stops={f"m/{merchant}": LEFT_OUT for merchant in left_out} | stops(controls),
        tiers={merchant: tier for merchant, tier in own_tiers.items() if tier and tier not in COMMON},
        ungated=frozenset(await store_schedule.ungated(conn)),
        overdialled=frozenset(await store_schedule.overdialled(conn)),
        cooling=await cooldowns.resting(conn),
    )


def stops(controls: Controls) -> dict[str, str]:
    """By the subjects of the scripts: everything, a reseller, a merchant, a campaign."""
    if everything := controls.stopped():
        return {ALL: everything.reason}
    by_subject = {}
    for control in controls.in_force:
        kind = _SUBJECTS.get(control.scope)
        if kind and control.phase(controls.now()) == "stopped":
            by_subject[f"{kind}/{control.subject}"] = control.reason
    return by_subject


def _allowed(limit: NumberLimit, carrier: str, controls: Controls) -> NumberLimit:
    """A number that is stopped, by itself or with its carrier, gets no grants."""
    stop = controls.stopped(number_id=limit.number_id, carrier=carrier)
    is_its_own = stop is not None and stop.scope in (Scope.NUMBER, Scope.CARRIER)
    return replace(limit, max_channels=0) if is_its_own else limit
