"""The router's scripts: calls and their pods, heartbeats, and views of pods, calls and pools."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from trunkline.bus.keys import RouterKeys
from trunkline.bus.scripts import Script, Word, script
from trunkline.bus.server import SERVER_RUN_ID
from trunkline.model import Slot
from trunkline.routing import (
    Allocation,
    EndedAllocation,
    HeartbeatResult,
    PodHeartbeat,
    PodSuperseded,
    RegisteredPod,
    Unallocated,
)
from trunkline.schema.router import RouterCall, RouterPod
from trunkline.value import Value

_ALLOCATE = script("router_allocate")
_PROPOSE_SLOTS = script("router_propose")
_FREE_SLOTS = script("router_free_slots")
_BEGIN = script("router_begin")
_FREE = script("router_free")
_OCCUPY = script("router_occupy")
_RELEASE = script("router_release")
_HEARTBEAT = script("router_heartbeat")
_RECEIVING = script("router_hearing")
_SUPERSEDED = script("router_superseded")
_DRAIN = script("router_drain")
_RESET = script("router_reset")
_STATUS = script("router_status")
_POD = script("router_pod")
_LIST = script("router_list")
LEASE_TTL_S = 24 * 3600
# Allocations that one script ends: about 15 µs each.
FREE_MAX = 100
# In place of an incarnation: Postgres has not been queried for it.
_NOT_QUERIED = "?"


class Runner(Protocol):
    """The part of `Bus` that scripts need."""

    async def run(self, lua: Script, keys: Sequence[str], args: Sequence[Word] = ()) -> Any: ...

    def wake_dialers(self) -> None: ...


class RouterBus:
    """Runs the router's scripts under its keys."""

    __slots__ = ("_bus", "_epoch", "_prefix", "keys")

    def __init__(self, bus: Runner, keys: RouterKeys):
        self._bus = bus
        self.keys = keys
        self._epoch = (keys.epoch,)
        self._prefix = keys.base

    async def run(self, lua: Script, *args: Word) -> Any:
        """Every script is sent with its epoch first; `scripts.py` adds the other keys that it declares."""
        return await self._bus.run(lua, self._epoch, (self._prefix, SERVER_RUN_ID, *args))

    async def read(self, lua: Script, *args: Word) -> Any:
        """A script that does not depend on the epoch."""
        return await self._bus.run(lua, self._epoch, (self._prefix, *args))

    def wake(self, wakes: int) -> None:
        """1: a slot came free while dials wait for agents."""
        if wakes:
            self._bus.wake_dialers()


@dataclass(frozen=True, slots=True)
class WaitRule:
    """How calls wait for a pod. `most_ms` 0: they do not. A call without a request for `silence_ms` has left."""

    most_ms: int = 0
    silence_ms: int = 7000
    waiters_max: int = 1000


NO_WAIT = WaitRule()


class SlotProposals(Value, frozen=True):
    """The slots of those dials that got one. `free`: by searched tier, the slots that dials may still reserve."""

    slots: Mapping[UUID, Slot]
    free: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class BeatRule:
    """`may_register`: heartbeats register pods. `settle_ms`: how long after a loss an idle pod does not count as free
    where Postgres has not been read. `tiers`: used if none are published."""

    may_register: bool = True
    lease_ttl_s: int = LEASE_TTL_S
    settle_ms: int = 15_000
    tiers: str = ""


@dataclass(frozen=True, slots=True)
class Unregistered:
    """Valkey does not have this process of the pod: query Postgres, and repeat with `known`. Nothing was written.
    `tiers` are the published ones, as texts."""

    tiers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PodView:
    """`incarnation`: the number of its process, 0 for one that Postgres has not registered."""

    pod: RouterPod
    incarnation: int


@dataclass(frozen=True, slots=True)
class PoolCount:
    """`room` is how many calls the pool could take now, `kept` how many slots are reserved for dials."""

    tier: str
    is_shared: bool
    available: int
    assigned: int
    room: int
    waiting: int
    kept: int = 0


@dataclass(frozen=True, slots=True)
class RouterCounts:
    calls: int
    waiting: int
    pools: Sequence[PoolCount]
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Drained:
    tier: str
    has_active_call: bool
    is_draining: bool
    status: str


