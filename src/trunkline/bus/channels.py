"""Channels of numbers and their named holders, and the configuration of the match."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from trunkline.bus import epoch
from trunkline.bus.connection import Bus
from trunkline.bus.schedule import to_ms
from trunkline.bus.scripts import Word, script
from trunkline.errors import BusUnavailable
from trunkline.model import Flow, Holder, NumberLimit
from trunkline.value import Value

_CONFIGURE = script("configure")
_HOLD = script("hold")
_RELEASE = script("release")
_MEND_NUMBERS = script("mend_numbers")

# The subject of a stop of everything.
ALL = "all"


class Configuration(Value, frozen=True):
    """The configuration of the match. Subjects are `r/<reseller>`, `m/<merchant>`, `c/<merchant>/<campaign>`. A stop
    has its reason."""

    numbers: tuple[NumberLimit, ...] = ()
    weights: Mapping[str, int] = msgspec.field(default_factory=dict)
    caps: Mapping[str, int] = msgspec.field(default_factory=dict)
    stops: Mapping[str, str] = msgspec.field(default_factory=dict)
    # Merchants that have a tier of agents of their own.
    tiers: Mapping[str, str] = msgspec.field(default_factory=dict)
    # The match grants these without a free agent: `m/…`, `p/<pool>`, `c/…`.
    ungated: frozenset[str] = frozenset()
    # Dialled without a reserved agent, a few per match: the intent decides how many may ring so.
    overdialled: frozenset[str] = frozenset()
    # Numbers in a cooldown, and when it ends.
    cooling: Mapping[UUID, datetime] = msgspec.field(default_factory=dict)


async def configure(bus: Bus, config: Configuration) -> int:
    """Make numbers, weights, limits and stops what Postgres has; returns how many values changed."""
    body = {
        "numbers": {
            str(n.number_id): f"{n.pool_id}|{n.max_channels}|{n.region or ''}|{n.account}"
            for n in config.numbers
        },
        "weights": {merchant: str(weight) for merchant, weight in config.weights.items()},
        "caps": {subject: str(cap) for subject, cap in config.caps.items()},
        "stops": dict(config.stops),
        "tiers": dict(config.tiers),
        "cooling": {str(number): str(to_ms(until)) for number, until in config.cooling.items()},
        "ungated": dict.fromkeys(config.overdialled, "few") | dict.fromkeys(config.ungated, "all"),
    }
    return await bus.change(_CONFIGURE, [msgspec.json.encode(body)])


async def hold(bus: Bus, holders: Iterable[Holder]) -> int:
    """Write the true holders of channels; returns how many were wrong or missing."""
    args: list[Word] = []
    for holder in holders:
        args += (str(holder.attempt_id), str(holder.number_id), holder.channel_no)
        args += (str(holder.lead_id or ""), str(holder.flow or ""), 0)
    return await bus.change(_HOLD, args) if args else 0


async def release(bus: Bus, attempt_ids: Iterable[UUID]) -> int:
    """Free the channels of these attempts; twice frees once."""
    ids = list(map(str, attempt_ids))
    return await bus.change(_RELEASE, ids) if ids else 0


async def mend(bus: Bus, numbers: Iterable[UUID], held: Iterable[Holder], *, recounts: bool = False) -> int:
    """Repair the keys that follow from these numbers and the holders of their channels, where one was lost; returns how
    many values were wrong. `recounts`: also the call counts of merchants and campaigns."""
    by_number: dict[UUID, list[str]] = {number_id: [] for number_id in numbers}
    for holder in held:
        if holder.number_id in by_number:
            by_number[holder.number_id].append(f"{holder.channel_no}={holder.attempt_id}")
    args: list[Word] = [int(recounts)]
    for number_id, calls in by_number.items():
        args += (str(number_id), ",".join(calls))
    return await bus.change(_MEND_NUMBERS, args)


async def holders(bus: Bus) -> list[Holder]:
    """All holders of channels in Valkey."""
    return (await holders_and_calls(bus))[0]


async def holders_and_calls(bus: Bus) -> tuple[list[Holder], dict[str, int]]:
    """And the call counts of merchants and campaigns, read in the same transaction."""
    pipeline = bus.client.pipeline(transaction=True)
    # By name: `hgetall` passes the key to the client a second time, which fails in a cluster's transaction in redis-py
    # 8.1.
    pipeline.execute_command("HGETALL", bus.projection.holders)
    pipeline.execute_command("HGETALL", bus.projection.live)
    held, live = await bus.read(pipeline.execute())
    holders = [_holder(attempt, value) for attempt, value in held.items()]
    return holders, {subject: int(count) for subject, count in live.items()}


def calls_of(held: Iterable[Holder]) -> dict[str, int]:
    """The call counts of merchants and campaigns, from the holders of channels."""
    flows = [holder.flow for holder in held if holder.flow]
    counted = Counter(f"m/{flow.merchant_id}" for flow in flows)
    counted.update(f"c/{flow.merchant_id}/{flow.campaign_id or ''}" for flow in flows)
    return dict(counted)


async def explain(
    bus: Bus, reseller_id: str, merchant_id: str, campaign_id: UUID | None
) -> tuple[Literal["whole", "lost", "away"], str | None]:
    """The state of Valkey's projection, and the stop that the match applies to this owner, if any: for a person who
    wants to know why a lead is not called."""
    try:
        if await epoch.read(bus) == 0:
            return "lost", None
        subjects = [ALL, f"r/{reseller_id}", f"m/{merchant_id}", f"c/{merchant_id}/{campaign_id}"]
        stops: list[str | None] = await bus.read(bus.client.hmget(bus.projection.stops, subjects))
    except BusUnavailable:
        return "away", None
    return "whole", next((each for each in stops if each), None)


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
