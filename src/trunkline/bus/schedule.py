"""The schedule of due leads, and the match of due leads with free channels."""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from trunkline.bus.connection import Bus
from trunkline.bus.pipe import Word
from trunkline.bus.scripts import script
from trunkline.model import Entry, Flow, Grant
from trunkline.value import Value

_SCHEDULE = script("schedule")
_MATCH = script("match")
_GIVE_BACK = script("give_back")

# A million overdue leads are all inside the horizon; this many of a flow are here, the rest stay in Postgres.
FLOW_CAP = 1000
# What is due later than this stays in Postgres until the loader brings it.
HORIZON_S = 15 * 60.0
# A match blocks Valkey for its time: 0.1 ms for a grant, under 1 ms for sixteen with as many becoming due.
BECOME_DUE_MAX = 64
# What a flow waits for that the end of any call may bring.
ANY_RELEASE = "any"


class Match(Value, frozen=True):
    grants: tuple[Grant, ...]
    # Leads whose window closed before their turn came, with their versions: Postgres gives them a new due time.
    closed: tuple[tuple[UUID, int], ...]
    # Until something happens by itself: 0 for more work now, None for nothing at all.
    next_in_s: float | None


class Return(StrEnum):
    """What becomes of a grant that came to nothing. `give_back.lua` says what each means."""

    AGAIN = "again"
    FORGET = "forget"
    BEHIND = "behind"
    PARK = "park"
    REST = "rest"
    REST_ALL = "rest_all"


class GiveBack(Value, frozen=True):
    attempt_id: UUID
    how: Return
    # By Postgres' clock; 0 is now, and below it that many ms from now: nobody's own clock comes into it.
    until_ms: int = 0
    # The attempt that the person is being called with, for BEHIND.
    behind: UUID | None = None
    # For PARK: the end of any call wakes it too, because what it lacks is what calls have.
    until_a_release: bool = False


def to_ms(moment: datetime) -> int:
    """Rounded up, so that nothing becomes due a fraction of a millisecond early."""
    return math.ceil(moment.timestamp() * 1000)


async def add(
    bus: Bus, entries: Iterable[Entry], *, clock_offset_ms: int | None = None, cap: int = FLOW_CAP
) -> int:
    """Schedule those that are due within the horizon; returns how many were new to Valkey or moved."""
    args: list[Word] = [bus.memory, bus.known, _offset(clock_offset_ms), cap, int(HORIZON_S * 1000)]
    head = len(args)
    for entry in entries:
        args += _record(entry)
    if len(args) == head:
        return 0
    return int(await bus.run(_SCHEDULE, [bus.keys.epoch, bus.keys.bell], args))


def _record(entry: Entry) -> tuple[str | int, ...]:
    return (
        str(entry.lead_id),
        entry.version,
        str(entry.flow),
        entry.priority,
        to_ms(entry.due_at),
        to_ms(entry.closes_at) if entry.closes_at else 0,
        entry.next_pool_id or "",
        math.ceil((entry.moves_after_s or 0) * 1000),
        entry.region or "",
    )


def _offset(ms: int | None) -> int | str:
    """Unmeasured: the script takes what the last match was told."""
    return "" if ms is None else ms


async def match(
    bus: Bus,
    attempt_ids: Sequence[UUID | str],
    *,
    clock_offset_ms: int,
    ahead_ms: int = 0,
    gather_ms: int = 0,
    agents: Mapping[str, int] | None = None,
    without_agents: Iterable[str] = (),
) -> Match:
    """Pair leads that are due, or will be within `ahead_ms`, with free channels, one attempt id for each. What falls
    due within `gather_ms` after this is left for one match together: the next moment is not sooner for it. `agents`:
    how many are free for dials, by tier, and under `*` those that every merchant falls back to; None: do not ask.
    `without_agents`: carriers whose calls need none of ours."""
    args: list[Word] = [bus.memory, bus.known, clock_offset_ms, BECOME_DUE_MAX, ahead_ms, gather_ms]
    args.append(
        ",".join(f"{tier}={max(0, free)}" for tier, free in agents.items()) if agents is not None else ""
    )
    args.append(" ".join(without_agents))
    args += map(str, attempt_ids)
    next_ms, grants, closed = await bus.run(_MATCH, [bus.keys.epoch], args)
    return Match(
        tuple(_grant(grants[i : i + 9]) for i in range(0, len(grants), 9)),
        tuple((UUID(closed[i]), int(closed[i + 1])) for i in range(0, len(closed), 2)),
        None if float(next_ms) < 0 else float(next_ms) / 1000,
    )


def _grant(fields: Sequence[str]) -> Grant:
    attempt, lead, version, number, channel, due, granted, merchant, campaign = fields
    return Grant(
        UUID(attempt),
        UUID(lead),
        int(version),
        UUID(number),
        int(channel),
        int(due),
        int(granted),
        merchant,
        UUID(campaign) if campaign else None,
    )


async def give_back(bus: Bus, unused: Iterable[GiveBack], *, clock_offset_ms: int | None = None) -> int:
    """Free the channels of unused grants and do with their leads what each says."""
    args: list[Word] = [bus.memory, bus.known, _offset(clock_offset_ms)]
    head = len(args)
    for grant in unused:
        subject = str(grant.behind or "") or (ANY_RELEASE if grant.until_a_release else "")
        args += (str(grant.attempt_id), grant.how.value, grant.until_ms, subject)
    if len(args) == head:
        return 0
    return int(await bus.run(_GIVE_BACK, [bus.keys.epoch, bus.keys.bell], args))


async def known(bus: Bus) -> int:
    """How many leads are here, wherever."""
    return int(await bus.read(bus.client.hlen(f"{bus.memory}leads")))


async def partial_flows(bus: Bus) -> set[Flow]:
    """Flows that have more leads in Postgres than here."""
    names: set[str] = await bus.read(bus.client.smembers(f"{bus.memory}partial"))
    return {Flow.parse(name) for name in names}


async def forget_partial(bus: Bus, flows: Iterable[Flow]) -> None:
    """They are about to be refilled. Whatever has no room then marks them anew."""
    if names := [str(flow) for flow in flows]:
        await bus.read(bus.client.srem(f"{bus.memory}partial", *names))


async def note_partial(bus: Bus, flow: Flow) -> None:
    await bus.read(bus.client.sadd(f"{bus.memory}partial", str(flow)))


async def unknown(bus: Bus, entries: Sequence[Entry]) -> list[Entry]:
    """Those of the leads that are not here, or only in an older version. A hint: adding is what decides."""
    if not entries:
        return []
    ids = [str(entry.lead_id) for entry in entries]
    records: list[str | None] = await bus.read(bus.client.hmget(f"{bus.memory}leads", ids))
    return [
        entry
        for entry, record in zip(entries, records, strict=True)
        if record is None or int(record.partition("|")[0]) < entry.version
    ]


async def sizes(bus: Bus, flows: Sequence[Flow], *, before_ms: int | None = None) -> list[int]:
    """How many leads of each flow are here, waiting, or scheduled before that moment of Postgres' clock."""
    if not flows:
        return []
    pipeline = bus.client.pipeline(transaction=False)
    for flow in flows:
        pipeline.zcount(f"{bus.memory}flow:{flow}:s", "-inf", "+inf" if before_ms is None else before_ms)
        pipeline.zcard(f"{bus.memory}flow:{flow}:w")
    counts = await bus.read(pipeline.execute())
    return [counts[i] + counts[i + 1] for i in range(0, len(counts), 2)]
