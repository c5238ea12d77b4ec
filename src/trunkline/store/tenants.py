"""Resellers and their merchants, and what each tenant may see."""

from dataclasses import dataclass
from datetime import datetime

import asyncpg

from trunkline.store.database import Connection
from trunkline.store.rows import pick, pick_or_none
from trunkline.store.sql import Area
from trunkline.value import Value

_SQL = Area("tenants")
_KEYS_SQL = Area("keys")


class Tenant(Value, frozen=True):
    """Whose rows a query may see: all (the platform), a reseller's, or one merchant's."""

    reseller_id: str | None = None
    merchant_id: str | None = None

    @property
    def is_platform(self) -> bool:
        return self.reseller_id is None

    def owns(self, other: "Tenant") -> bool:
        """Whether `other` is this tenant or below it."""
        return self.reseller_id in (None, other.reseller_id) and self.merchant_id in (None, other.merchant_id)


PLATFORM = Tenant()


@dataclass(frozen=True, slots=True)
class Reseller:
    id: str
    name: str
    created_at: datetime

    @property
    def tenant(self) -> Tenant:
        return Tenant(self.id)


@dataclass(frozen=True, slots=True)
class Merchant:
    id: str
    reseller_id: str
    name: str
    default_region: str | None
    default_pool_id: str | None
    weight: int
    max_concurrent: int | None
    agents: str
    created_at: datetime

    @property
    def tenant(self) -> Tenant:
        return Tenant(self.reseller_id, self.id)


@dataclass(frozen=True, slots=True)
class MerchantChange:
    """None means unchanged, except where the flag says that None is the new value."""

    name: str | None = None
    weight: int | None = None
    set_region: bool = False
    default_region: str | None = None
    set_pool: bool = False
    default_pool_id: str | None = None
    set_max_concurrent: bool = False
    max_concurrent: int | None = None
    agents: str | None = None


@dataclass(frozen=True, slots=True)
class InUse:
    """Why something cannot be removed: rows of `table` refer to it."""

    table: str


async def insert_reseller(tx: Connection, reseller_id: str, name: str) -> Reseller | None:
    return pick_or_none(Reseller, await tx.fetchrow(_SQL.insert_reseller, reseller_id, name))


async def get_reseller(tx: Connection, tenant: Tenant, reseller_id: str) -> Reseller | None:
    row = await tx.fetchrow(_SQL.get_reseller, tenant.reseller_id, tenant.merchant_id, reseller_id)
    return pick_or_none(Reseller, row)


async def list_resellers(tx: Connection, tenant: Tenant, *, after: str, limit: int) -> list[Reseller]:
    rows = await tx.fetch(_SQL.list_resellers, tenant.reseller_id, tenant.merchant_id, after, limit)
    return [pick(Reseller, row) for row in rows]


async def update_reseller(tx: Connection, reseller_id: str, name: str | None) -> Reseller | None:
    return pick_or_none(Reseller, await tx.fetchrow(_SQL.update_reseller, reseller_id, name))


async def delete_reseller(tx: Connection, reseller_id: str) -> InUse | None:
    await tx.execute(_KEYS_SQL.forget_dead, reseller_id, None)
    return await delete(tx, _SQL.delete_reseller, reseller_id)


async def insert_merchant(
    tx: Connection,
    merchant_id: str,
    *,
    reseller_id: str,
    name: str,
    default_region: str | None,
    default_pool_id: str | None,
    weight: int,
    max_concurrent: int | None = None,
    agents: str = "ours",
) -> Merchant | None:
    row = await tx.fetchrow(
        _SQL.insert_merchant,
        merchant_id,
        reseller_id,
        name,
        default_region,
        default_pool_id,
        weight,
        max_concurrent,
        agents,
    )
    return pick_or_none(Merchant, row)


async def get_merchant(tx: Connection, tenant: Tenant, merchant_id: str) -> Merchant | None:
    row = await tx.fetchrow(_SQL.get_merchant, tenant.reseller_id, tenant.merchant_id, merchant_id)
    return pick_or_none(Merchant, row)


async def list_merchants(
    tx: Connection, tenant: Tenant, *, reseller_id: str | None, after: str, limit: int
) -> list[Merchant]:
    rows = await tx.fetch(
        _SQL.list_merchants, tenant.reseller_id, tenant.merchant_id, after, reseller_id, limit
    )
    return [pick(Merchant, row) for row in rows]


async def update_merchant(tx: Connection, merchant_id: str, change: MerchantChange) -> Merchant | None:
    row = await tx.fetchrow(
        _SQL.update_merchant,
        merchant_id,
        change.name,
        change.weight,
        change.set_region,
        change.default_region,
        change.set_pool,
        change.default_pool_id,
        change.set_max_concurrent,
        change.max_concurrent,
        change.agents,
    )
    return pick_or_none(Merchant, row)


async def delete_merchant(tx: Connection, merchant_id: str) -> InUse | None:
    await tx.execute(_KEYS_SQL.forget_dead, None, merchant_id)
    return await delete(tx, _SQL.delete_merchant, merchant_id)


async def delete(tx: Connection, statement: str, key: object) -> InUse | None:
    """Delete by a statement whose foreign keys decide. After `InUse` only a rollback is possible."""
    try:
        await tx.execute(statement, key)
    except asyncpg.ForeignKeyViolationError as error:
        return InUse(error.table_name or "other objects")
    return None
