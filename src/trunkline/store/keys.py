"""API keys, by their hashes. The keys themselves are nowhere in the database."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.rows import pick, pick_or_none
from trunkline.store.sql import Area
from trunkline.store.tenants import Tenant

_SQL = Area("keys")


@dataclass(frozen=True, slots=True)
class ApiKey:
    id: UUID
    hint: str
    name: str
    scopes: list[str]
    reseller_id: str | None
    merchant_id: str | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None

    @property
    def tenant(self) -> Tenant:
        return Tenant(self.reseller_id, self.merchant_id)


@dataclass(frozen=True, slots=True)
class NewKey:
    id: UUID
    key_hash: bytes
    hint: str
    name: str
    scopes: list[str]
    tenant: Tenant
    created_by: str
    expires_at: datetime | None = None


async def insert(tx: Connection, key: NewKey) -> ApiKey | None:
    row = await tx.fetchrow(
        _SQL.insert,
        key.id,
        key.key_hash,
        key.hint,
        key.name,
        key.scopes,
        key.tenant.reseller_id,
        key.tenant.merchant_id,
        key.created_by,
        key.expires_at,
    )
    return pick_or_none(ApiKey, row)


async def by_hash(tx: Connection, key_hash: bytes) -> ApiKey | None:
    return pick_or_none(ApiKey, await tx.fetchrow(_SQL.by_hash, key_hash))


async def get(tx: Connection, tenant: Tenant, key_id: UUID) -> ApiKey | None:
    return pick_or_none(ApiKey, await tx.fetchrow(_SQL.get, tenant.reseller_id, tenant.merchant_id, key_id))


async def list_keys(tx: Connection, tenant: Tenant, *, after: UUID, limit: int) -> list[ApiKey]:
    rows = await tx.fetch(_SQL.list, tenant.reseller_id, tenant.merchant_id, after, limit)
    return [pick(ApiKey, row) for row in rows]


async def revoke(tx: Connection, key_id: UUID) -> ApiKey | None:
    return pick_or_none(ApiKey, await tx.fetchrow(_SQL.revoke, key_id))
