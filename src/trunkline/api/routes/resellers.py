"""Resellers: the tenants of the platform."""

from typing import Annotated

from fastapi import Query

from trunkline.api.auth import AdminKey, ReadKey, require_platform
from trunkline.api.deps import Deps
from trunkline.api.models import (
    created,
    refuse_in_use,
    require_found,
)
from trunkline.api.ownership import record
from trunkline.api.paging import Page, PageQuery
from trunkline.api.resources import Routes, Sent, get_one, list_page
from trunkline.schema.fields import ObjectId
from trunkline.schema.tenants import NewReseller, Reseller, ResellerChange
from trunkline.store import tenants
from trunkline.store.tenants import RESELLERS, tenant_of

router = Routes("/resellers", "tenants")


@router.post("", status_code=201, summary="Create a reseller")
async def create_reseller(body: NewReseller, who: AdminKey, api: Deps) -> Reseller:
    """Needs a key of the platform with the scope `admin`."""
    require_platform(who, "create resellers")
    async with api.store.writing() as tx:
        reseller = created(await RESELLERS.insert(tx, body), "The reseller", body.id)
        await record(tx, who, "reseller.created", reseller.id, tenant_of(reseller), name=reseller.name)
    return reseller


@router.get("", summary="List resellers")
async def list_resellers(query: Annotated[PageQuery, Query()], who: ReadKey, api: Deps) -> Page[Reseller]:
    """By id. A key of a reseller sees its own; a key of a merchant sees none."""
    return await list_page(api, who, RESELLERS, query, name="resellers")


@router.get("/{reseller_id}", summary="Get a reseller")
async def get_reseller(reseller_id: ObjectId, who: ReadKey, api: Deps) -> Reseller:
    return await get_one(api, who, RESELLERS, reseller_id, "reseller")


@router.patch("/{reseller_id}", summary="Change a reseller")
async def update_reseller(
    reseller_id: ObjectId, body: Sent[ResellerChange], who: AdminKey, api: Deps
) -> Reseller:
    """Needs a key of the platform with the scope `admin`."""
    async with api.store.writing() as tx:
        require_found(await RESELLERS.get(tx, who.tenant, reseller_id), "reseller")
        require_platform(who, "change resellers")
        reseller = require_found(await RESELLERS.update(tx, reseller_id, body.fields()), "reseller")
        await record(tx, who, "reseller.changed", reseller.id, tenant_of(reseller), name=reseller.name)
    return reseller


@router.delete("/{reseller_id}", status_code=204, summary="Remove a reseller")
async def delete_reseller(reseller_id: ObjectId, who: AdminKey, api: Deps) -> None:
    """Refused while it has merchants, pools, numbers, leads or keys that can still be used."""
    async with api.store.writing() as tx:
        reseller = require_found(await RESELLERS.get(tx, who.tenant, reseller_id), "reseller")
        require_platform(who, "remove resellers")
        refuse_in_use(await tenants.delete_reseller(tx, reseller_id), "reseller")
        await record(tx, who, "reseller.removed", reseller.id, tenant_of(reseller))
