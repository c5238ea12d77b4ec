"""When carriers were last asked about calls that go on, and who asks next."""

from collections.abc import Collection, Mapping
from datetime import datetime
from uuid import UUID

from trunkline.states import AttemptState
from trunkline.store.database import Connection
from trunkline.store.sql import Area
from trunkline.value import Private, Value

_SQL = Area("live_looks")


class LiveCall(Value, frozen=True):
    """A call that goes on, as far as we know."""

    id: UUID
    lead_id: UUID | None
    state: AttemptState
    carrier_call_id: str
    to_phone: Private[str]
    from_phone: Private[str]
    send_at: datetime
    age_s: float


async def claim(
    conn: Connection, *, lease_s: float, every_s: float, silent_while_ringing: Collection[str]
) -> list[tuple[str, str]]:
    """Accounts whose calls are to be compared now, by this process: carrier and account."""
    rows = await conn.fetch(_SQL.claim, lease_s, every_s, list(silent_while_ringing))
    return [(row["carrier"], row["account"]) for row in rows]


async def calls(conn: Connection, carrier: str, account: str) -> list[LiveCall]:
    rows = await conn.fetch(_SQL.calls, carrier, account)
    return [LiveCall(**{**row, "state": AttemptState(row["state"])}) for row in rows]


async def looked(conn: Connection, seen: Mapping[UUID, bool], *, quiet_s: float) -> None:
    """The carrier told of these attempts; True of those that ring or talk."""
    if seen:
        await conn.execute(_SQL.looked, list(seen), list(seen.values()), quiet_s)


async def done(conn: Connection, carrier: str, account: str, *, next_in_s: float) -> None:
    await conn.execute(_SQL.done, carrier, account, next_in_s)


async def soon(conn: Connection, carrier: str, account: str) -> None:
    await conn.execute(_SQL.soon, carrier, account)


async def heard(conn: Connection, *, gap_s: float) -> int:
    """Webhooks can be taken; the accounts that are asked about because they could not be for too long."""
    return len(await conn.fetch(_SQL.heard, gap_s))


async def oldest(conn: Connection) -> dict[str, float]:
    """By carrier: the age of the oldest word on a call that goes on, in seconds."""
    return {row["carrier"]: row["age_s"] for row in await conn.fetch(_SQL.oldest)}
