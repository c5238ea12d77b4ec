"""The database's identity and progress, a name and a number that only grows; restores of Postgres that they prove; and
the queries that compare and settle them.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.rows import columns, pick, pick_or_none
from trunkline.store.sql import Area
from trunkline.value import Private, Value

_SQL = Area("restores")
_CONTINUITY_SQL = Area("continuity")


@dataclass(frozen=True, slots=True)
class Unsettled:
    """Commits between these two times are lost."""

    backup_at: datetime
    found_at: datetime
    restores: int


@dataclass(frozen=True, slots=True)
class OurNumber:
    e164: str
    id: UUID
    pool_id: str
    carrier: str
    account: str


class WaitingLead(Value, frozen=True):
    id: UUID
    request_id: str
    merchant_id: str
    phone: Private[str]
    pool_id: str
    due_at: datetime
    created_at: datetime


class RestoredCall(Value, frozen=True):
    """A call that becomes an attempt of its lead. `is_last`: none of this lead's calls came after it."""

    id: UUID
    lead_id: UUID
    is_last: bool
    carrier: str
    account: str
    call_id: str
    number_id: UUID
    to_phone: Private[str]
    from_phone: Private[str]
    started_at: datetime
    answered_at: datetime | None
    ended_at: datetime | None
    end_reason: str | None
    duration_s: int | None


async def name_installation(conn: Connection) -> None:
    """Name an installation that has no name yet."""
    await conn.execute(_CONTINUITY_SQL.begin)


async def advance(conn: Connection, installation: UUID, beat: int, beyond: int) -> int | None:
    """From `beat` past `beyond`; None if the database is at another beat."""
    further: int | None = await conn.fetchval(_CONTINUITY_SQL.advance, installation, beat, beyond)
    return further


async def is_empty(conn: Connection) -> bool:
    """Whether this database has no lead to call."""
    return bool(await conn.fetchval(_CONTINUITY_SQL.is_empty))


async def add(tx: Connection, backup_at: datetime, reason: str) -> None:
    await tx.execute(_SQL.add, backup_at, reason)


async def unsettled(conn: Connection) -> Unsettled | None:
    return pick_or_none(Unsettled, await conn.fetchrow(_SQL.unsettled))


async def settle(tx: Connection, found_until: datetime, by: str) -> int:
    """Returns how many were settled."""
    return len(await tx.fetch(_SQL.settle, found_until, by))


async def note_settled(tx: Connection, backup_at: datetime, found_at: datetime, reason: str, by: str) -> None:
    await tx.execute(_SQL.note_settled, backup_at, found_at, reason, by)


async def is_settled_after(tx: Connection, at: datetime) -> bool:
    """Whether a restore that was found after this time is settled. Settling an open one waits for this transaction."""
    return any(row["is_settled"] for row in await tx.fetch(_SQL.are_settled, at))


async def made_meanwhile(
    tx: Connection, due_until: datetime, phones: Collection[str], seen: Collection[UUID]
) -> list[UUID]:
    """Leads of reminders that no comparison has seen."""
    return [row["id"] for row in await tx.fetch(_SQL.made_meanwhile, due_until, list(phones), list(seen))]


async def overflows(conn: Connection) -> dict[str, str | None]:
    """The overflow pool of each pool."""
    return {row["id"]: row["overflow_pool_id"] for row in await conn.fetch(_SQL.pools)}


async def numbers(conn: Connection) -> dict[str, OurNumber]:
    return {row["e164"]: pick(OurNumber, row) for row in await conn.fetch(_SQL.numbers)}


async def unresolved(conn: Connection, calls: Sequence[tuple[str, str, datetime]]) -> set[int]:
    """The indexes of those calls that an attempt without a call id may have placed."""
    to, from_, at = zip(*calls, strict=True) if calls else ((), (), ())
    return {row["place"] for row in await conn.fetch(_SQL.unresolved, to, from_, at)}


async def waiting(conn: Connection, phones: Collection[str]) -> list[WaitingLead]:
    return [WaitingLead(**row) for row in await conn.fetch(_SQL.waiting, list(phones))]


async def live(conn: Connection, until: datetime) -> int:
    """Outbound calls from before then that are not resolved yet."""
    return int(await conn.fetchval(_SQL.live, until))


async def unread(
    conn: Connection, accounts: Sequence[tuple[str, str]], due_until: datetime, *, after: UUID, limit: int
) -> list[UUID]:
    """Leads that were due and that these accounts may have called, by id."""
    carriers, names = [carrier for carrier, _ in accounts], [name for _, name in accounts]
    return [row["id"] for row in await conn.fetch(_SQL.unread, carriers, names, due_until, after, limit)]


async def end_unknown(tx: Connection, lead_ids: Sequence[UUID], reason: str) -> list[UUID]:
    """The caller has locked the leads."""
    return [row["id"] for row in await tx.fetch(_SQL.end_unknown, lead_ids, reason)]


async def restore(
    tx: Connection, calls: Sequence[RestoredCall], by: str, first_channel: int
) -> dict[UUID, UUID]:
    """Insert attempts for these calls. Returns the leads that are being called by them, each with its attempt. The
    caller has locked the leads."""
    values = columns(calls, *RestoredCall.__struct_fields__)
    return {row["lead_id"]: row["id"] for row in await tx.fetch(_SQL.restore, *values, by, first_channel)}
