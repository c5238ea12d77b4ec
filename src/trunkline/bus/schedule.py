"""The schedule of due leads, and the match of due leads with free channels."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from trunkline.bus.connection import Bus
from trunkline.bus.scripts import Word, script
from trunkline.model import Entry, Flow, Grant
from trunkline.value import Value

_SCHEDULE = script("schedule")
_MATCH = script("match")
_GIVE_BACK = script("give_back")
_MEND_FLOWS = script("mend_flows")

# A million overdue leads are all inside the horizon; Valkey has this many of a flow, the others stay in Postgres.
FLOW_CAP = 1000
# Leads that are due later than this stay in Postgres until the loader adds them.
HORIZON_S = 15 * 60.0
# A match blocks Valkey for its time: 0.1 ms for a grant, under 1 ms for 16 with as many becoming due.
BECOME_DUE_MAX = 64
# Checking a flow takes 6 µs: Valkey does nothing else meanwhile.
FLOWS_PER_MEND = 50
# The subject of a parked flow that the end of any call may unpark.
ANY_RELEASE = "any"
# The subject of a rest that may end before its time, when an account is changed.
COOLDOWN = "cooldown"


class Match(Value, frozen=True):
    grants: tuple[Grant, ...]
    # Leads whose window closed before their turn came, with their versions: Postgres gives them a new due time.
    closed: tuple[tuple[UUID, int], ...]
    # Until the next event without a wakeup: 0 for more work now, None for none at all.
    next_in_s: float | None


class GrantReturn(StrEnum):
    """What happens to a refused grant. `give_back.lua` says what each means."""

    AGAIN = "again"
    FORGET = "forget"
    BEHIND = "behind"
    PARK = "park"
    REST = "rest"
    REST_ALL = "rest_all"


class GiveBack(Value, frozen=True):
    attempt_id: UUID
    how: GrantReturn
    # By Postgres's clock; 0 is now, and a negative value that many ms from now: no process's clock counts.
    until_ms: int = 0
    # For BEHIND the attempt that calls the person; `ANY_RELEASE` for a PARK that the end of any call ends too, because
    # it frees what the flow lacks; `COOLDOWN` for a REST that Postgres may end at any time.
    subject: str = ""
    # Whether the lead has to wait until then. False: the platform failed, and its lateness keeps counting.
    is_wait: bool = False


def to_ms(moment: datetime) -> int:
    """Rounded up, so that nothing becomes due a fraction of a millisecond early."""
    return math.ceil(moment.timestamp() * 1000)


async def add(
    bus: Bus, entries: Iterable[Entry], *, clock_offset_ms: int | None = None, cap: int = FLOW_CAP
) -> int:
    """Schedule those that are due within the horizon; returns how many were new to Valkey or moved."""
    records: list[Word] = []
    for entry in entries:
        records += (str(entry.lead_id), entry.version, str(entry.flow), entry.priority, to_ms(entry.due_at))
        records += (to_ms(entry.closes_at) if entry.closes_at else 0, entry.next_pool_id or "")
        records += (math.ceil((entry.moves_after_s or 0) * 1000), entry.region or "")
    if not records:
        return 0
    # Unmeasured: the script uses the offset of the last match.
    offset = "" if clock_offset_ms is None else clock_offset_ms
    return await bus.change(_SCHEDULE, [offset, cap, int(HORIZON_S * 1000), *records])


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
    """Pair leads that are due, or will be within `ahead_ms`, with free channels, one attempt id for each. Leads that
    fall due within `gather_ms` after this share the next match: it is not called earlier for one of them. `agents`: how
    many are free for dials, by tier, and under `*` the fallback of every merchant; None: no bound. `without_agents`:
    carriers whose calls need none of ours. `without_accounts`: no grants for these (carrier, account)."""
    args: list[Word] = [
        bus.projection,
        bus.epoch_argument,
        clock_offset_ms,
        BECOME_DUE_MAX,
        ahead_ms,
        gather_ms,
        ",".join(f"{tier}={max(0, free)}" for tier, free in (agents or {}).items()),
        " ".join(without_agents),
        " ".join(map("/".join, without_accounts)),
        *map(str, attempt_ids),
    ]
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
    """Free the channels of unused grants, and treat their leads as each `how` says."""
    args: list[Word] = ["" if clock_offset_ms is None else clock_offset_ms]
    for grant in unused:
        args += (str(grant.attempt_id), grant.how.value, grant.until_ms, grant.subject, int(grant.is_wait))
    return await bus.change(_GIVE_BACK, args) if len(args) > 1 else 0


async def lead_count(bus: Bus) -> int:
    """How many leads Valkey has."""
    return int(await bus.read(bus.client.hlen(bus.projection.leads)))


async def partial_flows(bus: Bus) -> set[Flow]:
    """Flows that have more leads in Postgres than in Valkey."""
    names: set[str] = await bus.read(bus.client.smembers(bus.projection.partial))
    return {Flow.parse(name) for name in names}


async def unmark_partial(bus: Bus, flows: Iterable[Flow]) -> None:
    """They are about to be refilled. A lead that finds no room after that marks its flow again."""
    if names := [str(flow) for flow in flows]:
        await bus.read(bus.client.srem(bus.projection.partial, *names))


async def mark_partial(bus: Bus, flow: Flow) -> None:
    await bus.read(bus.client.sadd(bus.projection.partial, str(flow)))


class FlowCheck(Value, frozen=True):
    """The leads of a flow, compared with Valkey."""

    # Not in Valkey, only in an older version, or not where their records say: a key was lost. A hint: adding decides.
    missing: list[Entry]
    # Other flows that some of them wait in: they have moved to their next pool.
    elsewhere: frozenset[str]


async def compare(bus: Bus, entries: Sequence[Entry]) -> FlowCheck:
    if not entries:
        return FlowCheck([], frozenset())
    ids = [str(entry.lead_id) for entry in entries]
    records: list[str | None] = await bus.read(bus.client.hmget(bus.projection.leads, ids))
    positions = {
        each: _LeadPosition.read(record) for each, record in zip(ids, records, strict=True) if record
    }
    displaced = await _displaced(bus, positions)
    missing = [
        entry
        for entry, lead_id in zip(entries, ids, strict=True)
        if lead_id not in positions or positions[lead_id].version < entry.version or lead_id in displaced
    ]
    flows = {position.flow for position in positions.values()}
    return FlowCheck(missing, frozenset(flows - {str(entries[0].flow)}))


class _LeadPosition(Value, frozen=True):
    """Where a lead's record says that it is."""

    version: int
    position: str
    flow: str
    is_moving: bool

    @classmethod
    def read(cls, record: str) -> "_LeadPosition":
        version, position, flow, _, _, _, _, _, move_at, *_ = record.split("|")
        return cls(int(version), position, flow, move_at != "0")

    @property
    def is_granted(self) -> bool:
        return self.position == "g"


