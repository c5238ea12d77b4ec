"""Changes of stored leads. Each is made under the lead's lock, and raises its version."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.leads import StoredLead
from trunkline.store.rows import pick
from trunkline.store.sql import Area
from trunkline.store.tenants import Tenant

_SQL = Area("leads")
_HANG_UPS_SQL = Area("hang_ups")


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
