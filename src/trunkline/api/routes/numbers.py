"""Outbound numbers and their channels.

Only a key of the platform writes them: a number spends from a carrier account, and accounts have no owner among the
tenants. Tenants see the numbers that their leads may be dialled from.
"""

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Response
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StringConstraints

from trunkline.api.auth import API_ROOT, AdminKey, ReadKey, require_platform
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import conflict, invalid
from trunkline.api.models import DELETE_ERRORS, READ_ERRORS, WRITE_ERRORS, Body, Owned, created, require_found
from trunkline.api.ownership import record
from trunkline.api.paging import FIRST_ID, Cursors, Page, PageOut, PageQuery
from trunkline.api.principal import Principal
from trunkline.api.routes.leads import e164
from trunkline.leads import phones
from trunkline.leads.ingest import FieldProblem, ObjectId, Text
from trunkline.model import new_id
from trunkline.store import numbers
from trunkline.store.database import Connection
from trunkline.store.numbers import NewNumber, Number, NumberChange
from trunkline.store.tenants import PLATFORM

router = APIRouter(prefix=f"{API_ROOT}/numbers", tags=["numbers"])

Carrier = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
Account = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Status = Literal["active", "draining", "disabled"]

CHANNELS_MAX = 10_000
_CHANNELS = "The maximum of concurrent calls. A lower value takes effect as calls end."
_PACE = "The maximum of starts per second, besides that of the account. Left out: only the account's applies."
_STATUS = "A draining number finishes its calls and starts none; a disabled one is out of use."
Pace = Annotated[float, Field(gt=0, le=1000)]


class NumberIn(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"e164": "+14155550100", "pool": "acme-main", "carrier": "twilio", "max_channels": 20}
            ]
        }
    )

    e164: Text = Field(min_length=1, max_length=phones.TEXT_MAX, description="The number itself, as E.164.")
    pool: ObjectId = Field(description="The pool of the number. The owner of the pool owns the number.")
    carrier: Carrier
    account: Account = Field("default", description="The account at the carrier.")
    max_channels: int = Field(ge=0, le=CHANNELS_MAX, strict=True, description=_CHANNELS)
    starts_per_s: Pace | None = Field(None, description=_PACE)
    status: Status = Field("active", description=_STATUS)


class NumberPatch(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"max_channels": 10}]})

    pool: ObjectId | None = Field(None, description="Only while the number has no live call.")
    carrier: Carrier | None = Field(None, description="Only while the number has no live call.")
    account: Account | None = Field(None, description="Only while the number has no live call.")
    max_channels: int | None = Field(None, ge=0, le=CHANNELS_MAX, strict=True, description=_CHANNELS)
    starts_per_s: Pace | None = Field(None, description=_PACE)
    status: Status | None = Field(None, description=_STATUS)

    @property
    def needs_idle(self) -> bool:
        return not self.model_fields_set.isdisjoint({"pool", "carrier", "account"})


class NumberOut(Owned):
    id: UUID
    e164: str
    pool: str = Field(validation_alias=AliasChoices("pool_id", "pool"))
    carrier: str
    account: str
    max_channels: int
    channels_held: int | None = Field(
        description="How many channels live calls hold. null: the number is shared, and this key may see only "
        "its own calls."
    )
    starts_per_s: float | None
    status: str
    version: int
    updated_at: datetime


class RemovalQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    drain: bool = Field(
        False,
        description="If the number has live calls, set it to draining. Repeat the request when they have "
        "ended.",
    )


class NumberQuery(PageQuery):
    pool: ObjectId | None = Field(None, description="Only numbers of this pool.")
    e164: Text | None = Field(
        None, min_length=1, max_length=phones.TEXT_MAX, description="Only this number; a missing + is added."
    )


@router.post("", status_code=201, response_model=NumberOut, responses=WRITE_ERRORS, summary="Add a number")
async def create_number(body: NumberIn, who: AdminKey, api: Deps) -> Number:
    """Needs a key of the platform with the scope `admin`."""
    require_platform(who, "add numbers")
    _check_carrier(api, body.carrier)
    new = _new(body)
    async with api.store.writing() as tx:
        await _check_pool(tx, body.pool)
        number = created(await numbers.insert(tx, new), "The number", new.e164)
        await record(tx, who, "number.created", number.id, number.tenant, **_audited(body))
    return number


@router.get("", response_model=PageOut[NumberOut], responses=READ_ERRORS, summary="List numbers")
async def list_numbers(query: Annotated[NumberQuery, Query()], who: ReadKey, api: Deps) -> Page[Number]:
    """Oldest first: your own, your reseller's and the platform's."""
    cursors = Cursors("numbers", who, query)
    after = cursors.start_id(FIRST_ID)
    async with api.store.reading() as connection:
        rows = await numbers.list_numbers(
            connection,
            who.tenant,
            pool_id=query.pool,
            e164=e164(query.e164, "e164"),
            after=after,
            limit=cursors.fetch_limit,
        )
    return cursors.page([_shown(number, who) for number in rows], lambda number: number.id)


