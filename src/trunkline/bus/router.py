"""Calls and their pods: the hot scripts of the router."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trunkline.bus.keys import RouterKeys
from trunkline.bus.pipe import Word
from trunkline.bus.scripts import Script, script
from trunkline.bus.server import SERVER_RUN_ID
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
LEASE_TTL_S = 24 * 3600
# Allocations that one script ends: about 15 µs each.
FREE_MAX = 100
# In place of an incarnation: Postgres has not been queried for it.
_NOT_QUERIED = "?"


class Runner(Protocol):
    """The part of `Bus` that scripts need."""

    async def run(self, lua: Script, keys: Sequence[str], args: Sequence[Word] = ()) -> Any: ...

    def wake_dialers(self) -> None: ...


@dataclass(frozen=True, slots=True)
class WaitRule:
    """How calls wait for a pod. `most_ms` 0: they do not. A call without a request for `silence_ms` has left."""

    most_ms: int = 0
    silence_ms: int = 7000
    waiters_max: int = 1000


@dataclass(frozen=True, slots=True)
class Allocation:
    """A call and its pod. `base_url` is the pod's own address for streams, '' if it reported none. `is_misconfigured`:
    the merchant's config names no existing tier, so standard was tried."""

    pod: str
    source_pool: str
    allocated_at_s: int
    allocation_id: str
    base_url: str
    was_existing: bool
    is_misconfigured: bool = False
    slot: int = 0
    incarnation: int = 0


class Proposal(Value, frozen=True):
    """A slot that was reserved for a dial. Postgres decides whether it is free."""

    pod: str
    slot: int
    incarnation: int
    source_pool: str
    base_url: str


class SlotProposals(Value, frozen=True):
    """For each dial its proposal, or None. `free`: by searched tier, the slots that dials may still reserve."""

    proposals: tuple[Proposal | None, ...]
    free: Mapping[str, int]


class Stale(Value, frozen=True):
    """This projection was lost or is not rebuilt yet, so Postgres has to pick."""


class BegunCall(Value, frozen=True):
    """A call and its slot in Postgres."""

    allocation_id: str
    call_sid: str
    pod: str
    slot: int
    incarnation: int
    merchant_id: str
    source_pool: str
    turn: int = 0


@dataclass(frozen=True, slots=True)
class NoPod:
    is_misconfigured: bool = False


@dataclass(frozen=True, slots=True)
class QueuedForPod:
    """To be requested again: how many calls wait before this one, and how long it has waited."""

    before: int
    waited_ms: int


@dataclass(frozen=True, slots=True)
class CallOver:
    """The call has ended."""


@dataclass(frozen=True, slots=True)
class Release:
    pod: str
    source_pool: str
    was_draining: bool
    pod_status: str
    allocation_id: str


