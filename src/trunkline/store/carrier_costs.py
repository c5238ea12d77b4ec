"""The carriers' prices of calls, and up to when they were read."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from trunkline.store.database import Connection
from trunkline.store.sql import Area
from trunkline.value import Value

_SQL = Area("carrier_costs")


class CostReading(Value, frozen=True):
    """The calls of an account that ended in a period, to be read `lag_s` after it."""

    carrier: str
    account: str
    lag_s: int
    since: datetime
    until: datetime


async def claim(
    conn: Connection, carriers: Collection[str], lags_s: Sequence[int], *, lease_s: float
) -> list[CostReading]:
    rows = await conn.fetch(_SQL.claim, list(carriers), lags_s, lease_s)
    return [CostReading(**row) for row in rows]


async def record(conn: Connection, carrier: str, costs: Mapping[str, tuple[int, str]]) -> int:
    """By call id: micros and currency. Returns how many calls of ours had none before."""
    if not costs:
        return 0
    micros, currencies = zip(*costs.values(), strict=True)
    return len(await conn.fetch(_SQL.record, carrier, list(costs), micros, currencies))


async def done(conn: Connection, reading: CostReading, *, is_complete: bool) -> None:
    until = reading.until if is_complete else None
    await conn.execute(_SQL.done, reading.carrier, reading.account, reading.lag_s, until)
