"""Merchants: the customers of a reseller, and the owners of leads."""

from typing import Annotated

from fastapi import Query
from pydantic import Field

from trunkline.api.auth import AdminKey, ReadKey, require_platform
from trunkline.api.deps import Deps
from trunkline.api.errors import forbidden, invalid
from trunkline.api.models import (
    created,
    refuse_in_use,
    require_found,
)
from trunkline.api.ownership import owner_of, record
from trunkline.api.paging import Page, PageQuery
from trunkline.api.principal import Principal
from trunkline.api.resources import Routes, Sent, get_one, list_page
from trunkline.leads.ingest import FieldProblem
from trunkline.schema.fields import ObjectId
from trunkline.schema.tenants import Merchant, MerchantChange, NewMerchant
from trunkline.store import tenants
from trunkline.store.database import Connection
from trunkline.store.numbers import POOLS
from trunkline.store.tenants import MERCHANTS, Tenant, tenant_of

router = Routes("/merchants", "tenants")


class MerchantQuery(PageQuery):
    reseller_id: ObjectId | None = Field(None, description="Only merchants of this reseller.")


@router.post("", status_code=201, summary="Create a merchant")
async def create_merchant(body: Sent[NewMerchant], who: AdminKey, api: Deps) -> Merchant:
    """A key of a reseller creates its own merchants and may leave `reseller_id` out."""
    new = body.value
    if "weight" in body.names:
        require_platform(who, "set a merchant's weight")
    async with api.store.writing() as tx:
        owner = Tenant(await _reseller_of(tx, who, new.reseller_id), new.id)
        await _check_pool(tx, owner, new.default_pool)
        inserted = await MERCHANTS.insert(tx, new, reseller_id=owner.reseller_id)
        merchant = created(inserted, "The merchant", new.id)
        details = body.fields(without=("id", "reseller_id"))
        await record(tx, who, "merchant.created", merchant.id, owner, **details)
    return merchant


@router.get("", summary="List merchants")
async def list_merchants(query: Annotated[MerchantQuery, Query()], who: ReadKey, api: Deps) -> Page[Merchant]:
    """By id."""
    return await list_page(api, who, MERCHANTS, query, query.reseller_id, name="merchants")


@router.get("/{merchant_id}", summary="Get a merchant")
async def get_merchant(merchant_id: ObjectId, who: ReadKey, api: Deps) -> Merchant:
    return await get_one(api, who, MERCHANTS, merchant_id, "merchant")


@router.patch("/{merchant_id}", summary="Change a merchant")
async def update_merchant(
    merchant_id: ObjectId, body: Sent[MerchantChange], who: AdminKey, api: Deps
) -> Merchant:
    """Omitted fields do not change. `default_region`, `default_pool` and `max_concurrent` can be set to null."""
    async with api.store.writing() as tx:
        merchant = require_found(await MERCHANTS.get(tx, who.tenant, merchant_id), "merchant")
        if body.value.weight is not None:
            require_platform(who, "set a merchant's weight")
        if "max_concurrent" in body.names and who.tenant.merchant_id is not None:
            raise forbidden("not_owner", "Only its reseller or the platform may limit a merchant's calls.")
        if body.value.agents is not None and who.tenant.merchant_id is not None:
            raise forbidden(
                "not_owner", "Only its reseller or the platform may set whose agents take the calls."
            )
        await _check_pool(tx, tenant_of(merchant), body.value.default_pool)
        merchant = require_found(await MERCHANTS.update(tx, merchant_id, body.fields()), "merchant")
        await record(tx, who, "merchant.changed", merchant.id, tenant_of(merchant), **body.fields())
    return merchant


@router.delete("/{merchant_id}", status_code=204, summary="Remove a merchant")
async def delete_merchant(merchant_id: ObjectId, who: AdminKey, api: Deps) -> None:
    """Refused while it has leads, pools, numbers or keys that can still be used. A merchant cannot remove itself."""
    async with api.store.writing() as tx:
        merchant = require_found(await MERCHANTS.get(tx, who.tenant, merchant_id), "merchant")
        if who.tenant.merchant_id is not None:
            raise forbidden("not_owner", "Only its reseller or the platform may remove a merchant.")
        refuse_in_use(await tenants.delete_merchant(tx, merchant_id), "merchant")
        await record(tx, who, "merchant.removed", merchant.id, tenant_of(merchant))


async def _reseller_of(tx: Connection, who: Principal, reseller_id: str | None) -> str:
    if who.tenant.merchant_id is not None:
        raise forbidden("not_owner", "Only a reseller or the platform may create merchants.")
    owner = await owner_of(tx, who, reseller_id, None)
    if owner.reseller_id is None:
        raise invalid(FieldProblem("reseller_id", "Name the reseller of the merchant."))
    return owner.reseller_id


async def _check_pool(tx: Connection, merchant: Tenant, pool_id: str | None) -> None:
    if pool_id is not None and await POOLS.get(tx, merchant, pool_id) is None:
        raise invalid(FieldProblem("default_pool", f"This merchant has no pool {pool_id!r}."))
