"""Changes of stored leads: edits, aborts, reopenings, and the end of leads that lapsed. Each is made under the lead's
lock, and raises its version."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.leads import StoredLead
from trunkline.store.rows import columns, pick, pick_or_none
from trunkline.store.sql import Area
from trunkline.store.tenants import Tenant

_SQL = Area("leads")
_HANG_UPS_SQL = Area("hang_ups")
_LAPSES_SQL = Area("lapses")


@dataclass(frozen=True, slots=True)
class Reschedule:
    """The requested time; when its window opens, and closes."""

    wanted_at: datetime
    due_at: datetime | None = None
    closes_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class LeadChange:
    """None means unchanged, except where the flag says that None is the new value."""

    priority: int | None = None
    pool_id: str | None = None
    payload: dict[str, Any] | None = None
    max_attempts: int | None = None
    set_webhook: bool = False
    reporting_webhook_url: str | None = None
    set_expiry: bool = False
    expires_at: datetime | None = None
    reschedule: Reschedule | None = None


async def lock(tx: Connection, tenant: Tenant, lead_ids: Sequence[UUID]) -> dict[UUID, StoredLead]:
    """Those of the leads that are the tenant's, locked against other changes."""
    rows = await tx.fetch(_SQL.lock, tenant.reseller_id, tenant.merchant_id, lead_ids)
    return {row["id"]: pick(StoredLead, row) for row in rows}


async def is_cancelled(conn: Connection, lead_id: UUID) -> bool:
    return bool(await conn.fetchval(_SQL.is_cancelled, lead_id))


async def edit(tx: Connection, lead_id: UUID, change: LeadChange) -> StoredLead:
    """The caller has locked the lead and found it waiting."""
    when = change.reschedule
    row = await tx.fetchrow(
        _SQL.edit,
        lead_id,
        change.priority,
        change.pool_id,
        change.payload,
        change.max_attempts,
        change.reporting_webhook_url,
        change.set_webhook,
        when is not None,
        when and when.wanted_at,
        when and when.due_at,
        when and when.closes_at,
        change.expires_at,
        change.set_expiry,
    )
    return _changed(row)


async def make_due(tx: Connection, lead_id: UUID) -> StoredLead:
    """The caller has locked the lead and found it waiting."""
    return _changed(await tx.fetchrow(_SQL.due_now, lead_id))


def _changed(row: Any) -> StoredLead:
    assert row is not None, "a lead that is locked does not go away"
    return pick(StoredLead, row)


async def abort(tx: Connection, lead_ids: Sequence[UUID], reason: str) -> list[StoredLead]:
    """End those of the locked leads that wait."""
    return [pick(StoredLead, row) for row in await tx.fetch(_SQL.abort, lead_ids, reason)]


async def request_cancel(
    tx: Connection, lead_ids: Sequence[UUID], reason: str, *, hang_up: bool
) -> list[StoredLead]:
    """Let those of the locked leads that are being called end with their call, or hang it up."""
    rows = await tx.fetch(_SQL.cancel, lead_ids, reason)
    if hang_up:
        await tx.execute(_HANG_UPS_SQL.request, lead_ids)
    return [pick(StoredLead, row) for row in rows]


@dataclass(frozen=True, slots=True)
class ReopeningFacts:
    """Beside the lead's own row."""

    # The same order was given before.
    is_repeat: bool
    # A call of it is live, whatever its status is.
    is_live: bool
    # Attempts in state `unknown`: the checker must query their carriers first.
    unknown_attempts: Sequence[UUID]
    # The carrier was queried about its last call, and had none.
    is_last_absent: bool
    is_listed: bool
    campaign_status: str | None


@dataclass(frozen=True, slots=True)
class ReopenOrder:
    request_id: str
    reason: str
    actor: str


@dataclass(frozen=True, slots=True)
class Reopened:
    """The new state of one lead."""

    id: UUID
    wanted_at: datetime
    due_at: datetime | None
    closes_at: datetime | None
    max_attempts: int


@dataclass(frozen=True, slots=True)
class Reopening:
    """An executed order, and how the lead had ended before it."""

    lead_id: UUID
    no: int
    request_id: str
    reason: str
    actor: str
    at: datetime
    outcome: str
    outcome_reason: str | None
    finished_at: datetime


@dataclass(frozen=True, slots=True)
class EndedFilter:
    outcomes: Sequence[str]
    since: datetime
    before: datetime
    merchant_id: str | None = None
    campaign_id: UUID | None = None
    phone: str | None = None


# When the last lead of the page before ended, and its id.
EndedCursor = tuple[datetime, UUID]
FIRST_PAGE: EndedCursor = (datetime.min.replace(tzinfo=UTC), UUID(int=0))


async def reopening_facts(
    tx: Connection, lead_ids: Sequence[UUID], request_id: str
) -> dict[UUID, ReopeningFacts]:
    """The caller has locked the leads."""
    rows = await tx.fetch(_SQL.reopening_facts, lead_ids, request_id)
    return {row["id"]: pick(ReopeningFacts, row) for row in rows}


async def reopen(tx: Connection, reopened: Sequence[Reopened], order: ReopenOrder) -> list[StoredLead]:
    """Those of the locked leads that have finished wait again."""
    if not reopened:
        return []
    arrays = columns(reopened, *Reopened.__dataclass_fields__)
    rows = await tx.fetch(_SQL.reopen, *arrays, order.request_id, order.reason, order.actor)
    return [pick(StoredLead, row) for row in rows]


async def reopening(conn: Connection, lead_id: UUID, no: int) -> Reopening | None:
    return pick_or_none(Reopening, await conn.fetchrow(_SQL.reopening, lead_id, no))


async def list_ended(
    conn: Connection,
    tenant: Tenant,
    wanted: EndedFilter,
    *,
    request_id: str,
    after: EndedCursor,
    limit: int,
) -> list[StoredLead]:
    rows = await conn.fetch(_SQL.list_ended, *_filter(tenant, wanted, request_id), *after, limit)
    return [pick(StoredLead, row) for row in rows]


async def count_ended(
    conn: Connection, tenant: Tenant, wanted: EndedFilter, *, request_id: str, limit: int
) -> int:
    return int(await conn.fetchval(_SQL.count_ended, *_filter(tenant, wanted, request_id), limit))


def _filter(tenant: Tenant, wanted: EndedFilter, request_id: str) -> tuple[Any, ...]:
    return (
        tenant.reseller_id,
        tenant.merchant_id,
        wanted.merchant_id,
        wanted.campaign_id,
        wanted.phone,
        wanted.outcomes,
        wanted.since,
        wanted.before,
        request_id,
    )


async def expire(conn: Connection, limit: int) -> int:
    """Returns how many leads were past their expiry."""
    return len(await conn.fetch(_LAPSES_SQL.expire, limit))


async def end_cut_over(conn: Connection, limit: int) -> int:
    """Returns how many leads were due before their merchant's cutover."""
    return len(await conn.fetch(_LAPSES_SQL.end_cut_over, limit))


async def forget_cutovers(conn: Connection) -> None:
    """Those without a lead left to end."""
    await conn.execute(_LAPSES_SQL.forget_cutovers)
