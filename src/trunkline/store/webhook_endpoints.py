"""Tenants' webhook endpoints for events. Secrets arrive here sealed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.rows import pick, pick_or_none
from trunkline.store.sql import Area
from trunkline.store.tenants import Tenant

_SQL = Area("webhook_endpoints")


@dataclass(frozen=True, slots=True)
class Endpoint:
    id: UUID
    reseller_id: str
    merchant_id: str | None
    url: str
    event_types: list[str]
    status: str
    disabled_reason: str | None
    old_secret_until: datetime | None
    created_at: datetime
    updated_at: datetime

    @property
    def tenant(self) -> Tenant:
        return Tenant(self.reseller_id, self.merchant_id)


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """An endpoint as a delivery sees it."""

    id: UUID
    url: str
    status: str
    secret_sealed: bytes
    old_secret_sealed: bytes | None


async def insert(
    tx: Connection,
    endpoint_id: UUID,
    tenant: Tenant,
    url: str,
    event_types: Sequence[str],
    secret_sealed: bytes,
) -> Endpoint | None:
    """None: the tenant has an endpoint with this URL."""
    row = await tx.fetchrow(
        _SQL.insert, endpoint_id, tenant.reseller_id, tenant.merchant_id, url, event_types, secret_sealed
    )
    return pick_or_none(Endpoint, row)


async def by_url(conn: Connection, tenant: Tenant, url: str) -> Endpoint | None:
    return pick_or_none(
        Endpoint, await conn.fetchrow(_SQL.by_url, tenant.reseller_id, tenant.merchant_id, url)
    )


async def get(conn: Connection, tenant: Tenant, endpoint_id: UUID) -> Endpoint | None:
    row = await conn.fetchrow(_SQL.get, tenant.reseller_id, tenant.merchant_id, endpoint_id)
    return pick_or_none(Endpoint, row)


async def list_endpoints(conn: Connection, tenant: Tenant, *, before: UUID, limit: int) -> list[Endpoint]:
    rows = await conn.fetch(_SQL.list, tenant.reseller_id, tenant.merchant_id, before, limit)
    return [pick(Endpoint, row) for row in rows]


async def update(
    tx: Connection,
    endpoint_id: UUID,
    *,
    url: str | None = None,
    event_types: Sequence[str] | None = None,
    status: str | None = None,
    reason: str | None = None,
) -> Endpoint | None:
    return pick_or_none(
        Endpoint, await tx.fetchrow(_SQL.update, endpoint_id, url, event_types, status, reason)
    )


async def rotate(
    tx: Connection, endpoint_id: UUID, secret_sealed: bytes, *, overlap_s: float
) -> Endpoint | None:
    return pick_or_none(Endpoint, await tx.fetchrow(_SQL.rotate, endpoint_id, secret_sealed, overlap_s))


async def disable(tx: Connection, endpoint_id: UUID, reason: str) -> bool:
    return await tx.fetchval(_SQL.disable, endpoint_id, reason) is not None


async def delete(tx: Connection, endpoint_id: UUID) -> None:
    await tx.execute(_SQL.delete, endpoint_id)


async def subscribed(tx: Connection, tenant: Tenant, event_type: str) -> list[UUID]:
    rows = await tx.fetch(_SQL.subscribed, tenant.reseller_id, tenant.merchant_id, event_type)
    return [row["id"] for row in rows]


async def for_delivery(conn: Connection, endpoint_id: UUID) -> WebhookTarget | None:
    return pick_or_none(WebhookTarget, await conn.fetchrow(_SQL.for_delivery, endpoint_id))
