"""The circuit breakers of merchants whose calls are answered without an agent. In lock order they come after jobs,
before alarms."""

from collections.abc import Collection
from datetime import datetime

from trunkline.store.database import Connection
from trunkline.store.sql import Area
from trunkline.value import Value

_SQL = Area("brakes")


class BrakeRule(Value, frozen=True):
    """Dials stop for `stop_s` when of the calls answered within `window_s` more than `calls`, and more than `share` of
    them, had no agent."""

    window_s: float = 300.0
    calls: int = 5
    share: float = 0.1
    stop_s: float = 300.0


class Tripped(Value, frozen=True):
    merchant_id: str
    stops_until: datetime
    answered: int
    without: int


async def trip(tx: Connection, merchant_ids: Collection[str], rule: BrakeRule) -> list[Tripped]:
    """Of merchants that just had calls without an agent: those whose dials stop now."""
    ordered_ids = sorted(set(merchant_ids))
    await tx.execute(_SQL.lock, ordered_ids)
    rows = await tx.fetch(_SQL.trip, ordered_ids, rule.window_s, rule.calls, rule.share, rule.stop_s)
    return [Tripped(**row) for row in rows]


async def release(tx: Connection, merchant_ids: Collection[str]) -> list[str]:
    """Of merchants with a call that had its agent: those whose dials were stopped, and start again."""
    rows = await tx.fetch(_SQL.release, sorted(set(merchant_ids)))
    return [row["merchant_id"] for row in rows]
