"""Reminders: series and their occurrences. `trunkline.reminders` interprets them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from trunkline.schema.reminders import Occurrence, Reminder
from trunkline.store.database import Connection
from trunkline.store.rows import columns, pick, pick_or_none
from trunkline.store.sql import Area
from trunkline.store.tenants import Tenant

_SQL = Area("reminders")


@dataclass(frozen=True, slots=True)
class NewReminder:
    id: UUID
    reseller_id: str
    merchant_id: str
    request_id: str | None
    request_hash: bytes
    phone: str
    timezone: str
    starts_at: datetime
    rrule: str | None
    message: str | None
    assistant_id: str | None
    payload: dict[str, Any]
    carrier: str | None
    pool_id: str
    has_windows: bool
    priority: int
    max_attempts: int
    late_s: int
    reporting_webhook_url: str | None
    next_wall: datetime
    next_at: datetime
    next_no: int


@dataclass(frozen=True, slots=True)
class StoredReminder(Reminder):
    """A series. `next_wall`, `next_at` and `next_no` are the occurrence to be made next. Without one the series is
    active until its last occurrence has ended."""

    request_hash: bytes
    has_windows: bool
    next_no: int
    last_at: datetime | None
    # Postgres's clock when this was read.
    now: datetime

    @property
    def tenant(self) -> Tenant:
        return Tenant(self.reseller_id, self.merchant_id)

    @property
    def campaign_id(self) -> UUID | None:
        """The campaign id of its own windows."""
        return self.id if self.has_windows else None


@dataclass(frozen=True, slots=True)
class NewOccurrence:
    id: UUID
    reminder_id: UUID
    wall_at: datetime
    scheduled_at: datetime
    state: str
    skip_reason: str | None
    max_attempts: int
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class OpenLead:
    """The lead of an occurrence that has not ended."""

    id: UUID
    lead_id: UUID
    wall_at: datetime


@dataclass(frozen=True, slots=True)
class WaitingOccurrence:
    """An occurrence that waits as a lead: it rings next."""

    reminder_id: UUID
    lead_id: UUID
    wall_at: datetime
    due_at: datetime


async def insert(tx: Connection, new: NewReminder) -> StoredReminder | None:
    """None if the merchant has sent this request before."""
    values = (getattr(new, name) for name in NewReminder.__dataclass_fields__)
    return pick_or_none(StoredReminder, await tx.fetchrow(_SQL.insert, *values))


async def by_request(tx: Connection, merchant_id: str, request_id: str | None) -> StoredReminder | None:
    return pick_or_none(StoredReminder, await tx.fetchrow(_SQL.by_request, merchant_id, request_id))


async def get(conn: Connection, tenant: Tenant, reminder_id: UUID) -> StoredReminder | None:
    row = await conn.fetchrow(_SQL.get, tenant.reseller_id, tenant.merchant_id, reminder_id)
    return pick_or_none(StoredReminder, row)


async def lock(tx: Connection, tenant: Tenant, reminder_id: UUID) -> StoredReminder | None:
    row = await tx.fetchrow(_SQL.lock, tenant.reseller_id, tenant.merchant_id, reminder_id)
    return pick_or_none(StoredReminder, row)


async def list_reminders(
    conn: Connection,
    tenant: Tenant,
    *,
    merchant_id: str | None,
    status: str | None,
    phone: str | None,
    before: UUID,
    limit: int,
) -> list[StoredReminder]:
    rows = await conn.fetch(
        _SQL.list, tenant.reseller_id, tenant.merchant_id, before, merchant_id, status, phone, limit
    )
    return [pick(StoredReminder, row) for row in rows]


async def due(conn: Connection, *, horizon_s: float, limit: int) -> list[UUID]:
    return [row["id"] for row in await conn.fetch(_SQL.due, horizon_s, limit)]


async def claim(tx: Connection, reminder_id: UUID, *, horizon_s: float) -> StoredReminder | None:
    """None if another process has it, or has made its occurrence already."""
    return pick_or_none(StoredReminder, await tx.fetchrow(_SQL.claim, reminder_id, horizon_s))


async def move(tx: Connection, reminder: StoredReminder) -> StoredReminder:
    """Write the position of a locked series."""
    row = await tx.fetchrow(
        _SQL.move,
        reminder.id,
        reminder.status,
        reminder.ended_reason,
        reminder.next_wall,
        reminder.next_at,
        reminder.next_no,
        reminder.last_at,
    )
    return _changed(row)


async def pause_broken(tx: Connection, reminder_id: UUID) -> None:
    """Pause it at its position."""
    await tx.execute(_SQL.pause_broken, reminder_id)


async def edit(tx: Connection, reminder_id: UUID, changes: Mapping[str, Any]) -> StoredReminder:
    names = ("message", "assistant_id", "payload", "priority", "max_attempts", "late_s")
    return _changed(await tx.fetchrow(_SQL.edit, reminder_id, *(changes.get(name) for name in names)))


def _changed(row: Any) -> StoredReminder:
    assert row is not None, "a reminder that is locked does not go away"
    return pick(StoredReminder, row)


async def insert_occurrence(tx: Connection, new: NewOccurrence) -> bool:
    """False if it was made or skipped before."""
    values = (getattr(new, name) for name in NewOccurrence.__dataclass_fields__)
    return await tx.fetchval(_SQL.insert_occurrence, *values) is not None


async def give_lead(
    tx: Connection, occurrence_id: UUID, lead_id: UUID | None, lead_version: int | None, error: str | None
) -> None:
    await tx.execute(_SQL.give_lead, occurrence_id, lead_id, lead_version, error)


async def open_leads(tx: Connection, reminder_id: UUID, wall_at: datetime | None = None) -> list[OpenLead]:
    return [pick(OpenLead, row) for row in await tx.fetch(_SQL.open_leads, reminder_id, wall_at)]


async def waiting(conn: Connection, reminder_ids: Sequence[UUID]) -> list[WaitingOccurrence]:
    """The waiting occurrences of these series, in order."""
    return [pick(WaitingOccurrence, row) for row in await conn.fetch(_SQL.waiting, reminder_ids)]


async def finish(tx: Connection, reminder: StoredReminder) -> StoredReminder:
    """End a locked series if it has no occurrence left."""
    return pick_or_none(StoredReminder, await tx.fetchrow(_SQL.finish, reminder.id)) or reminder


async def finish_all(conn: Connection) -> int:
    """End every series without an occurrence left."""
    return len(await conn.fetch(_SQL.finish, None))


async def skip(tx: Connection, lead_ids: Sequence[UUID], reason: str) -> int:
    return len(await tx.fetch(_SQL.skip, lead_ids, reason))


async def known_walls(conn: Connection, reminder_id: UUID, walls: Sequence[datetime]) -> dict[datetime, str]:
    """Of these wall times, those that have an occurrence, and its state."""
    rows = await conn.fetch(_SQL.known_walls, reminder_id, walls)
    return {row["wall_at"]: row["state"] for row in rows}


async def occurrences(
    conn: Connection, reminder_id: UUID, *, before: datetime, limit: int
) -> list[Occurrence]:
    return [pick(Occurrence, row) for row in await conn.fetch(_SQL.occurrences, reminder_id, before, limit)]


async def pool(conn: Connection, merchant_id: str, pool_id: str | None, carrier: str | None) -> str | None:
    """The pool that dials a merchant's reminders. None: there is no such pool."""
    found_pool: str | None = await conn.fetchval(_SQL.pool, merchant_id, pool_id, carrier)
    return found_pool