async def allocate(
    bus: RouterBus,
    call: str,
    *,
    merchant_id: str,
    allocation_id: UUID,
    lease_ttl_s: int,
    wait: WaitRule = NO_WAIT,
    is_alone: bool = False,
) -> Allocation | Unallocated | None:
    """Give the call a pod of the first tier that has a free one; again for the same call: the same pod. `is_alone`:
    Postgres is unavailable, so this projection decides even if it is not rebuilt, with pods that sent a heartbeat since
    the loss. None: the projection was lost or is not rebuilt yet, so Postgres has to pick."""
    rule = (wait.most_ms, wait.silence_ms, wait.waiters_max, int(is_alone))
    how, *rest = await bus.run(_ALLOCATE, call, merchant_id, str(allocation_id), lease_ttl_s, *rule)
    match how:
        case "stale":
            return None
        case "none":
            return Unallocated("busy", is_misconfigured=bool(rest[0]))
        case "hold":
            return Unallocated("hold", int(rest[0]))
        case "ended":
            return Unallocated("ended")
    pod, source_pool, at_s, stored_id, base_url, is_misconfigured, no, incarnation = rest
    is_existing = how == "already"
    return Allocation(
        UUID(stored_id) if is_existing else allocation_id,
        call,
        Slot(pod, int(no), int(incarnation), source_pool),
        merchant_id,
        base_url=base_url,
        is_existing=is_existing,
        at_s=int(at_s),
        is_misconfigured=bool(is_misconfigured),
    )


async def propose_slots(bus: RouterBus, wants: Sequence[tuple[UUID, str]]) -> SlotProposals | None:
    """Propose a slot for each of these dials (allocation id, merchant id), in one script. The leader takes back a
    proposal without a row in Postgres after 5 s. None: the projection was lost."""
    words: list[str] = []
    for allocation_id, merchant_id in wants:
        words += str(allocation_id), merchant_id
    how, *rest = await bus.run(_PROPOSE_SLOTS, *words)
    if how == "stale":
        return None
    slots, (*kept, free) = {}, rest
    for (allocation_id, _), row in zip(wants, kept, strict=True):
        if row:
            slots[allocation_id] = Slot(row[0], int(row[1]), int(row[2]), row[3])
    return SlotProposals(slots, _counts(free))


async def free_slots(bus: RouterBus) -> Mapping[str, int] | None:
    """Tier -> slots that dials may reserve now. If there are none, the next freed slot wakes the dialers. None: the
    projection was lost."""
    how, *flat = await bus.run(_FREE_SLOTS)
    return None if how == "stale" else _counts(flat)


async def begin(bus: RouterBus, begun: Allocation, *, lease_ttl_s: int = LEASE_TTL_S) -> None:
    """A call with a reservation was answered, or Postgres picked. Idempotent; another slot of the allocation is
    freed."""
    slot = begun.slot
    place = (slot.pod, slot.no, slot.incarnation, begun.merchant_id, slot.source_pool)
    (wakes,) = await bus.run(_BEGIN, lease_ttl_s, str(begun.id), begun.call, *place, begun.turn)
    bus.wake(wakes)


async def free(bus: RouterBus, allocation_ids: Sequence[UUID], *, tombstone_s: int) -> None:
    """These allocations are over, reserved or begun. Idempotent; calls that had begun leave a tombstone."""
    for first in range(0, len(allocation_ids), FREE_MAX):
        wakes, _ = await bus.run(_FREE, tombstone_s, *map(str, allocation_ids[first : first + FREE_MAX]))
        bus.wake(wakes)


async def occupy(bus: RouterBus, pod: str, slot: int, allocation_id: UUID) -> None:
    """Postgres has this slot for this allocation: it is not proposed again, and checked in 2 s."""
    await bus.run(_OCCUPY, pod, slot, str(allocation_id))


async def release(
    bus: RouterBus, call: str, *, by_pod: str, ended_ttl_s: int, only: str = ""
) -> EndedAllocation | None:
    """End the call's allocation, or `only` this one of it. None: it has no pod, or not the one that releases."""
    reply = await bus.run(_RELEASE, call, by_pod, ended_ttl_s, only)
    bus.wake(reply[-1])
    if reply[0] == "unknown":
        return None
    _, pod, source_pool, draining, status, allocation_id, _ = reply
    return EndedAllocation(
        UUID(allocation_id) if allocation_id else None, pod, source_pool, bool(draining), status
    )


