"""Operator override: frees the channels that the channel reconciler refused to free."""

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from trunkline.api.auth import API_ROOT, AdminKey, require_platform
from trunkline.api.deps import Deps
from trunkline.api.errors import ApiError
from trunkline.api.models import WRITE_ERRORS, Body, Out
from trunkline.api.routes.controls import Reason
from trunkline.errors import BusUnavailable
from trunkline.store import audit
from trunkline.store.tenants import PLATFORM

router = APIRouter(prefix=f"{API_ROOT}/channels", tags=["control"])


class FreeIn(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "None of these calls is live"}]})

    reason: Reason = Field(description="Why the channels are free, for the audit log.")


class FreedOut(Out):
    freed: int = Field(
        description="How many channels were freed. Their leads are called unless they have ended."
    )


@router.post("/free", response_model=FreedOut, responses=WRITE_ERRORS, summary="Free channels without a call")
async def free_channels(body: FreeIn, who: AdminKey, api: Deps) -> FreedOut:
    """Frees every channel that Valkey holds for an attempt that Postgres does not have, however many they are: the
    answer to the alarm `mass_free_breaker`, once its cause is understood. Needs a key of the platform."""
    require_platform(who, "free channels")
    if api.deps.free_dead_channels is None:
        raise ApiError(
            503,
            "valkey_unavailable",
            "This process knows no channels. Send the request to one with the role api.",
        )
    async with api.store.writing() as tx:
        await audit.record(
            tx,
            actor=who.actor,
            action="channels.freed",
            subject="channels",
            tenant=PLATFORM,
            reason=body.reason,
        )
    try:
        return FreedOut(freed=await api.deps.free_dead_channels())
    except BusUnavailable as error:
        raise ApiError(
            503, "valkey_unavailable", "Valkey cannot be reached right now. Send the request again."
        ) from error
