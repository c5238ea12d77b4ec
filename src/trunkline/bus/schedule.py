"""The schedule of due leads, and the match of due leads with free channels."""

import math
from collections import Counter
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
_MEND_FLOWS = script("mend_flows")

# A million overdue leads are all inside the horizon; this many of a flow are here, the rest stay in Postgres.
FLOW_CAP = 1000
# What is due later than this stays in Postgres until the loader brings it.
HORIZON_S = 15 * 60.0
# A match blocks Valkey for its time: 0.1 ms for a grant, under 1 ms for sixteen with as many becoming due.
BECOME_DUE_MAX = 64
# Looking at a flow takes 6 µs: Valkey does nothing else meanwhile.
MENDED_AT_ONCE = 50
# What a flow waits for that the end of any call may bring.
ANY_RELEASE = "any"
# What numbers rest for that may be over before its time, when an account is changed.
COOLDOWN = "cooldown"


class Match(Value, frozen=True):
    grants: tuple[Grant, ...]
    # Leads whose window closed before their turn came, with their versions: Postgres gives them a new due time.
    closed: tuple[tuple[UUID, int], ...]
    # Until something happens by itself: 0 for more work now, None for nothing at all.
    next_in_s: float | None


class GrantReturn(StrEnum):
    """What becomes of a grant that came to nothing. `give_back.lua` says what each means."""

    AGAIN = "again"
    FORGET = "forget"
    BEHIND = "behind"
    PARK = "park"
    REST = "rest"
    REST_ALL = "rest_all"


class GiveBack(Value, frozen=True):
    attempt_id: UUID
    how: GrantReturn
    # By Postgres' clock; 0 is now, and below it that many ms from now: nobody's own clock comes into it.
    until_ms: int = 0
    # The attempt that the person is being called with, for BEHIND.
    behind: UUID | None = None
    # For PARK: the end of any call wakes it too, because what it lacks is what calls have.
    until_a_release: bool = False
    # Whether the lead has to wait until then. False: we failed, and its lateness goes on.
    is_wait: bool = False
    # For REST and REST_ALL: the carrier refuses it, and Postgres may say at any time that this is over.
    is_cooldown: bool = False

    @property
    def subject(self) -> str:
        if self.behind is not None:
            return str(self.behind)
        return ANY_RELEASE if self.until_a_release else COOLDOWN if self.is_cooldown else ""


def to_ms(moment: datetime) -> int:
    """Rounded up, so that nothing becomes due a fraction of a millisecond early."""
    return math.ceil(moment.timestamp() * 1000)


async def add(
    bus: Bus, entries: Iterable[Entry], *, clock_offset_ms: int | None = None, cap: int = FLOW_CAP
) -> int:
    """Schedule those that are due within the horizon; returns how many were new to Valkey or moved."""
    args: list[Word] = [bus.projection, bus.known, _offset(clock_offset_ms), cap, int(HORIZON_S * 1000)]
    head = len(args)
    for entry in entries:
        args += _record(entry)
    if len(args) == head:
        return 0
    return int(await bus.run(_SCHEDULE, [bus.keys.epoch, bus.keys.dialer_wakeups], args))


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
    without_accounts: Iterable[tuple[str, str]] = (),
) -> Match:
    """Pair leads that are due, or will be within `ahead_ms`, with free channels, one attempt id for each. What falls
    due within `gather_ms` after this is left for one match together: the next moment is not sooner for it. `agents`:
    how many are free for dials, by tier, and under `*` those that every merchant falls back to; None: do not ask.
    `without_agents`: carriers whose calls need none of ours. `without_accounts`: nothing for these (carrier, account)
    now."""
    args: list[Word] = [bus.projection, bus.known, clock_offset_ms, BECOME_DUE_MAX, ahead_ms, gather_ms]
    args.append(
        ",".join(f"{tier}={max(0, free)}" for tier, free in agents.items()) if agents is not None else ""
    )
    args.append(" ".join(without_agents))
    args.append(" ".join(f"{carrier}/{account}" for carrier, account in without_accounts))
    args += map(str, attempt_ids)
    next_ms, grants, closed = await bus.run(_MATCH, [bus.keys.epoch], args)
    return Match(
        tuple(_grant(grants[i : i + 10]) for i in range(0, len(grants), 10)),
        tuple((UUID(closed[i]), int(closed[i + 1])) for i in range(0, len(closed), 2)),
        None if float(next_ms) < 0 else float(next_ms) / 1000,
    )


def _grant(fields: Sequence[str]) -> Grant:
    attempt, lead, version, number, channel, due, granted, merchant, campaign, ready = fields
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
        int(ready),
    )


