"""Channels of numbers and their named holders, and what limits the match."""

from collections.abc import Iterable, Mapping
from uuid import UUID

import msgspec

from trunkline.bus.connection import Bus
from trunkline.bus.pipe import Word
from trunkline.bus.scripts import script
from trunkline.model import Flow, Holder, NumberLimit
from trunkline.value import Value

_CONFIGURE = script("configure")
_HOLD = script("hold")
_RELEASE = script("release")

# The subject under which a stop holds for everything.
ALL = "all"


class Configuration(Value, frozen=True):
    """What the match obeys. Subjects are `r/<reseller>`, `m/<merchant>`, `c/<merchant>/<campaign>`. A stop has its
    reason."""

    numbers: tuple[NumberLimit, ...] = ()
    weights: Mapping[str, int] = msgspec.field(default_factory=dict)
    caps: Mapping[str, int] = msgspec.field(default_factory=dict)
    stops: Mapping[str, str] = msgspec.field(default_factory=dict)
    # Merchants that have a tier of agents of their own.
    tiers: Mapping[str, str] = msgspec.field(default_factory=dict)
    # Whose calls the match does not hold back for want of an agent: `m/…`, `p/<pool>`, `c/…`.
    ungated: frozenset[str] = frozenset()
    # Those that are dialled without keeping one, a few at a time: how many may ring so is decided by the intent.
    overdialled: frozenset[str] = frozenset()


async def configure(bus: Bus, wanted: Configuration) -> int:
    """Make numbers, weights, limits and stops what Postgres says; returns how many values changed."""
    body = {
        "numbers": {
            str(n.number_id): f"{n.pool_id}|{n.max_channels}|{n.region or ''}|{n.account}"
            for n in wanted.numbers
        },
        "weights": {merchant: str(weight) for merchant, weight in wanted.weights.items()},
        "caps": {subject: str(cap) for subject, cap in wanted.caps.items()},
        "stops": dict(wanted.stops),
        "tiers": dict(wanted.tiers),
        "ungated": dict.fromkeys(wanted.overdialled, "few") | dict.fromkeys(wanted.ungated, "all"),
    }
    args: list[Word] = [bus.memory, bus.known, msgspec.json.encode(body)]
    return int(await bus.run(_CONFIGURE, [bus.keys.epoch, bus.keys.bell], args))


async def hold(bus: Bus, holders: Iterable[Holder]) -> int:
    """Write the true holders of channels; returns how many were wrong or missing."""
    args: list[Word] = [bus.memory, bus.known]
    for holder in holders:
        args += (str(holder.attempt_id), str(holder.number_id), holder.channel_no)
        args += (str(holder.lead_id or ""), str(holder.flow or ""), 0)
    if len(args) == 2:
        return 0
    return int(await bus.run(_HOLD, [bus.keys.epoch, bus.keys.bell], args))


async def release(bus: Bus, attempt_ids: Iterable[UUID]) -> int:
    """Free the channels of these attempts; twice frees once."""
    args: list[Word] = [bus.memory, bus.known, *map(str, attempt_ids)]
    if len(args) == 2:
        return 0
    return int(await bus.run(_RELEASE, [bus.keys.epoch, bus.keys.bell], args))


async def holders(bus: Bus) -> list[Holder]:
    """Everybody who holds a channel, as Valkey has it."""
    held: dict[str, str] = await bus.read(bus.client.hgetall(f"{bus.memory}holders"))
    return [_holder(attempt, value) for attempt, value in held.items()]


def _holder(attempt: str, value: str) -> Holder:
    number, channel, lead, flow, _version, _due, granted_ms, *_ = value.split("|")
    return Holder(
        UUID(attempt),
        UUID(number),
        int(channel),
        UUID(lead) if lead else None,
        Flow.parse(flow) if flow else None,
        int(granted_ms),
    )
