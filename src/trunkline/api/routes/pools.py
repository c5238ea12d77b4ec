"""Number pools: the numbers that a lead may be dialled from."""

from typing import Annotated

from fastapi import Query

from trunkline.api.auth import AdminKey, ReadKey
from trunkline.api.deps import Deps
from trunkline.api.errors import forbidden, invalid
from trunkline.api.models import (
    created,
    refuse_in_use,
    require_found,
)
from trunkline.api.ownership import owner_of, record, require_owner
from trunkline.api.paging import Page, PageQuery
from trunkline.api.principal import Principal
from trunkline.api.resources import Routes, Sent, get_one, list_page
from trunkline.leads.ingest import FieldProblem
from trunkline.schema.fields import ObjectId
from trunkline.schema.numbers import NewPool, Pool, PoolChange
from trunkline.store import numbers
from trunkline.store.database import Connection
from trunkline.store.numbers import POOLS
from trunkline.store.tenants import Tenant, tenant_of

router = Routes("/pools", "numbers")

_OVERFLOW = ("overflow_pool", "overflow_after_s")


@router.post("", status_code=201, summary="Create a pool")
async def create_pool(body: Sent[NewPool], who: AdminKey, api: Deps) -> Pool:
    """Of a merchant, of a reseller for all its merchants, or of the platform for all tenants."""
    new = body.value
    async with api.store.writing() as tx:
        tenant = await owner_of(tx, who, new.reseller_id, new.merchant_id)
        if new.agents == "elsewhere":
            _require_above_merchant(who)
        await _check_overflow(tx, new.id, tenant, new)
        inserted = await POOLS.insert(tx, new, reseller_id=tenant.reseller_id, merchant_id=tenant.merchant_id)
        pool = created(inserted, "The pool", new.id)
        details = body.fields(without=("id", "reseller_id", "merchant_id"))
        await record(tx, who, "pool.created", pool.id, tenant, **details)
    return pool


@router.get("", summary="List pools")
async def list_pools(query: Annotated[PageQuery, Query()], who: ReadKey, api: Deps) -> Page[Pool]:
    """By id: your own, your reseller's and the platform's."""
    return await list_page(api, who, POOLS, query, name="pools")


@router.get("/{pool_id}", summary="Get a pool")
async def get_pool(pool_id: ObjectId, who: ReadKey, api: Deps) -> Pool:
    return await get_one(api, who, POOLS, pool_id, "pool")


@router.patch("/{pool_id}", summary="Change a pool")
async def update_pool(pool_id: ObjectId, body: Sent[PoolChange], who: AdminKey, api: Deps) -> Pool:
    """Omitted fields do not change. The overflow is changed as a whole: both of its fields, or null for both."""
    async with api.store.writing() as tx:
        pool = require_found(await POOLS.get(tx, who.tenant, pool_id), "pool")
        require_owner(who, tenant_of(pool), "pool")
        if body.value.agents is not None:
            _require_above_merchant(who)
        changes = body.fields()
        if not body.names.isdisjoint(_OVERFLOW):
            changes |= {name: getattr(body.value, name) for name in _OVERFLOW}
        await _check_overflow(tx, pool_id, tenant_of(pool), body.value)
        pool = require_found(await POOLS.update(tx, pool_id, changes), "pool")
        await record(tx, who, "pool.changed", pool.id, tenant_of(pool), **body.fields())
    return pool


@router.delete("/{pool_id}", status_code=204, summary="Remove a pool")
async def delete_pool(pool_id: ObjectId, who: AdminKey, api: Deps) -> None:
    """Refused while a number or a lead is in it, and while it is a merchant's default or another pool's overflow."""
    async with api.store.writing() as tx:
        pool = require_found(await POOLS.get(tx, who.tenant, pool_id), "pool")
        require_owner(who, tenant_of(pool), "pool")
        refuse_in_use(await numbers.delete_pool(tx, pool_id), "pool")
        await record(tx, who, "pool.removed", pool.id, tenant_of(pool))


def _require_above_merchant(who: Principal) -> None:
    if who.tenant.merchant_id is not None:
        raise forbidden("not_owner", "Only a reseller or the platform may set whose agents take the calls.")


async def _check_overflow(tx: Connection, pool_id: str, tenant: Tenant, wanted: NewPool | PoolChange) -> None:
    """Every lead of the pool must be allowed to use the overflow pool: it has the same owner, or one above."""
    missing = [name for name in _OVERFLOW if getattr(wanted, name) is None]
    if len(missing) == 1:
        raise invalid(FieldProblem(missing[0], "Give both overflow_pool and overflow_after_s, or neither."))
    if wanted.overflow_pool is None:
        return
    if wanted.overflow_pool == pool_id:
        raise invalid(FieldProblem("overflow_pool", "A pool cannot overflow into itself."))
    other = await POOLS.get(tx, tenant, wanted.overflow_pool)
    if other is None or not tenant_of(other).owns(tenant):
        raise invalid(FieldProblem("overflow_pool", f"Its owner has no pool {wanted.overflow_pool!r}."))