async def give_back(bus: Bus, unused: Iterable[GiveBack], *, clock_offset_ms: int | None = None) -> int:
    """Free the channels of unused grants and do with their leads what each says."""
    args: list[Word] = [bus.projection, bus.known, _offset(clock_offset_ms)]
    head = len(args)
    for grant in unused:
        args += (str(grant.attempt_id), grant.how.value, grant.until_ms, grant.subject, int(grant.is_wait))
    if len(args) == head:
        return 0
    return int(await bus.run(_GIVE_BACK, [bus.keys.epoch, bus.keys.dialer_wakeups], args))


async def known(bus: Bus) -> int:
    """How many leads are here, wherever."""
    return int(await bus.read(bus.client.hlen(bus.projection.leads)))


async def partial_flows(bus: Bus) -> set[Flow]:
    """Flows that have more leads in Postgres than here."""
    names: set[str] = await bus.read(bus.client.smembers(bus.projection.partial))
    return {Flow.parse(name) for name in names}


async def forget_partial(bus: Bus, flows: Iterable[Flow]) -> None:
    """They are about to be refilled. Whatever has no room then marks them anew."""
    if names := [str(flow) for flow in flows]:
        await bus.read(bus.client.srem(bus.projection.partial, *names))


async def note_partial(bus: Bus, flow: Flow) -> None:
    await bus.read(bus.client.sadd(bus.projection.partial, str(flow)))


class FlowCheck(Value, frozen=True):
    """What the loader finds of the leads of a flow."""

    # Not here, only in an older version, or not where their records say: a key was lost. A hint: adding decides.
    missing: list[Entry]
    # Other flows that some of them wait in: they have moved to their next pool.
    elsewhere: frozenset[str]


async def look(bus: Bus, entries: Sequence[Entry]) -> FlowCheck:
    if not entries:
        return FlowCheck([], frozenset())
    ids = [str(entry.lead_id) for entry in entries]
    records: list[str | None] = await bus.read(bus.client.hmget(bus.projection.leads, ids))
    places = {each: _Place.read(record) for each, record in zip(ids, records, strict=True) if record}
    astray = await _astray(bus, places)
    missing = [
        entry
        for entry, lead_id in zip(entries, ids, strict=True)
        if lead_id not in places or places[lead_id].version < entry.version or lead_id in astray
    ]
    flows = {place.flow for place in places.values()}
    return FlowCheck(missing, frozenset(flows - {str(entries[0].flow)}))


class _Place(Value, frozen=True):
    """Of a lead's record: where it should be."""

    version: int
    place: str
    flow: str
    is_moving: bool

    @classmethod
    def read(cls, record: str) -> "_Place":
        version, place, flow, _, _, _, _, _, move_at, *_ = record.split("|")
        return cls(int(version), place, flow, move_at != "0")

    @property
    def is_granted(self) -> bool:
        return self.place == "g"


async def _astray(bus: Bus, places: Mapping[str, _Place]) -> set[str]:
    """Leads that are not where they should be. Of queues it is enough to count their members, which are theirs alone: a
    key is lost as a whole."""
    queues = {
        each: bus.projection.queue(place.flow, place.place)
        for each, place in places.items()
        if not place.is_granted
    }
    named = Counter(queues.values())
    moving = [each for each, place in places.items() if place.is_moving]
    granted = [each for each, place in places.items() if place.is_granted]
    pipeline = bus.client.pipeline(transaction=False)
    for queue in named:
        pipeline.zcard(queue)
    if moving:
        pipeline.zmscore(bus.projection.moves, moving)
    if granted:
        pipeline.hvals(bus.projection.holders)
    found = await bus.read(pipeline.execute()) if places else []
    short = {queue for queue, count in zip(named, found, strict=False) if count < named[queue]}
    astray = {each for each, queue in queues.items() if queue in short}
    if moving:
        astray |= {each for each, score in zip(moving, found[len(named)], strict=True) if score is None}
    if granted:
        astray |= set(granted) - {held.split("|")[2] for held in found[-1]}
    return astray


async def mend(bus: Bus, flows: Sequence[str]) -> int:
    """Put right what follows from the queues of these flows, where a key was lost; how much that was."""
    mended = 0
    for first in range(0, len(flows), MENDED_AT_ONCE):
        args: list[Word] = [bus.projection, bus.known, *flows[first : first + MENDED_AT_ONCE]]
        mended += int(await bus.run(_MEND_FLOWS, [bus.keys.epoch, bus.keys.dialer_wakeups], args))
    return mended


async def sizes(bus: Bus, flows: Sequence[Flow], *, before_ms: int | None = None) -> list[int]:
    """How many leads of each flow are here, waiting, or scheduled before that moment of Postgres' clock."""
    if not flows:
        return []
    pipeline = bus.client.pipeline(transaction=False)
    for flow in flows:
        pipeline.zcount(
            bus.projection.queue(str(flow), "s"), "-inf", "+inf" if before_ms is None else before_ms
        )
        pipeline.zcard(bus.projection.queue(str(flow), "w"))
    counts = await bus.read(pipeline.execute())
    return [counts[i] + counts[i + 1] for i in range(0, len(counts), 2)]