async def _displaced(bus: Bus, positions: Mapping[str, _LeadPosition]) -> set[str]:
    """Leads that are not where their records say. Counting the members of a queue is enough, since they are its alone:
    a key is lost as a whole."""
    queues = {
        each: bus.projection.queue(position.flow, position.position)
        for each, position in positions.items()
        if not position.is_granted
    }
    named = Counter(queues.values())
    moving = [each for each, position in positions.items() if position.is_moving]
    granted = [each for each, position in positions.items() if position.is_granted]
    pipeline = bus.client.pipeline(transaction=False)
    for queue in named:
        pipeline.zcard(queue)
    if moving:
        pipeline.zmscore(bus.projection.moves, moving)
    if granted:
        pipeline.hvals(bus.projection.holders)
    replies = await bus.read(pipeline.execute()) if positions else []
    short = {queue for queue, count in zip(named, replies, strict=False) if count < named[queue]}
    displaced = {each for each, queue in queues.items() if queue in short}
    if moving:
        displaced |= {each for each, score in zip(moving, replies[len(named)], strict=True) if score is None}
    if granted:
        displaced |= set(granted) - {held.split("|")[2] for held in replies[-1]}
    return displaced


async def mend(bus: Bus, flows: Sequence[str]) -> int:
    """Repair the keys that follow from the queues of these flows, where one was lost; returns how many."""
    mended = 0
    for first in range(0, len(flows), FLOWS_PER_MEND):
        mended += await bus.change(_MEND_FLOWS, flows[first : first + FLOWS_PER_MEND])
    return mended


async def sizes(bus: Bus, flows: Sequence[Flow], *, before_ms: int | None = None) -> list[int]:
    """How many leads of each flow wait, or are scheduled before that time of Postgres's clock."""
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
