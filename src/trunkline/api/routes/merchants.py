"""Merchants: the customers of a reseller, and the owners of leads."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import AliasChoices, ConfigDict, Field

from trunkline.api.auth import API_ROOT, AdminKey, ReadKey, require_platform
from trunkline.api.deps import Deps
from trunkline.api.errors import forbidden, invalid
from trunkline.api.models import (
    DELETE_ERRORS,
    READ_ERRORS,
    RESELLER,
    WRITE_ERRORS,
    Body,
    Name,
    Out,
    Region,
    WhoseAgents,
    created,
    refuse_in_use,
    require_found,
)
from trunkline.api.ownership import owner_of, record
from trunkline.api.paging import Cursors, Page, PageOut, PageQuery
from trunkline.api.principal import Principal
from trunkline.leads.ingest import FieldProblem, ObjectId
from trunkline.store import numbers, tenants
from trunkline.store.database import Connection
from trunkline.store.tenants import Merchant, MerchantChange, Tenant

router = APIRouter(prefix=f"{API_ROOT}/merchants", tags=["tenants"])

CONCURRENT_MAX = 100_000
_REGION = Field(None, description="Country of phones that are written without one, for example US or IN.")
_POOL = Field(None, description="The number pool of leads that name none.")
_MAX_CONCURRENT = (
    "The maximum of concurrent calls of all its leads; null: no limit. A merchant's key cannot set it."
)
_AGENTS = (
    "Whose agents take the calls. `ours`: the dialer reserves a slot of a pod before each dial. `elsewhere`: "
    "external agents answer, and the dialer reserves no slot. Only a key of the platform or of the reseller may "
    "set it."
)
_WEIGHT = "Its share of the channels beside other merchants. Only a key of the platform may set it."


class MerchantIn(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"id": "acme-store", "reseller_id": "acme", "name": "Acme Store", "default_region": "US"}
            ]
        }
    )

    id: ObjectId = Field(description="Unique over all resellers.")
    reseller_id: ObjectId | None = RESELLER
    name: Name
    default_region: Region | None = _REGION
    default_pool: ObjectId | None = _POOL
    weight: int = Field(1, ge=1, le=1000, strict=True, description=_WEIGHT)
    max_concurrent: int | None = Field(
        None, ge=0, le=CONCURRENT_MAX, strict=True, description=_MAX_CONCURRENT
    )
    agents: WhoseAgents = Field("ours", description=_AGENTS)


class MerchantPatch(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"default_pool": "acme-main"}]})

    name: Name | None = None
    default_region: Region | None = _REGION
    default_pool: ObjectId | None = _POOL
    weight: int | None = Field(None, ge=1, le=1000, strict=True, description=_WEIGHT)
    max_concurrent: int | None = Field(
        None, ge=0, le=CONCURRENT_MAX, strict=True, description=_MAX_CONCURRENT
    )
    agents: WhoseAgents | None = Field(None, description=_AGENTS)


class MerchantOut(Out):
    id: str
    reseller_id: str
    name: str
    default_region: str | None
    default_pool: str | None = Field(validation_alias=AliasChoices("default_pool_id", "default_pool"))
    weight: int
    max_concurrent: int | None
    agents: WhoseAgents
    created_at: datetime


class MerchantQuery(PageQuery):
    reseller_id: ObjectId | None = Field(None, description="Only merchants of this reseller.")


@router.post(
    "", status_code=201, response_model=MerchantOut, responses=WRITE_ERRORS, summary="Create a merchant"
)
async def create_merchant(body: MerchantIn, who: AdminKey, api: Deps) -> Merchant:
    """A key of a reseller creates its own merchants and may leave `reseller_id` out."""
    if "weight" in body.model_fields_set:
        require_platform(who, "set a merchant's weight")
    async with api.store.writing() as tx:
        reseller_id = await _reseller_of(tx, who, body.reseller_id)
        await _check_pool(tx, Tenant(reseller_id, body.id), body.default_pool)
        merchant = created(await _insert(tx, body, reseller_id), "The merchant", body.id)
        details = body.model_dump(mode="json", exclude_unset=True, exclude={"id", "reseller_id"})
        await record(tx, who, "merchant.created", merchant.id, merchant.tenant, **details)
    return merchant


@router.get("", response_model=PageOut[MerchantOut], responses=READ_ERRORS, summary="List merchants")
async def list_merchants(query: Annotated[MerchantQuery, Query()], who: ReadKey, api: Deps) -> Page[Merchant]:
    """By id."""
    cursors = Cursors("merchants", who, query)
    after = cursors.start_key("")
    async with api.store.reading() as connection:
        rows = await tenants.list_merchants(
            connection, who.tenant, reseller_id=query.reseller_id, after=after, limit=cursors.fetch_limit
        )
    return cursors.page(rows, lambda merchant: merchant.id)


@router.get("/{merchant_id}", response_model=MerchantOut, responses=READ_ERRORS, summary="Get a merchant")
async def get_merchant(merchant_id: ObjectId, who: ReadKey, api: Deps) -> Merchant:
    async with api.store.reading() as connection:
        return require_found(await tenants.get_merchant(connection, who.tenant, merchant_id), "merchant")


@router.patch(
    "/{merchant_id}", response_model=MerchantOut, responses=WRITE_ERRORS, summary="Change a merchant"
)
async def update_merchant(merchant_id: ObjectId, body: MerchantPatch, who: AdminKey, api: Deps) -> Merchant:
    """Omitted fields do not change. `default_region`, `default_pool` and `max_concurrent` can be set to null."""
    async with api.store.writing() as tx:
        merchant = require_found(await tenants.get_merchant(tx, who.tenant, merchant_id), "merchant")
        if body.weight is not None:
            require_platform(who, "set a merchant's weight")
        if "max_concurrent" in body.model_fields_set and who.tenant.merchant_id is not None:
            raise forbidden("not_owner", "Only its reseller or the platform may limit a merchant's calls.")
        if body.agents is not None and who.tenant.merchant_id is not None:
            raise forbidden(
                "not_owner", "Only its reseller or the platform may set whose agents take the calls."
            )
        await _check_pool(tx, merchant.tenant, body.default_pool)
        merchant = require_found(await tenants.update_merchant(tx, merchant_id, _change(body)), "merchant")
        details = body.model_dump(mode="json", exclude_unset=True)
        await record(tx, who, "merchant.changed", merchant.id, merchant.tenant, **details)
    return merchant


@router.delete("/{merchant_id}", status_code=204, responses=DELETE_ERRORS, summary="Remove a merchant")
async def delete_merchant(merchant_id: ObjectId, who: AdminKey, api: Deps) -> None:
    """Refused while it has leads, pools, numbers or keys that can still be used. A merchant cannot remove itself."""
    async with api.store.writing() as tx:
        merchant = require_found(await tenants.get_merchant(tx, who.tenant, merchant_id), "merchant")
        if who.tenant.merchant_id is not None:
            raise forbidden("not_owner", "Only its reseller or the platform may remove a merchant.")
        refuse_in_use(await tenants.delete_merchant(tx, merchant_id), "merchant")
        await record(tx, who, "merchant.removed", merchant.id, merchant.tenant)


async def _reseller_of(tx: Connection, who: Principal, reseller_id: str | None) -> str:
    if who.tenant.merchant_id is not None:
        raise forbidden("not_owner", "Only a reseller or the platform may create merchants.")
    owner = await owner_of(tx, who, reseller_id, None)
    if owner.reseller_id is None:
        raise invalid(FieldProblem("reseller_id", "Name the reseller of the merchant."))
    return owner.reseller_id


async def _check_pool(tx: Connection, merchant: Tenant, pool_id: str | None) -> None:
    if pool_id is not None and await numbers.get_pool(tx, merchant, pool_id) is None:
        raise invalid(FieldProblem("default_pool", f"This merchant has no pool {pool_id!r}."))


async def _insert(tx: Connection, body: MerchantIn, reseller_id: str) -> Merchant | None:
    return await tenants.insert_merchant(
        tx,
        body.id,
        reseller_id=reseller_id,
        name=body.name,
        default_region=body.default_region,
        default_pool_id=body.default_pool,
        weight=body.weight,
        max_concurrent=body.max_concurrent,
        agents=body.agents,
    )


def _change(body: MerchantPatch) -> MerchantChange:
    return MerchantChange(
        name=body.name,
        weight=body.weight,
        set_region="default_region" in body.model_fields_set,
        default_region=body.default_region,
        set_pool="default_pool" in body.model_fields_set,
        default_pool_id=body.default_pool,
        set_max_concurrent="max_concurrent" in body.model_fields_set,
        max_concurrent=body.max_concurrent,
        agents=body.agents,
    )
