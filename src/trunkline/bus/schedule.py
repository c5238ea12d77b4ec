"""The schedule of due leads, and the match of due leads with free channels."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from trunkline.bus.connection import Bus
from trunkline.bus.scripts import script
from trunkline.model import Entry, Grant

_SCHEDULE = script("schedule")
_MATCH = script("match")
_GIVE_BACK = script("give_back")


@dataclass(frozen=True, slots=True)
class Match:
    grants: tuple[Grant, ...]
    next_due_s: float | None


@dataclass(frozen=True, slots=True)
class GiveBack:
    """A grant that was not used. Without a due time the lead is forgotten until Postgres brings it again."""

    attempt_id: UUID
    due_ms: int | None


def due_ms(due_at: datetime) -> int:
    """Rounded up: a lead matched a fraction of a millisecond early would be refused by Postgres."""
    return math.ceil(due_at.timestamp() * 1000)


async def add(bus: Bus, entries: Iterable[Entry]) -> int:
    """Schedule leads; returns how many were new to Valkey or moved."""
    args: list[str | int] = [bus.keys.base]
    for entry in entries:
        args += (str(entry.lead_id), entry.version, entry.pool_id, due_ms(entry.due_at))
    if len(args) == 1:
        return 0
    return int(await bus.run(_SCHEDULE, [bus.keys.leads, bus.keys.bell], args))


async def match(bus: Bus, attempt_ids: Sequence[UUID], *, clock_offset_ms: int) -> Match:
    """Pair due leads with free channels, one attempt id for each."""
    keys = bus.keys
    reply = await bus.run(
        _MATCH,
        [keys.pools, keys.numbers, keys.leads, keys.holders],
        [keys.base, clock_offset_ms, *map(str, attempt_ids)],
    )
    next_due, flat = float(reply[0]), reply[1]
    grants = tuple(_grant(flat[i : i + 6]) for i in range(0, len(flat), 6))
    return Match(grants, None if next_due < 0 else next_due / 1000)


def _grant(fields: Sequence[str]) -> Grant:
    attempt, lead, version, number, channel, due = fields
    return Grant(UUID(attempt), UUID(lead), int(version), UUID(number), int(channel), int(float(due)))


async def give_back(bus: Bus, unused: Iterable[GiveBack]) -> int:
    """Free the channels of unused grants and put their leads back."""
    args: list[str | int] = [bus.keys.base]
    for grant in unused:
        args += (str(grant.attempt_id), "" if grant.due_ms is None else grant.due_ms)
    if len(args) == 1:
        return 0
    return int(await bus.run(_GIVE_BACK, [bus.keys.holders, bus.keys.leads, bus.keys.bell], args))