async def heartbeat(
    bus: RouterBus, beat: PodHeartbeat, rule: BeatRule, known: RegisteredPod | None = None
) -> HeartbeatResult | Unregistered | PodSuperseded:
    """Register the pod or refresh it, and make it free if nothing prevents it. `known` is the pod in Postgres, None if
    it has not been queried."""
    incarnation = _NOT_QUERIED if known is None else str(known.incarnation)
    pod = known or RegisteredPod()
    how, *reply = await bus.run(
        _HEARTBEAT,
        beat.pod,
        beat.boot_id,
        beat.sequence,
        int(beat.leaving),
        " ".join(beat.calls),
        incarnation,
        pod.tier,
        int(pod.is_new),
        json.dumps([*pod.past_boots]) if pod.incarnation else "",
        pod.newest_version,
        int(rule.may_register),
        rule.lease_ttl_s,
        rule.settle_ms,
        rule.tiers,
        *("ip", beat.ip, "port", beat.port, "version", beat.version, "base_url", beat.base_url),
        *("interval_s", f"{beat.interval_s:g}", "hanging", " ".join(beat.hanging)),
        *("handing_over", " ".join(beat.handing_over)),
    )
    match how:
        case "register":
            return Unregistered(dict(pairs(reply)))
        case "superseded":
            return PodSuperseded(int(reply[0]))
    is_news, tier, draining, calls, again_ms, max_concurrent, number, wakes = reply
    bus.wake(wakes)
    held = tuple(calls.split())
    return HeartbeatResult(
        bool(is_news), tier, bool(draining), held, int(again_ms) / 1000, int(max_concurrent), int(number)
    )


async def mark_receiving(bus: RouterBus, *, gap_max_s: float) -> float:
    """Mark that this process receives heartbeats. Returns for how long they were received without a gap, in s."""
    (heard_ms,) = await bus.run(_RECEIVING, round(gap_max_s * 1000))
    return int(heard_ms) / 1000


async def count_superseded(bus: RouterBus, pod: str) -> int:
    """How many heartbeats replaced processes of this pod sent within two minutes, this one included."""
    (times,) = await bus.run(_SUPERSEDED, pod)
    return int(times)


async def drain(bus: RouterBus, pod: str, ttl_s: int) -> Drained | None:
    """Keep new calls away for `ttl_s`; 0 ends the drain. None: there is no such pod."""
    reply = await bus.run(_DRAIN, pod, ttl_s)
    if not reply:
        return None
    tier, has_call, draining, status, wakes = reply
    bus.wake(wakes)
    return Drained(tier, bool(has_call), bool(draining), status)


async def reset(bus: RouterBus, pod: str, tombstone_s: int) -> str | None:
    """Free a pod by hand; its status afterwards. None: Valkey does not have it."""
    reply = await bus.run(_RESET, pod, tombstone_s)
    if not reply:
        return None
    bus.wake(reply[0])
    return str(reply[1])


async def counts(bus: RouterBus) -> RouterCounts:
    calls, waiting, kept, *flat = await bus.read(_STATUS)
    rows = [flat[i : i + 7] for i in range(0, len(flat), 7)]
    pools = [PoolCount(tier, bool(shared), *map(int, numbers)) for tier, shared, *numbers in rows]
    return RouterCounts(calls, waiting, sorted(pools, key=lambda pool: pool.tier), kept)


async def pod_view(bus: RouterBus, pod: str) -> PodView | None:
    reply = await bus.read(_POD, pod)
    if not reply:
        return None
    tier, draining, lease, status, calls, ip, port, version, number, hanging, leaving = reply
    shown = _pod(pod, tier, draining, lease, status, calls, ip, port, version, hanging, leaving)
    return PodView(shown, int(number or 0))


async def pods(bus: RouterBus, first: int, count: int) -> list[RouterPod]:
    return [
        _pod(name, tier, draining, "", status, *rest)
        for name, tier, status, draining, *rest in await bus.read(_LIST, "pods", first, count)
    ]


async def calls(bus: RouterBus, first: int, count: int) -> list[RouterCall]:
    return [
        RouterCall(sid, pod, source, merchant, int(at or 0))
        for sid, pod, source, merchant, at, _ in await bus.read(_LIST, "calls", first, count)
    ]


def pairs(flat: Sequence[Any]) -> Sequence[tuple[Any, Any]]:
    """The fields and values of a hash, as a script returns it."""
    return list(zip(flat[::2], flat[1::2], strict=True))


def _counts(flat: Sequence[Any]) -> dict[str, int]:
    return {tier: int(count) for tier, count in pairs(flat)}


def _pod(
    name: str, tier: str, draining: int, lease: str, status: str, calls: str, ip: str, port: str, version: str,
    hanging: str, handing_over: str,
) -> RouterPod:  # fmt: skip
    first = lease or calls.partition(" ")[0]
    return RouterPod(
        name, tier, bool(draining), first != "", first, status, calls.split(), ip, int(port or 0), version,
        hanging.split(), handing_over.split(),
    )  # fmt: skip
