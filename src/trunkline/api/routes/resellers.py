"""Resellers: the tenants of the platform."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import ConfigDict

from trunkline.api.auth import API_ROOT, AdminKey, ReadKey, require_platform
from trunkline.api.deps import Deps
from trunkline.api.models import (
    DELETE_ERRORS,
    READ_ERRORS,
    WRITE_ERRORS,
    Body,
    Name,
    Out,
    created,
    refuse_in_use,
    require_found,
)
from trunkline.api.ownership import record
from trunkline.api.paging import Cursors, Page, PageOut, PageQuery
from trunkline.leads.ingest import ObjectId
from trunkline.store import tenants
from trunkline.store.tenants import Reseller

router = APIRouter(prefix=f"{API_ROOT}/resellers", tags=["tenants"])


class ResellerIn(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"id": "acme", "name": "Acme Inc."}]})

    id: ObjectId
    name: Name


class ResellerPatch(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "Acme Ltd."}]})

    name: Name | None = None


class ResellerOut(Out):
    id: str
    name: str
    created_at: datetime


@router.post(
    "", status_code=201, response_model=ResellerOut, responses=WRITE_ERRORS, summary="Create a reseller"
)
async def create_reseller(body: ResellerIn, who: AdminKey, api: Deps) -> Reseller:
    """Needs a key of the platform with the scope `admin`."""
    require_platform(who, "create resellers")
    async with api.store.writing() as tx:
        reseller = created(await tenants.insert_reseller(tx, body.id, body.name), "The reseller", body.id)
        await record(tx, who, "reseller.created", reseller.id, reseller.tenant, name=reseller.name)
    return reseller


@router.get("", response_model=PageOut[ResellerOut], responses=READ_ERRORS, summary="List resellers")
async def list_resellers(query: Annotated[PageQuery, Query()], who: ReadKey, api: Deps) -> Page[Reseller]:
    """By id. A key of a reseller sees its own; a key of a merchant sees none."""
    cursors = Cursors("resellers", who, query)
    after = cursors.start_key("")
    async with api.store.reading() as connection:
        rows = await tenants.list_resellers(connection, who.tenant, after=after, limit=cursors.fetch_limit)
    return cursors.page(rows, lambda reseller: reseller.id)


@router.get("/{reseller_id}", response_model=ResellerOut, responses=READ_ERRORS, summary="Get a reseller")
async def get_reseller(reseller_id: ObjectId, who: ReadKey, api: Deps) -> Reseller:
    async with api.store.reading() as connection:
        return require_found(await tenants.get_reseller(connection, who.tenant, reseller_id), "reseller")


@router.patch(
    "/{reseller_id}", response_model=ResellerOut, responses=WRITE_ERRORS, summary="Change a reseller"
)
async def update_reseller(reseller_id: ObjectId, body: ResellerPatch, who: AdminKey, api: Deps) -> Reseller:
    """Needs a key of the platform with the scope `admin`."""
    async with api.store.writing() as tx:
        require_found(await tenants.get_reseller(tx, who.tenant, reseller_id), "reseller")
        require_platform(who, "change resellers")
        reseller = require_found(await tenants.update_reseller(tx, reseller_id, body.name), "reseller")
        await record(tx, who, "reseller.changed", reseller.id, reseller.tenant, name=reseller.name)
    return reseller


@router.delete("/{reseller_id}", status_code=204, responses=DELETE_ERRORS, summary="Remove a reseller")
async def delete_reseller(reseller_id: ObjectId, who: AdminKey, api: Deps) -> None:
    """Refused while it has merchants, pools, numbers, leads or keys that can still be used."""
    async with api.store.writing() as tx:
        reseller = require_found(await tenants.get_reseller(tx, who.tenant, reseller_id), "reseller")
        require_platform(who, "remove resellers")
        refuse_in_use(await tenants.delete_reseller(tx, reseller_id), "reseller")
        await record(tx, who, "reseller.removed", reseller.id, reseller.tenant)
