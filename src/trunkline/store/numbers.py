"""Number pools and the numbers in them."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.rows import pick, pick_or_none
from trunkline.store.sql import Area
from trunkline.store.tenants import InUse, Tenant, delete

_SQL = Area("numbers")


@dataclass(frozen=True, slots=True)
class Pool:
    id: str
    reseller_id: str | None
    merchant_id: str | None
    name: str
    overflow_pool_id: str | None
    overflow_after_s: float | None
    region_affinity: bool
    agents: str
    created_at: datetime

    @property
    def tenant(self) -> Tenant:
        return Tenant(self.reseller_id, self.merchant_id)


@dataclass(frozen=True, slots=True)
class Number:
    id: UUID
    e164: str
    pool_id: str
    reseller_id: str | None
    merchant_id: str | None
    carrier: str
    account: str
    max_channels: int
    starts_per_s: float | None
    status: str
    # How many calls hold a channel of it right now. None where the reader must not see it.
    channels_held: int | None
    version: int
    created_at: datetime
    updated_at: datetime

    @property
    def tenant(self) -> Tenant:
        return Tenant(self.reseller_id, self.merchant_id)


@dataclass(frozen=True, slots=True)
class NewNumber:
    id: UUID
    e164: str
    pool_id: str
    carrier: str
    account: str
    max_channels: int
    status: str
    starts_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Overflow:
    """Leads that found no channel for `after_s` may use the numbers of another pool."""

    pool_id: str
    after_s: float


@dataclass(frozen=True, slots=True)
class NumberChange:
    """None means unchanged, except where the flag says that None is the new value."""

    pool_id: str | None = None
    carrier: str | None = None
    account: str | None = None
    max_channels: int | None = None
    status: str | None = None
    set_pace: bool = False
    starts_per_s: float | None = None


async def insert_pool(
    tx: Connection,
    pool_id: str,
    *,
    tenant: Tenant,
    name: str,
    overflow: Overflow | None = None,
    region_affinity: bool = False,
    agents: str = "ours",
) -> Pool | None:
    row = await tx.fetchrow(
        _SQL.insert_pool,
        pool_id,
        tenant.reseller_id,
        tenant.merchant_id,
        name,
        overflow and overflow.pool_id,
        overflow and overflow.after_s,
        region_affinity,
        agents,
    )
    return pick_or_none(Pool, row)


async def get_pool(tx: Connection, tenant: Tenant, pool_id: str) -> Pool | None:
    row = await tx.fetchrow(_SQL.get_pool, tenant.reseller_id, tenant.merchant_id, pool_id)
    return pick_or_none(Pool, row)


async def list_pools(tx: Connection, tenant: Tenant, *, after: str, limit: int) -> list[Pool]:
    rows = await tx.fetch(_SQL.list_pools, tenant.reseller_id, tenant.merchant_id, after, limit)
    return [pick(Pool, row) for row in rows]


async def update_pool(
    tx: Connection,
    pool_id: str,
    *,
    name: str | None,
    set_overflow: bool,
    overflow: Overflow | None,
    region_affinity: bool | None = None,
    agents: str | None = None,
) -> Pool | None:
    row = await tx.fetchrow(
        _SQL.update_pool,
        pool_id,
        name,
        set_overflow,
        overflow and overflow.pool_id,
        overflow and overflow.after_s,
        region_affinity,
        agents,
    )
    return pick_or_none(Pool, row)


async def delete_pool(tx: Connection, pool_id: str) -> InUse | None:
    return await delete(tx, _SQL.delete_pool, pool_id)


async def insert(tx: Connection, new: NewNumber) -> Number | None:
    row = await tx.fetchrow(
        _SQL.insert,
        new.id,
        new.e164,
        new.pool_id,
        new.carrier,
        new.account,
        new.max_channels,
        new.starts_per_s,
        new.status,
    )
    return pick_or_none(Number, row)


async def get(tx: Connection, tenant: Tenant, number_id: UUID) -> Number | None:
    return pick_or_none(
        Number, await tx.fetchrow(_SQL.get, tenant.reseller_id, tenant.merchant_id, number_id)
    )


async def list_numbers(
    tx: Connection, tenant: Tenant, *, pool_id: str | None, e164: str | None = None, after: UUID, limit: int
) -> list[Number]:
    rows = await tx.fetch(_SQL.list, tenant.reseller_id, tenant.merchant_id, after, pool_id, limit, e164)
    return [pick(Number, row) for row in rows]


async def lock_and_count_held(tx: Connection, number_id: UUID) -> int:
    """Lock the number against dialers until the transaction ends, then count the channels that calls hold.

    Two statements on purpose: the count needs a snapshot from after the lock, or it misses the intent
    that it waited for.
    """
    await tx.execute(_SQL.lock, number_id)
    return int(await tx.fetchval(_SQL.held_channels, number_id))


async def update(tx: Connection, number_id: UUID, change: NumberChange) -> Number | None:
    row = await tx.fetchrow(
        _SQL.update,
        number_id,
        change.pool_id,
        change.carrier,
        change.account,
        change.max_channels,
        change.status,
        change.set_pace,
        change.starts_per_s,
    )
    return pick_or_none(Number, row)


async def remove(tx: Connection, number_id: UUID) -> None:
    await tx.execute(_SQL.delete, number_id)
