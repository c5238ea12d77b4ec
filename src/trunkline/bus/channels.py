"""Channels of numbers and their named holders."""

from collections.abc import Iterable
from uuid import UUID

from trunkline.bus.connection import Bus
from trunkline.bus.scripts import script
from trunkline.model import Holder, NumberLimit

_CONFIGURE = script("configure")
_HOLD = script("hold")
_RELEASE = script("release")


async def configure(bus: Bus, limits: Iterable[NumberLimit]) -> int:
    """Make pools and maxima what Postgres says; returns how many changed."""
    args: list[str | int] = [bus.keys.base]
    for limit in limits:
        args += (str(limit.number_id), limit.pool_id, limit.max_channels)
    return int(await bus.run(_CONFIGURE, [bus.keys.pools, bus.keys.numbers, bus.keys.bell], args))


async def hold(bus: Bus, holders: Iterable[Holder]) -> int:
    """Write the true holders of channels; returns how many were wrong or missing."""
    args: list[str | int] = [bus.keys.base]
    for holder in holders:
        args += (str(holder.attempt_id), str(holder.number_id), holder.channel_no, str(holder.lead_id or ""))
    if len(args) == 1:
        return 0
    return int(await bus.run(_HOLD, [bus.keys.holders], args))


async def release(bus: Bus, attempt_ids: Iterable[UUID]) -> int:
    """Free the channels of these attempts; twice frees once."""
    args = [bus.keys.base, *map(str, attempt_ids)]
    if len(args) == 1:
        return 0
    return int(await bus.run(_RELEASE, [bus.keys.holders, bus.keys.leads, bus.keys.bell], args))


async def holders(bus: Bus) -> list[Holder]:
    """Everybody who holds a channel, as Valkey has it."""
    held: dict[str, str] = await bus.read(bus.client.hgetall(bus.keys.holders))
    return [_holder(attempt, value) for attempt, value in held.items()]


def _holder(attempt: str, value: str) -> Holder:
    number, channel, lead, *_, granted_ms = value.split("|")
    return Holder(
        UUID(attempt), UUID(number), int(channel), UUID(lead) if lead else None, int(float(granted_ms))
    )