@dataclass(frozen=True, slots=True)
class Followed:
    """An occurrence as it was last written, and its lead and newest attempt as they are now."""

    id: UUID
    reminder_id: UUID
    state: str
    attempt_count: int
    external_call_id: str | None
    last_error: str | None
    max_attempts: int
    # Attempts that were logged, and how many of them were followed by a retry.
    attempts_told: int
    retries_told: int
    lead_version: int
    lead_status: str
    outcome: str | None
    outcome_reason: str | None
    due_at: datetime
    lead_attempts: int
    carrier_error_count: int
    no_agent_count: int
    attempt_id: UUID | None
    carrier_call_id: str | None
    answered_at: datetime | None
    end_reason: str | None
    agent: str | None
    attempt_no: int | None
    # Of every attempt in order, those that the carrier refused included. They are not counted, so their numbers repeat.
    attempt_nos: Sequence[int]


@dataclass(frozen=True, slots=True)
class StateChange:
    id: UUID
    state: str
    lead_version: int
    attempt_count: int
    next_retry_at: datetime | None
    last_error: str | None
    idempotency_key: str | None
    external_call_id: str | None
    attempts_told: int
    retries_told: int


async def changed_occurrences(tx: Connection, *, limit: int) -> list[Followed]:
    return [pick(Followed, row) for row in await tx.fetch(_SQL.changed, limit)]


async def write_states(tx: Connection, changes: Sequence[StateChange]) -> None:
    await tx.execute(_SQL.write_states, *columns(changes, *StateChange.__dataclass_fields__))
