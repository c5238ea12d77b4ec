"""Cutover: turns event dispatch on for merchants whose leads another system has called until now.

Such leads are ingested here too before the cutover, so that it needs no flag day. Leads that were due before it belong
to the other system, which has called them. No person may be called twice because of a flag, so they are not called
here, unless the operator who turns it on confirms their number.
"""

from collections.abc import Mapping

from trunkline.control.flags import EVENT_DISPATCH, decide
from trunkline.store import cutovers
from trunkline.store.database import Connection
from trunkline.store.flags import Flag
from trunkline.value import Value


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
