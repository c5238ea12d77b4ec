"""Whose leads this platform dispatches: the flag `event_dispatch`, evaluated per merchant, and the stops of operators.

Leads of the others are ingested and stored: another system still calls them. The match grants none of them, and the
intent checks again.

Turning it on for merchants is a cutover. Their leads are ingested here before it too, so that it needs no flag day.
Leads that were due before it belong to the other system, which has called them. No person may be called twice because
of a flag, so they are not called here, unless the operator who turns it on confirms their number.
"""

import random
import time
from collections.abc import Mapping, Sequence
from uuid import UUID

from trunkline.control.controls import Controls, StopTarget
from trunkline.control.flags import EVENT_DISPATCH, Flags, decide
from trunkline.schema.flags import Flag
from trunkline.store import cutovers, schedule
from trunkline.store.database import Connection
from trunkline.value import Value

LEFT_OUT = EVENT_DISPATCH.name
# A flag service takes tens of microseconds per evaluation, and a batch asks about the same few merchants.
FRESH_S = 0.25


class Rollout:
    def __init__(self, flags: Flags):
        self._flags = flags
        self._decisions: dict[tuple[str, str], bool] = {}
        self._decided_at_s = float("-inf")

    def includes(self, reseller_id: str, merchant_id: str) -> bool:
        if self._flags.is_unset(EVENT_DISPATCH):
            return EVENT_DISPATCH.default
        if time.monotonic() - self._decided_at_s > FRESH_S:
            self._decisions, self._decided_at_s = {}, time.monotonic()
        key = (reseller_id, merchant_id)
        if key not in self._decisions:
            self._decisions[key] = self._flags.is_on(
                EVENT_DISPATCH, reseller_id=reseller_id, merchant_id=merchant_id
            )
        return self._decisions[key]

    async def left_out(self, conn: Connection) -> Sequence[str]:
        """The merchants with waiting leads that are not called here."""
        if self._flags.is_unset(EVENT_DISPATCH):
            return ()
        waiting = await schedule.waiting_merchants(conn)
        off = [merchant for reseller, merchant in waiting if not self.includes(reseller, merchant)]
        if self._flags.is_hosted:
            # Our own flags write the cutover with the change. A hosted service does not report its changes.
            recorded = await cutovers.left_out(conn)
            on = [merchant for reseller, merchant in recorded if self.includes(reseller, merchant)]
            new = set(off) - {merchant for _, merchant in recorded}
            if on or new:
                await cutovers.observe(conn, sorted(new), sorted(on))
        return off


class DialStops:
    """The intent checks this: what was stopped after the match is not dialled. After a stop has ended, only a growing
    share of the calls starts. The result is stored with the lead, and its tenant reads it: it names the level at which
    calls are stopped, and not the reason that an operator above the tenant wrote."""

    def __init__(self, controls: Controls, rollout: Rollout | None = None):
        self._controls = controls
        self._rollout = rollout

    def __call__(
        self, reseller_id: str, merchant_id: str, campaign_id: UUID | None, number_id: UUID, carrier: str
    ) -> str | None:
        target: StopTarget = {
            "reseller_id": reseller_id,
            "merchant_id": merchant_id,
            "campaign_id": campaign_id,
            "number_id": number_id,
            "carrier": carrier,
        }
        if stop := self._controls.stopped(**target):
            return stop.scope
        if self._rollout and not self._rollout.includes(reseller_id, merchant_id):
            return LEFT_OUT
        if not self._controls.in_force:
            return None
        share = self._controls.share(**target)
        # Not a secret: which calls of a share go first does not matter.
        return None if random.random() < share else "resuming"  # noqa: S311  no secret


class Cutover(Value, frozen=True):
    """The effect of a change of the flag: the merchants for which it turns dispatch on and off, and by merchant the
    leads that were due before, of those it turns on."""

    turned_on: tuple[str, ...]
    turned_off: tuple[str, ...]
    overdue: Mapping[str, int]

    @property
    def overdue_count(self) -> int:
        return sum(self.overdue.values())


NOTHING = Cutover((), (), {})


async def foresee(conn: Connection, before: Flag | None, after: Flag | None) -> Cutover:
    """None is a flag that is not set."""
    on: list[str] = []
    off: list[str] = []
    for reseller_id, merchant_id in await cutovers.merchants(conn):
        was, will_be = (_is_on(flag, reseller_id, merchant_id) for flag in (before, after))
        if was != will_be:
            (on if will_be else off).append(merchant_id)
    return Cutover(tuple(sorted(on)), tuple(sorted(off)), await cutovers.overdue(conn, on) if on else {})


async def carry_out(tx: Connection, cutover: Cutover, *, take_overdue: bool) -> None:
    """In the transaction of the flag."""
    if take_overdue:
        await cutovers.drop(tx, cutover.turned_on)
    else:
        await cutovers.begin(tx, cutover.turned_on)


def _is_on(flag: Flag | None, reseller_id: str, merchant_id: str) -> bool:
    if flag is None:
        return EVENT_DISPATCH.default
    return decide(flag, reseller_id=reseller_id, merchant_id=merchant_id, key=merchant_id)[0]
