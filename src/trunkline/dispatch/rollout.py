"""Whose leads this platform dispatches: the flag `event_dispatch`, evaluated per merchant.

Leads of the others are ingested and stored: another system still calls them. The match grants none of them, and the
intent checks again. Leads that were due before a merchant was turned on are not called then either: see `cutover`.
"""

import time
from collections.abc import Sequence

from trunkline.control.flags import EVENT_DISPATCH, Flags
from trunkline.store import cutovers, schedule
from trunkline.store.database import Connection

LEFT_OUT = EVENT_DISPATCH.name
# A flag service takes tens of microseconds per evaluation, and a batch asks about the same few merchants.
FRESH_S = 0.25


class Rollout:
    def __init__(self, flags: Flags):
        self._flags = flags
        self._decisions: dict[tuple[str, str], bool] = {}
        self._decided_at_s = float("-inf")

    def includes(self, reseller_id: str, merchant_id: str) -> bool:
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
            await self._observe(conn, off)
        return off

    async def _observe(self, conn: Connection, off: Sequence[str]) -> None:
        """Our own flags write the cutover with the change. A hosted service does not report its changes."""
        recorded = await cutovers.left_out(conn)
        on = [merchant for reseller, merchant in recorded if self.includes(reseller, merchant)]
        new = set(off) - {merchant for _, merchant in recorded}
        if on or new:
            await cutovers.observe(conn, sorted(new), sorted(on))
