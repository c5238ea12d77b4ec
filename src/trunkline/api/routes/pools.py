"""Number pools: the numbers that a lead may be dialled from."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import AliasChoices, ConfigDict, Field

from trunkline.api.auth import API_ROOT, AdminKey, ReadKey
from trunkline.api.deps import Deps
from trunkline.api.errors import forbidden, invalid
from trunkline.api.models import (
    DELETE_ERRORS,
    MERCHANT,
    READ_ERRORS,
    RESELLER,
    WRITE_ERRORS,
    Body,
    Name,
    Owned,
    WhoseAgents,
    created,
    refuse_in_use,
    require_found,
)
from trunkline.api.ownership import owner_of, record, require_owner
from trunkline.api.paging import Cursors, Page, PageOut, PageQuery
from trunkline.api.principal import Principal
from trunkline.leads.ingest import FieldProblem, ObjectId
from trunkline.store import numbers
from trunkline.store.database import Connection
from trunkline.store.numbers import Overflow, Pool
from trunkline.store.tenants import Tenant

router = APIRouter(prefix=f"{API_ROOT}/pools", tags=["numbers"])


_OVERFLOW = (
    "The pool whose numbers a lead may use once this pool had no channel for `overflow_after_s`. It does not go "
    "the other way."
)
_AFTER = "How long a lead waits for a channel of this pool first, in seconds. Required with `overflow_pool`."
_REGION = (
    "Whether a lead prefers a number of its own region: of its country, in North America of its area. The least loaded "
    "of those, or of all if none is free."
)
_AGENTS = (
    "Whose agents take the calls. `ours`: the dialer reserves a slot of a pod before each dial. `elsewhere`: "
    "external agents answer, and the dialer reserves no slot. Only a key of the platform or of the reseller may "
    "set it."
)
AfterSeconds = Annotated[float, Field(ge=0, le=86_400)]


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
    overflow_pool: ObjectId | None = Field(None, description=_OVERFLOW)
    overflow_after_s: AfterSeconds | None = Field(None, description=_AFTER)
    region_affinity: bool = Field(False, description=_REGION)
    agents: WhoseAgents = Field("ours", description=_AGENTS)

    @property
    def overflow(self) -> Overflow | None:
        return _overflow(self.overflow_pool, self.overflow_after_s)


class PoolPatch(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "Numbers of the shop"}]})

    name: Name | None = None
    overflow_pool: ObjectId | None = Field(None, description=f"{_OVERFLOW} null: none.")
    overflow_after_s: AfterSeconds | None = Field(None, description=_AFTER)
    region_affinity: bool | None = Field(None, description=_REGION)
    agents: WhoseAgents | None = Field(None, description=_AGENTS)

    @property
    def overflow(self) -> Overflow | None:
        return _overflow(self.overflow_pool, self.overflow_after_s)

    @property
    def sets_overflow(self) -> bool:
        return not self.model_fields_set.isdisjoint({"overflow_pool", "overflow_after_s"})


class PoolOut(Owned):
    id: str
    name: str
    overflow_pool: str | None = Field(validation_alias=AliasChoices("overflow_pool_id", "overflow_pool"))
    overflow_after_s: float | None
    region_affinity: bool
    agents: WhoseAgents


@router.post("", status_code=201, response_model=PoolOut, responses=WRITE_ERRORS, summary="Create a pool")
async def create_pool(body: PoolIn, who: AdminKey, api: Deps) -> Pool:
    """Of a merchant, of a reseller for all its merchants, or of the platform for all tenants."""
    async with api.store.writing() as tx:
        owner = await owner_of(tx, who, body.reseller_id, body.merchant_id)
        if body.agents == "elsewhere":
            _require_above_merchant(who)
        overflow = body.overflow
        await _check_overflow(tx, body.id, owner, overflow)
        made = await numbers.insert_pool(
            tx,
            body.id,
            tenant=owner,
            name=body.name,
            overflow=overflow,
            region_affinity=body.region_affinity,
            agents=body.agents,
        )
        pool = created(made, "The pool", body.id)
        await record(tx, who, "pool.created", pool.id, owner, **_audited(body))
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
        return require_found(await numbers.get_pool(connection, who.tenant, pool_id), "pool")


@router.patch("/{pool_id}", response_model=PoolOut, responses=WRITE_ERRORS, summary="Change a pool")
async def update_pool(pool_id: ObjectId, body: PoolPatch, who: AdminKey, api: Deps) -> Pool:
    """Omitted fields do not change. The overflow is changed as a whole: both of its fields, or null for both."""
    async with api.store.writing() as tx:
        pool = require_found(await numbers.get_pool(tx, who.tenant, pool_id), "pool")
        require_owner(who, pool.tenant, "pool")
        if body.agents is not None:
            _require_above_merchant(who)
        overflow = body.overflow
        await _check_overflow(tx, pool_id, pool.tenant, overflow)
        changed = await numbers.update_pool(
            tx,
            pool_id,
            name=body.name,
            set_overflow=body.sets_overflow,
            overflow=overflow,
            region_affinity=body.region_affinity,
            agents=body.agents,
        )
        pool = require_found(changed, "pool")
        await record(tx, who, "pool.changed", pool.id, pool.tenant, **_audited(body))
    return pool


@router.delete("/{pool_id}", status_code=204, responses=DELETE_ERRORS, summary="Remove a pool")
async def delete_pool(pool_id: ObjectId, who: AdminKey, api: Deps) -> None:
    """Refused while a number or a lead is in it, and while it is a merchant's default or another pool's overflow."""
    async with api.store.writing() as tx:
        pool = require_found(await numbers.get_pool(tx, who.tenant, pool_id), "pool")
        require_owner(who, pool.tenant, "pool")
        refuse_in_use(await numbers.delete_pool(tx, pool_id), "pool")
        await record(tx, who, "pool.removed", pool.id, pool.tenant)


def _require_above_merchant(who: Principal) -> None:
    if who.tenant.merchant_id is not None:
        raise forbidden("not_owner", "Only a reseller or the platform may set whose agents take the calls.")


def _overflow(pool_id: str | None, after_s: float | None) -> Overflow | None:
    if pool_id is None and after_s is None:
        return None
    if pool_id is None or after_s is None:
        missing = "overflow_pool" if pool_id is None else "overflow_after_s"
        raise invalid(FieldProblem(missing, "Give both overflow_pool and overflow_after_s, or neither."))
    return Overflow(pool_id, after_s)


async def _check_overflow(tx: Connection, pool_id: str, owner: Tenant, overflow: Overflow | None) -> None:
    """Every lead of the pool must be allowed to use the overflow pool: it has the same owner, or one above."""
    if overflow is None:
        return
    if overflow.pool_id == pool_id:
        raise invalid(FieldProblem("overflow_pool", "A pool cannot overflow into itself."))
    other = await numbers.get_pool(tx, owner, overflow.pool_id)
    if other is None or not other.tenant.owns(owner):
        raise invalid(FieldProblem("overflow_pool", f"Its owner has no pool {overflow.pool_id!r}."))


def _audited(body: Body) -> dict[str, object]:
    return body.model_dump(mode="json", exclude_unset=True, exclude={"id", "reseller_id", "merchant_id"})