@dataclass(frozen=True, slots=True)
class Beat:
    """A pod's heartbeat. `sequence` grows with every heartbeat of one `boot_id`."""

    pod: str
    boot_id: str
    sequence: int
    calls: Sequence[str]
    leaving: bool
    fields: Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class BeatRule:
    """`may_register`: heartbeats register pods. `settle_ms`: how long after a loss an idle pod does not count as free
    where Postgres has not been read. `tiers`: used if none are published."""

    may_register: bool = True
    lease_ttl_s: int = LEASE_TTL_S
    settle_ms: int = 15_000
    tiers: str = ""


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod in Postgres. An incarnation of 0: Postgres is unavailable. `is_new`: it never had the pod before."""

    incarnation: int = 0
    tier: str = ""
    is_new: bool = False
    past_boots: Sequence[str] = ()
    newest_version: str = ""


@dataclass(frozen=True, slots=True)
class Registration:
    """`is_news` is False for a heartbeat that a later one overtook. `calls` have the pod. `again_ms`: when its next
    heartbeat should come, 0 for as usual. A tier of '' is that of a pod that may not register itself, an incarnation of
    0 that of one that Postgres does not have yet."""

    is_news: bool
    tier: str
    draining: bool
    calls: tuple[str, ...]
    again_ms: int
    max_concurrent: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Unregistered:
    """Valkey does not have this process of the pod: query Postgres, and repeat with `known`. Nothing was written.
    `tiers` are the published ones, as texts."""

    tiers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PodSuperseded:
    """A newer process has this name. `times`: how often this was returned within two minutes."""

    times: int = 1


async def run(bus: Runner, keys: RouterKeys, lua: Script, *args: Word) -> Any:
    """Every script of the router is sent with its epoch first; `scripts.py` adds the other keys that it declares."""
    return await bus.run(lua, [keys.epoch], [keys.base, SERVER_RUN_ID, *args])


async def allocate(
    bus: Runner,
    keys: RouterKeys,
    call_sid: str,
    *,
    merchant_id: str,
    allocation_id: str,
    lease_ttl_s: int,
    wait: WaitRule = WaitRule(),  # noqa: B008  frozen
    is_alone: bool = False,
) -> Allocation | NoPod | QueuedForPod | CallOver | Stale:
    """Give the call a pod of the first tier that has a free one; again for the same call: the same pod. `is_alone`:
    Postgres is unavailable, so this projection decides even if it is not rebuilt, with pods that sent a heartbeat since
    the loss."""
    rule = (wait.most_ms, wait.silence_ms, wait.waiters_max, int(is_alone))
    how, *rest = await run(bus, keys, _ALLOCATE, call_sid, merchant_id, allocation_id, lease_ttl_s, *rule)
    match how:
        case "stale":
            return Stale()
        case "none":
            return NoPod(bool(rest[0]))
        case "hold":
            return QueuedForPod(int(rest[0]), int(rest[1]))
        case "ended":
            return CallOver()
    pod, source_pool, allocated_at, allocation, base_url, is_misconfigured, slot, incarnation = rest
    return Allocation(
        pod,
        source_pool,
        int(allocated_at),
        allocation,
        base_url,
        how == "already",
        bool(is_misconfigured),
        int(slot),
        int(incarnation),
    )


async def propose_slots(
    bus: Runner, keys: RouterKeys, wants: Sequence[tuple[str, str]]
) -> SlotProposals | Stale:
    """Propose a slot for each of these dials (allocation id, merchant id), in one script. The leader takes back a
    proposal without a row in Postgres after 5 s."""
    how, *rest = await run(bus, keys, _PROPOSE_SLOTS, *(part for want in wants for part in want))
    if how == "stale":
        return Stale()
    *kept, free = rest
    return SlotProposals(tuple(_proposal(*row) if row else None for row in kept), _counts(free))


async def free_slots(bus: Runner, keys: RouterKeys) -> Mapping[str, int] | Stale:
    """Tier -> slots that dials may reserve now. If there are none, the next freed slot wakes the dialers."""
    how, *flat = await run(bus, keys, _FREE_SLOTS)
    return Stale() if how == "stale" else _counts(flat)


async def begin(bus: Runner, keys: RouterKeys, begun: BegunCall, *, lease_ttl_s: int = LEASE_TTL_S) -> None:
    """A call with a reservation was answered, or Postgres picked. Idempotent; another slot of the allocation is
    freed."""
    (wakes,) = await run(
        bus,
        keys,
        _BEGIN,
        lease_ttl_s,
        begun.allocation_id,
        begun.call_sid,
        begun.pod,
        begun.slot,
        begun.incarnation,
        begun.merchant_id,
        begun.source_pool,
        begun.turn,
    )
    _wake(bus, wakes)


async def free(bus: Runner, keys: RouterKeys, allocation_ids: Sequence[str], *, tombstone_s: int) -> None:
    """These allocations are over, reserved or begun. Idempotent; calls that had begun leave a tombstone."""
    for page in (allocation_ids[i : i + FREE_MAX] for i in range(0, len(allocation_ids), FREE_MAX)):
        wakes, _ = await run(bus, keys, _FREE, tombstone_s, *page)
        _wake(bus, wakes)


async def occupy(bus: Runner, keys: RouterKeys, pod: str, slot: int, allocation_id: str) -> None:
    """Postgres has this slot for this allocation: it is not proposed again, and checked in 2 s."""
    await run(bus, keys, _OCCUPY, pod, slot, allocation_id)


def _proposal(pod: str, slot: int, incarnation: str, source_pool: str, base_url: str) -> Proposal:
    return Proposal(pod, int(slot), int(incarnation), source_pool, base_url)


def _counts(flat: Sequence[Any]) -> dict[str, int]:
    return {flat[i]: int(flat[i + 1]) for i in range(0, len(flat), 2)}


def _wake(bus: Runner, wakes: int) -> None:
    """A slot came free while dials wait for agents."""
    if wakes:
        bus.wake_dialers()


async def release(
    bus: Runner, keys: RouterKeys, call_sid: str, *, by_pod: str, ended_ttl_s: int, only: str = ""
) -> Release | None:
    """End the call's allocation, or `only` this one of it. None: it has no pod, or not the one that releases."""
    reply = await run(bus, keys, _RELEASE, call_sid, by_pod, ended_ttl_s, only)
    _wake(bus, reply[-1])
    if reply[0] == "unknown":
        return None
    _, pod, source_pool, draining, status, allocation_id, _ = reply
    return Release(pod, source_pool, bool(draining), status, allocation_id)


async def heartbeat(
    bus: Runner, keys: RouterKeys, beat: Beat, rule: BeatRule, known: KnownPod | None = None
) -> Registration | Unregistered | PodSuperseded:
    """Register the pod or refresh it, and make it free if nothing prevents it. `known` is the pod in Postgres, None if
    it has not been queried."""
    incarnation = _NOT_QUERIED if known is None else str(known.incarnation)
    pod = known or KnownPod()
    how, *reply = await run(
        bus,
        keys,
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
        *(part for field in beat.fields.items() for part in field),
    )
    match how:
        case "register":
            return Unregistered({reply[i]: reply[i + 1] for i in range(0, len(reply), 2)})
        case "superseded":
            return PodSuperseded(int(reply[0]))
    news, tier, draining, calls, again_ms, max_concurrent, number, wakes = reply
    _wake(bus, wakes)
    return Registration(
        bool(news),
        tier,
        bool(draining),
        tuple(calls.split()),
        int(again_ms),
        int(max_concurrent),
        int(number),
    )


async def mark_receiving(bus: Runner, keys: RouterKeys, *, gap_max_s: float) -> float:
    """Mark that this process receives heartbeats. Returns for how long they were received without a gap, in s."""
    (heard_ms,) = await run(bus, keys, _RECEIVING, round(gap_max_s * 1000))
    return int(heard_ms) / 1000


async def count_superseded(bus: Runner, keys: RouterKeys, pod: str) -> int:
    """How many heartbeats replaced processes of this pod sent within two minutes, this one included."""
    (times,) = await run(bus, keys, _SUPERSEDED, pod)
    return int(times)
