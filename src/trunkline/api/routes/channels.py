"""The channels of a number, one by one: which call holds each, and since when."""

from datetime import datetime
from uuid import UUID

from fastapi import APIRouter
from pydantic import Field

from trunkline.api.auth import API_ROOT, ReadKey
from trunkline.api.deps import Deps
from trunkline.api.models import READ_ERRORS, Out, require_found
from trunkline.states import AttemptState
from trunkline.store import live
from trunkline.store.numbers import NUMBERS
from trunkline.store.tenants import PLATFORM, tenant_of

router = APIRouter(prefix=f"{API_ROOT}/numbers", tags=["numbers"])


class HolderOut(Out):
    channel_no: int
    attempt_id: UUID
    lead_id: UUID | None = Field(description="null for an inbound call.")
    direction: str
    merchant_id: str
    to_phone: str
    from_phone: str
    state: AttemptState
    carrier_call_id: str | None
    held_since: datetime
    answered_at: datetime | None
    pod: str | None


class ChannelsOut(Out):
    number_id: UUID
    e164: str
    max_channels: int
    is_whole: bool = Field(
        description="false: the number is shared with you, and only your own calls are shown."
    )
    holders: list[HolderOut] = Field(
        description="By channel. A channel that is missing is free, or not shown."
    )


@router.get(
    "/{number_id}/channels",
    response_model=ChannelsOut,
    responses=READ_ERRORS,
    summary="List the calls that hold its channels",
)
async def list_channels(number_id: UUID, who: ReadKey, api: Deps) -> ChannelsOut:
    async with api.store.reading() as connection:
        number = require_found(await NUMBERS.get(connection, who.tenant, number_id), "number")
        owns = who.tenant.owns(tenant_of(number))
        holders = await live.holders(connection, PLATFORM if owns else who.tenant, number_id)
    return ChannelsOut(
        number_id=number.id,
        e164=number.e164,
        max_channels=number.max_channels,
        is_whole=owns,
        holders=[HolderOut.model_validate(holder) for holder in holders],
    )
