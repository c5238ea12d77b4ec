"""Calls and their pods: the hot scripts of the router."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trunkline.bus.packing import LIFE
from trunkline.bus.pipe import Word
from trunkline.bus.router_keys import RouterKeys
from trunkline.bus.scripts import Script, script

_ALLOCATE = script("router_allocate")
_RELEASE = script("router_release")
_HEARTBEAT = script("router_heartbeat")
# In the place of a tier: it has to be asked for. No tier has such a name.
_ASK = "?"


class Runner(Protocol):
    """The part of `Bus` that scripts need."""

    async def run(self, lua: Script, keys: Sequence[str], args: Sequence[Word] = ()) -> Any: ...


@dataclass(frozen=True, slots=True)
class WaitRule:
    """How calls wait for a pod. `most_ms` 0: they do not. Who is silent for `silence_ms` has left."""

    most_ms: int = 0
    silence_ms: int = 7000
    waiters_max: int = 1000


@dataclass(frozen=True, slots=True)
class Allocation:
    """A call and its pod. `base_url` is where the pod itself wants its streams, '' if it did not say.
    `is_misconfigured`: the merchant's config names no tier there is, so standard was tried."""

    pod: str
    source_pool: str
    allocated_at_s: int
    allocation_id: str
    base_url: str
    was_existing: bool
    is_misconfigured: bool = False


@dataclass(frozen=True, slots=True)
class NoPod:
    is_misconfigured: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """Ask again: so many wait before this call, and it has waited so long."""

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
    """What a pod says of itself. `sequence` grows with every heartbeat of one `boot_id`."""

    pod: str
    boot_id: str
    sequence: int
    calls: Sequence[str]
    leaving: bool
    fields: Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class BeatRule:
    """`durable_tier`: what Postgres knows of this pod, '' if nothing, None if nobody has asked it yet. `may_register`:
    heartbeats make pods known. `settle_ms`: how long after a loss of memory an idle pod is not believed. `tiers`:
    should none be published."""

    durable_tier: str | None = ""
    may_register: bool = True
    lease_ttl_s: int = 24 * 3600
    ended_ttl_s: int = 600
    settle_ms: int = 15_000
    tiers: str = ""


@dataclass(frozen=True, slots=True)
class Registration:
    """`is_news` is False for a heartbeat that was overtaken by a later one. `calls` have the pod. `again_ms`: when it
    should be heard again, 0 for as usual. A tier of '' is that of a pod that may not register itself."""

    is_news: bool
    tier: str
    draining: bool
    calls: tuple[str, ...]
    epoch: str
    again_ms: int
    max_concurrent: int


@dataclass(frozen=True, slots=True)
class TierWanted:
    """Valkey does not know the pod: ask Postgres for its tier, and tell. Nothing of the pod was written."""


async def run(bus: Runner, keys: RouterKeys, lua: Script, *args: Word) -> Any:
    """Every script of the router has one declared key, of the slot that all of its keys are in."""
    return await bus.run(lua, [keys.epoch], [keys.base, LIFE, *args])


async def allocate(
    bus: Runner,
    keys: RouterKeys,
    call_sid: str,
    *,
    merchant_id: str,
    allocation_id: str,
    lease_ttl_s: int,
    wait: WaitRule = WaitRule(),  # noqa: B008  frozen
) -> Allocation | NoPod | Hold | CallOver:
    """Give the call a pod of the first tier that has a free one; again for the same call: the same pod."""
    rule = (wait.most_ms, wait.silence_ms, wait.waiters_max)
    how, *rest = await run(bus, keys, _ALLOCATE, call_sid, merchant_id, allocation_id, lease_ttl_s, *rule)
    match how:
        case "none":
            return NoPod(bool(rest[0]))
        case "hold":
            return Hold(int(rest[0]), int(rest[1]))
        case "ended":
            return CallOver()
    pod, source_pool, allocated_at, allocation, base_url, odd = rest
    return Allocation(pod, source_pool, int(allocated_at), allocation, base_url, how == "already", bool(odd))


async def release(
    bus: Runner, keys: RouterKeys, call_sid: str, *, by_pod: str, ended_ttl_s: int, only: str = ""
) -> Release | None:
    """End the call's allocation, or `only` this one of it. None: it has no pod, or not the one that lets go."""
    reply = await run(bus, keys, _RELEASE, call_sid, by_pod, ended_ttl_s, only)
    if reply[0] == "unknown":
        return None
    _, pod, source_pool, draining, status, allocation_id = reply
    return Release(pod, source_pool, bool(draining), status, allocation_id)


async def heartbeat(bus: Runner, keys: RouterKeys, beat: Beat, rule: BeatRule) -> Registration | TierWanted:
    """Register the pod or refresh it, and make it free if nothing speaks against it."""
    reply = await run(
        bus,
        keys,
        _HEARTBEAT,
        beat.pod,
        beat.boot_id,
        beat.sequence,
        int(beat.leaving),
        " ".join(beat.calls),
        _ASK if rule.durable_tier is None else rule.durable_tier,
        int(rule.may_register),
        rule.lease_ttl_s,
        rule.ended_ttl_s,
        rule.settle_ms,
        rule.tiers,
        *(part for field in beat.fields.items() for part in field),
    )
    news, tier, draining, calls, epoch, again_ms, most = reply
    if tier == _ASK:
        return TierWanted()
    return Registration(
        bool(news), tier, bool(draining), tuple(calls.split()), epoch, int(again_ms), int(most)
    )
