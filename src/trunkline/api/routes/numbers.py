"""Outbound numbers and their channels.

Only a key of the platform writes them: a number spends from a carrier account, and accounts have no owner among the
tenants. Tenants see the numbers that their leads may be dialled from.
"""

from dataclasses import replace
from typing import Annotated
from uuid import UUID

from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict, Field

from trunkline.api.auth import AdminKey, ReadKey, require_platform
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import conflict, invalid
from trunkline.api.models import created, require_found
from trunkline.api.ownership import record
from trunkline.api.paging import Page, PageQuery
from trunkline.api.principal import Principal
from trunkline.api.resources import Routes, Sent, get_one, list_page
from trunkline.api.routes.leads import e164
from trunkline.leads import phones
from trunkline.leads.ingest import FieldProblem
from trunkline.model import new_id
from trunkline.schema.fields import ObjectId, PhoneText
from trunkline.schema.numbers import NewNumber, Number, NumberChange, NumberChannels, Pool
from trunkline.store import live, numbers
from trunkline.store.database import Connection
from trunkline.store.numbers import NUMBERS, POOLS
from trunkline.store.tenants import PLATFORM, tenant_of

router = Routes("/numbers", "numbers")


class RemovalQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    drain: bool = Field(
        False,
        description="If the number has live calls, set it to draining. Repeat the request when they have ended.",
    )


class NumberQuery(PageQuery):
    pool: ObjectId | None = Field(None, description="Only numbers of this pool.")
    e164: PhoneText | None = Field(None, description="Only this number; a missing + is added.")


@router.post("", status_code=201, summary="Add a number")
async def create_number(body: Sent[NewNumber], who: AdminKey, api: Deps) -> Number:
    """Needs a key of the platform with the scope `admin`."""
    require_platform(who, "add numbers")
    _check_carrier(api, body.value.carrier)
    new = replace(body.value, e164=_e164(body.value.e164))
    async with api.store.writing() as tx:
        pool = await _pool(tx, new.pool)
        inserted = await NUMBERS.insert(
            tx, new, id=new_id(), reseller_id=pool.reseller_id, merchant_id=pool.merchant_id
        )
        number = created(inserted, "The number", new.e164)
        details = body.fields(without=("e164",))
        await record(tx, who, "number.created", number.id, tenant_of(number), **details)
    return number


@router.get("", summary="List numbers")
async def list_numbers(query: Annotated[NumberQuery, Query()], who: ReadKey, api: Deps) -> Page[Number]:
    """Oldest first: your own, your reseller's and the platform's."""
    page = await list_page(api, who, NUMBERS, query, query.pool, e164(query.e164, "e164"), name="numbers")
    return replace(page, items=[_shown(number, who) for number in page.items])


@router.get("/{number_id}", summary="Get a number")
async def get_number(number_id: UUID, who: ReadKey, api: Deps) -> Number:
    return _shown(await get_one(api, who, NUMBERS, number_id, "number"), who)


@router.get(
    "/{number_id}/channels",
    summary="List the calls that hold its channels",
)
async def list_channels(number_id: UUID, who: ReadKey, api: Deps) -> NumberChannels:
    async with api.store.reading() as connection:
        number = require_found(await NUMBERS.get(connection, who.tenant, number_id), "number")
        owns = who.tenant.owns(tenant_of(number))
        holders = await live.holders(connection, PLATFORM if owns else who.tenant, number_id)
    return NumberChannels(number.id, number.e164, number.max_channels, owns, holders)


@router.patch("/{number_id}", summary="Change a number")
async def update_number(number_id: UUID, body: Sent[NumberChange], who: AdminKey, api: Deps) -> Number:
    """Omitted fields do not change. Needs a key of the platform with the scope `admin`."""
    changes = body.fields()
    async with api.store.writing() as tx:
        require_found(await NUMBERS.get(tx, who.tenant, number_id), "number")
        require_platform(who, "change numbers")
        _check_carrier(api, body.value.carrier)
        if body.value.pool is not None:
            pool = await _pool(tx, body.value.pool)
            changes |= {"reseller_id": pool.reseller_id, "merchant_id": pool.merchant_id}
        if not body.names.isdisjoint({"pool", "carrier", "account"}):
            _refuse_live(await numbers.lock_and_count_held(tx, number_id))
        number = require_found(await NUMBERS.update(tx, number_id, changes), "number")
        await record(tx, who, "number.changed", number.id, tenant_of(number), **body.fields())
    return number


@router.delete(
    "/{number_id}",
    status_code=204,
    response_model=None,
    responses={202: {"model": Number, "description": "The number is draining."}},
    summary="Remove a number",
)
async def delete_number(
    number_id: UUID, query: Annotated[RemovalQuery, Query()], who: AdminKey, api: Deps, response: Response
) -> Number | None:
    """Refused while it has a live call; with `drain` it is set to draining instead. Needs a key of the platform."""
    async with api.store.writing() as tx:
        number = require_found(await NUMBERS.get(tx, who.tenant, number_id), "number")
        require_platform(who, "remove numbers")
        held = await numbers.lock_and_count_held(tx, number_id)
        if held and query.drain:
            return await _drain(tx, who, number_id, response)
        _refuse_live(held)
        await numbers.remove(tx, number_id)
        await record(tx, who, "number.removed", number.id, tenant_of(number))
    return None


async def _drain(tx: Connection, who: Principal, number_id: UUID, response: Response) -> Number:
    number = require_found(await NUMBERS.update(tx, number_id, {"status": "draining"}), "number")
    await record(tx, who, "number.changed", number.id, tenant_of(number), status="draining")
    response.status_code = 202
    return number


def _shown(number: Number, who: Principal) -> Number:
    """The owner sees the calls of a number. On a shared one they are also those of other tenants."""
    return number if who.tenant.owns(tenant_of(number)) else replace(number, channels_held=None)


def _e164(text: str) -> str:
    parsed = phones.to_e164(text, None)
    if isinstance(parsed, phones.BadPhone):
        raise invalid(FieldProblem("e164", parsed.error))
    return parsed


def _check_carrier(api: Api, carrier: str | None) -> None:
    known = api.deps.carriers
    if carrier is not None and known is not None and carrier not in known:
        raise invalid(
            FieldProblem("carrier", f"There is no such carrier. Known are: {', '.join(sorted(known))}.")
        )


async def _pool(tx: Connection, pool_id: str) -> Pool:
    pool = await POOLS.get(tx, PLATFORM, pool_id)
    if pool is None:
        raise invalid(FieldProblem("pool", f"There is no pool {pool_id!r}."))
    return pool


def _refuse_live(held: int) -> None:
    if held:
        raise conflict(
            "calls_live",
            f"Calls hold {held} of its channels. Set status to draining and wait until they end.",
        )
