"""Tenants' webhook endpoints for events. Secrets arrive here sealed."""

from dataclasses import dataclass
from uuid import UUID

from trunkline.schema.webhook_endpoints import WebhookEndpoint
from trunkline.store.database import Connection
from trunkline.store.rows import pick_or_none
from trunkline.store.sql import Area, query
from trunkline.store.tables import LAST_ID, Table
from trunkline.store.tenants import Tenant

_SQL = Area("webhook_endpoints")


ENDPOINTS = Table(
    WebhookEndpoint,
    get=_SQL.get,
    select=_SQL.list,
    insert=query("webhook_endpoints/insert"),
    update=query("webhook_endpoints/update"),
    start=LAST_ID,
)


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """An endpoint as a delivery sees it."""

    id: UUID
    url: str
    status: str
    secret_sealed: bytes
    old_secret_sealed: bytes | None


async def by_url(conn: Connection, tenant: Tenant, url: str) -> WebhookEndpoint | None:
    return ENDPOINTS.row(await conn.fetchrow(_SQL.by_url, tenant.reseller_id, tenant.merchant_id, url))


async def rotate(
    tx: Connection, endpoint_id: UUID, secret_sealed: bytes, *, overlap_s: float
) -> WebhookEndpoint | None:
    return ENDPOINTS.row(await tx.fetchrow(_SQL.rotate, endpoint_id, secret_sealed, overlap_s))


async def disable(tx: Connection, endpoint_id: UUID, reason: str) -> bool:
    return await tx.fetchval(_SQL.disable, endpoint_id, reason) is not None


async def delete(tx: Connection, endpoint_id: UUID) -> None:
    await tx.execute(_SQL.delete, endpoint_id)


async def subscribed(tx: Connection, tenant: Tenant, event_type: str) -> list[UUID]:
    rows = await tx.fetch(_SQL.subscribed, tenant.reseller_id, tenant.merchant_id, event_type)
    return [row["id"] for row in rows]


async def for_delivery(conn: Connection, endpoint_id: UUID) -> WebhookTarget | None:
    return pick_or_none(WebhookTarget, await conn.fetchrow(_SQL.for_delivery, endpoint_id))
