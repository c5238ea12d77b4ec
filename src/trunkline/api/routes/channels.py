"""Operator override: frees the channels that the channel reconciler refused to free."""

from trunkline.api.auth import AdminKey, require_platform
from trunkline.api.deps import Deps
from trunkline.api.errors import ApiError
from trunkline.api.ownership import record
from trunkline.api.resources import Routes
from trunkline.errors import BusUnavailable
from trunkline.schema.numbers import ChannelsToFree, FreedChannels
from trunkline.store.tenants import PLATFORM

router = Routes("/channels", "control")


@router.post("/free", summary="Free channels without a call")
async def free_channels(body: ChannelsToFree, who: AdminKey, api: Deps) -> FreedChannels:
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
        await record(tx, who, "channels.freed", "channels", PLATFORM, reason=body.reason)
    try:
        return FreedChannels(await api.deps.free_dead_channels())
    except BusUnavailable as error:
        raise ApiError(
            503, "valkey_unavailable", "Valkey cannot be reached right now. Send the request again."
        ) from error
