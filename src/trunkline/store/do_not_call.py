"""Do-not-call lists of a merchant, of a reseller, of the platform. Checked at ingest and inside every intent."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from trunkline.model import new_id
from trunkline.store.database import Connection
from trunkline.store.rows import pick, pick_or_none
from trunkline.store.sql import Area
from trunkline.store.tenants import Tenant

_SQL = Area("do_not_call")


@dataclass(frozen=True, slots=True)
class DoNotCallEntry:
    id: UUID
    phone: str = field(repr=False)
    reseller_id: str | None
    merchant_id: str | None
    reason: str
    expires_at: datetime | None
    created_at: datetime
    created_by: str

    @property
    def tenant(self) -> Tenant:
        return Tenant(self.reseller_id, self.merchant_id)


async def add(
    tx: Connection,
    phones: Sequence[str],
    *,
    owner: Tenant,
    reason: str,
    actor: str,
    expires_at: datetime | None = None,
) -> list[tuple[DoNotCallEntry, bool]]:
    """Each phone once; with every entry, whether it is new."""
    rows = await tx.fetch(
        _SQL.add,
        [new_id() for _ in phones],
        phones,
        owner.reseller_id,
        owner.merchant_id,
        reason,
        expires_at,
        actor,
    )
    return [(pick(DoNotCallEntry, row), row["is_new"]) for row in rows]


async def get(tx: Connection, tenant: Tenant, entry_id: UUID) -> DoNotCallEntry | None:
    return pick_or_none(
        DoNotCallEntry, await tx.fetchrow(_SQL.get, tenant.reseller_id, tenant.merchant_id, entry_id)
    )


async def list_entries(
    tx: Connection, tenant: Tenant, *, phone: str | None, before: UUID, limit: int
) -> list[DoNotCallEntry]:
    rows = await tx.fetch(_SQL.list, tenant.reseller_id, tenant.merchant_id, before, phone, limit)
    return [pick(DoNotCallEntry, row) for row in rows]


async def remove(tx: Connection, entry_id: UUID) -> None:
    await tx.execute(_SQL.remove, entry_id)
