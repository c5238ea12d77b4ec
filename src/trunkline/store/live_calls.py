"""When carriers were last queried about live calls, and which process does it next."""

from collections.abc import Collection, Mapping
from datetime import datetime
from uuid import UUID

from trunkline.states import AttemptState
from trunkline.store.database import Connection
from trunkline.store.sql import Area
from trunkline.value import Private, Value

_SQL = Area("live_calls")


class LiveCall(Value, frozen=True):
    """A live call, as far as its attempt shows."""

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
    """Accounts whose calls this process is to compare now: carrier and account."""
    rows = await conn.fetch(_SQL.claim, lease_s, every_s, list(silent_while_ringing))
    return [(row["carrier"], row["account"]) for row in rows]


async def calls(conn: Connection, carrier: str, account: str) -> list[LiveCall]:
    rows = await conn.fetch(_SQL.calls, carrier, account)
    return [LiveCall(**{**row, "state": AttemptState(row["state"])}) for row in rows]


async def note_checked(conn: Connection, seen: Mapping[UUID, bool], *, quiet_s: float) -> None:
    """The carrier listed these attempts; True for those that ring or are answered."""
    if seen:
        await conn.execute(_SQL.note_checked, list(seen), list(seen.values()), quiet_s)


async def done(conn: Connection, carrier: str, account: str, *, next_in_s: float) -> None:
    await conn.execute(_SQL.done, carrier, account, next_in_s)


async def check_soon(conn: Connection, carrier: str, account: str) -> None:
    await conn.execute(_SQL.check_soon, carrier, account)


async def note_receiving(conn: Connection, *, gap_s: float) -> int:
    """Record that webhooks can be received. Returns the number of accounts to read because they could not be for too
    long."""
    return len(await conn.fetch(_SQL.note_receiving, gap_s))


async def oldest(conn: Connection) -> dict[str, float]:
    """By carrier: the age of the oldest report on a live call, in seconds."""
    return {row["carrier"]: row["age_s"] for row in await conn.fetch(_SQL.oldest)}