@router.get("/{number_id}", response_model=NumberOut, responses=READ_ERRORS, summary="Get a number")
async def get_number(number_id: UUID, who: ReadKey, api: Deps) -> Number:
    async with api.store.reading() as connection:
        return _shown(require_found(await numbers.get(connection, who.tenant, number_id), "number"), who)


@router.patch("/{number_id}", response_model=NumberOut, responses=WRITE_ERRORS, summary="Change a number")
async def update_number(number_id: UUID, body: NumberPatch, who: AdminKey, api: Deps) -> Number:
    """Omitted fields do not change. Needs a key of the platform with the scope `admin`."""
    async with api.store.writing() as tx:
        require_found(await numbers.get(tx, who.tenant, number_id), "number")
        require_platform(who, "change numbers")
        _check_carrier(api, body.carrier)
        if body.pool is not None:
            await _check_pool(tx, body.pool)
        if body.needs_idle:
            await _require_idle(tx, number_id)
        number = require_found(await numbers.update(tx, number_id, _change(body)), "number")
        await record(tx, who, "number.changed", number.id, number.tenant, **_audited(body))
    return number


@router.delete(
    "/{number_id}",
    status_code=204,
    response_model=None,
    responses=DELETE_ERRORS | {202: {"model": NumberOut, "description": "The number is draining."}},
    summary="Remove a number",
)
async def delete_number(
    number_id: UUID, query: Annotated[RemovalQuery, Query()], who: AdminKey, api: Deps, response: Response
) -> NumberOut | None:
    """Refused while it has a live call; with `drain` it is set to draining instead. Needs a key of the platform."""
    async with api.store.writing() as tx:
        number = require_found(await numbers.get(tx, who.tenant, number_id), "number")
        require_platform(who, "remove numbers")
        held = await numbers.lock_and_count_held(tx, number_id)
        if held and query.drain:
            return await _drain(tx, who, number_id, response)
        _refuse_live(held)
        await numbers.remove(tx, number_id)
        await record(tx, who, "number.removed", number.id, number.tenant)
    return None


async def _drain(tx: Connection, who: Principal, number_id: UUID, response: Response) -> NumberOut:
    number = require_found(await numbers.update(tx, number_id, NumberChange(status="draining")), "number")
    await record(tx, who, "number.changed", number.id, number.tenant, status="draining")
    response.status_code = 202
    return NumberOut.model_validate(number)


def _shown(number: Number, who: Principal) -> Number:
    """The owner sees the calls of a number. On a shared one they are also those of other tenants."""
    return number if who.tenant.owns(number.tenant) else replace(number, channels_held=None)


def _new(body: NumberIn) -> NewNumber:
    e164 = phones.to_e164(body.e164, None)
    if isinstance(e164, phones.BadPhone):
        raise invalid(FieldProblem("e164", e164.error))
    return NewNumber(
        id=new_id(),
        e164=e164,
        pool_id=body.pool,
        carrier=body.carrier,
        account=body.account,
        max_channels=body.max_channels,
        status=body.status,
        starts_per_s=body.starts_per_s,
    )


def _change(body: NumberPatch) -> NumberChange:
    return NumberChange(
        pool_id=body.pool,
        carrier=body.carrier,
        account=body.account,
        max_channels=body.max_channels,
        status=body.status,
        set_pace="starts_per_s" in body.model_fields_set,
        starts_per_s=body.starts_per_s,
    )


def _audited(body: Body) -> dict[str, object]:
    return body.model_dump(mode="json", exclude_unset=True, exclude={"e164"})


def _check_carrier(api: Api, carrier: str | None) -> None:
    known = api.deps.carriers
    if carrier is not None and known is not None and carrier not in known:
        raise invalid(
            FieldProblem("carrier", f"There is no such carrier. Known are: {', '.join(sorted(known))}.")
        )


async def _check_pool(tx: Connection, pool_id: str) -> None:
    if await numbers.get_pool(tx, PLATFORM, pool_id) is None:
        raise invalid(FieldProblem("pool", f"There is no pool {pool_id!r}."))


async def _require_idle(tx: Connection, number_id: UUID) -> None:
    _refuse_live(await numbers.lock_and_count_held(tx, number_id))


def _refuse_live(held: int) -> None:
    if held:
        raise conflict(
            "calls_live",
            f"Calls hold {held} of its channels. Set status to draining and wait until they end.",
        )
