"""Number pools: the numbers that a lead may be dialled from."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import ConfigDict

from trunkline.api.auth import API_ROOT, AdminKey, ReadKey
from trunkline.api.deps import Deps
from trunkline.api.models import (
    DELETE_ERRORS,
    MERCHANT,
    READ_ERRORS,
    RESELLER,
    WRITE_ERRORS,
    Body,
    Name,
    Owned,
    created,
    found,
    refuse_in_use,
)
from trunkline.api.ownership import owner_of, record, require_owner
from trunkline.api.paging import Cursors, Page, PageOut, PageQuery
from trunkline.leads.ingest import ObjectId
from trunkline.store import numbers
from trunkline.store.numbers import Pool

router = APIRouter(prefix=f"{API_ROOT}/pools", tags=["numbers"])


class PoolIn(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"id": "acme-main", "merchant_id": "acme-store", "name": "Main numbers"}]
        }
    )

    id: ObjectId
    reseller_id: ObjectId | None = RESELLER
    merchant_id: ObjectId | None = MERCHANT
    name: Name


class PoolPatch(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "Numbers of the shop"}]})

    name: Name | None = None


class PoolOut(Owned):
    id: str
    name: str


@router.post("", status_code=201, response_model=PoolOut, responses=WRITE_ERRORS, summary="Create a pool")
async def create_pool(body: PoolIn, who: AdminKey, api: Deps) -> Pool:
    """Of a merchant, of a reseller for all its merchants, or of the platform for everybody."""
    async with api.store.writing() as tx:
        owner = await owner_of(tx, who, body.reseller_id, body.merchant_id)
        pool = created(
            await numbers.insert_pool(tx, body.id, tenant=owner, name=body.name), "The pool", body.id
        )
        await record(tx, who, "pool.created", pool.id, owner, name=pool.name)
    return pool


@router.get("", response_model=PageOut[PoolOut], responses=READ_ERRORS, summary="List pools")
async def list_pools(query: Annotated[PageQuery, Query()], who: ReadKey, api: Deps) -> Page[Pool]:
    """By id: your own, your reseller's and the platform's."""
    cursors = Cursors("pools", who, query)
    after = cursors.start_key("")
    async with api.store.reading() as connection:
        rows = await numbers.list_pools(connection, who.tenant, after=after, limit=cursors.fetch_limit)
    return cursors.page(rows, lambda pool: pool.id)


@router.get("/{pool_id}", response_model=PoolOut, responses=READ_ERRORS, summary="Get a pool")
async def get_pool(pool_id: ObjectId, who: ReadKey, api: Deps) -> Pool:
    async with api.store.reading() as connection:
        return found(await numbers.get_pool(connection, who.tenant, pool_id), "pool")


@router.patch("/{pool_id}", response_model=PoolOut, responses=WRITE_ERRORS, summary="Change a pool")
async def update_pool(pool_id: ObjectId, body: PoolPatch, who: AdminKey, api: Deps) -> Pool:
    async with api.store.writing() as tx:
        pool = found(await numbers.get_pool(tx, who.tenant, pool_id), "pool")
        require_owner(who, pool.tenant, "pool")
        pool = found(await numbers.update_pool(tx, pool_id, body.name), "pool")
        await record(tx, who, "pool.changed", pool.id, pool.tenant, name=pool.name)
    return pool


@router.delete("/{pool_id}", status_code=204, responses=DELETE_ERRORS, summary="Remove a pool")
async def delete_pool(pool_id: ObjectId, who: AdminKey, api: Deps) -> None:
    """Refused while a number or a lead is in it, or while it is a merchant's default."""
    async with api.store.writing() as tx:
        pool = found(await numbers.get_pool(tx, who.tenant, pool_id), "pool")
        require_owner(who, pool.tenant, "pool")
        refuse_in_use(await numbers.delete_pool(tx, pool_id), "pool")
        await record(tx, who, "pool.removed", pool.id, pool.tenant)
