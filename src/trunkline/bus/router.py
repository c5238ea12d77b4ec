"""Pods and the calls that have them: the scripts of the router."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from trunkline.bus.pipe import Value
from trunkline.bus.router_keys import RouterKeys
from trunkline.bus.scripts import Script, script

_ALLOCATE = script("router_allocate")
_RELEASE = script("router_release")
_HEARTBEAT = script("router_heartbeat")
_EXPIRE = script("router_expire")
_STATUS = script("router_status")
_POD = script("router_pod")

# One run of the expiry touches at most so many pods, about 10 µs each; the next run takes the rest.
EXPIRED_MAX = 500


class Runner(Protocol):
    """The part of `Bus` that scripts need."""

    async def run(self, lua: Script, keys: Sequence[str], args: Sequence[Value] = ()) -> Any: ...


@dataclass(frozen=True, slots=True)
class Allocation:
    """A call and its pod. `base_url` is where the pod itself wants its streams, '' if it did not say."""

    pod: str
    source_pool: str
    allocated_at_s: int
    allocation_id: str
    base_url: str
    was_existing: bool


@dataclass(frozen=True, slots=True)
class Release:
    pod: str
    source_pool: str
    was_draining: bool
    pod_status: str


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
class Registration:
    """`news` is False for a heartbeat that was overtaken by a later one. `call_sid` has the pod, or ''."""

    news: bool
    tier: str
    draining: bool
    call_sid: str


@dataclass(frozen=True, slots=True)
class PodView:
    tier: str
    draining: bool
    call_sid: str
    status: str


@dataclass(frozen=True, slots=True)
class PoolCount:
    tier: str
    available: int
    assigned: int


async def allocate(
    bus: Runner,
    keys: RouterKeys,
    call_sid: str,
    *,
    merchant_id: str,
    allocation_id: str,
    lease_ttl_s: int,
    tiers: Sequence[str],
) -> Allocation | Literal["none", "ended"]:
    """Give the call a pod of the first tier that has a free one; again for the same call: the same pod."""
    reply = await bus.run(
        _ALLOCATE,
        [keys.call(call_sid), keys.ended(call_sid), keys.calls],
        [keys.base, call_sid, merchant_id, allocation_id, lease_ttl_s, *tiers],
    )
    if reply[0] == "none" or reply[0] == "ended":
        return "none" if reply[0] == "none" else "ended"
    how, pod, source_pool, allocated_at, allocation, base_url = reply
    return Allocation(pod, source_pool, int(allocated_at), allocation, base_url, how == "already")


async def release(
    bus: Runner, keys: RouterKeys, call_sid: str, *, by_pod: str, ended_ttl_s: int
) -> Release | None:
    """End the call's allocation. None: it has no pod, or not the one that lets go."""
    reply = await bus.run(
        _RELEASE,
        [keys.call(call_sid), keys.ended(call_sid), keys.calls],
        [keys.base, call_sid, by_pod, ended_ttl_s],
    )
    if reply[0] == "unknown":
        return None
    _, pod, source_pool, draining, status = reply
    return Release(pod, source_pool, bool(draining), status)


async def heartbeat(
    bus: Runner, keys: RouterKeys, beat: Beat, *, new_tier: str, lease_ttl_s: int, ended_ttl_s: int
) -> Registration:
    """Register the pod or refresh it, and make it free if nothing speaks against it."""
    pod = beat.pod
    reply = await bus.run(
        _HEARTBEAT,
        [
            keys.pod(pod),
            keys.lease(pod),
            keys.draining(pod),
            keys.pod_tier(pod),
            keys.heartbeats,
            keys.calls,
            keys.metadata,
        ],
        [
            keys.base,
            pod,
            beat.boot_id,
            beat.sequence,
            int(beat.leaving),
            " ".join(beat.calls),
            new_tier,
            lease_ttl_s,
            ended_ttl_s,
            *(part for field in beat.fields.items() for part in field),
        ],
    )
    news, tier, draining, call_sid = reply
    return Registration(bool(news), tier, bool(draining), call_sid)


async def expire(bus: Runner, keys: RouterKeys, *, ttl_s: float, gap_max_s: float) -> list[str]:
    """Forget the pods that were silent for `ttl_s`; returns their names."""
    gone: list[str] = await bus.run(
        _EXPIRE,
        [keys.heartbeats, keys.hearing, keys.calls, keys.metadata],
        [keys.base, round(ttl_s * 1000), round(gap_max_s * 1000), EXPIRED_MAX],
    )
    return gone


async def status(bus: Runner, keys: RouterKeys, tiers: Sequence[str]) -> tuple[int, list[PoolCount]]:
    """Calls that have a pod, and the pools."""
    calls, *counts = await bus.run(_STATUS, [keys.calls], [keys.base, *tiers])
    pairs = zip(counts[::2], counts[1::2], strict=True)
    return calls, [PoolCount(tier, *pair) for tier, pair in zip(tiers, pairs, strict=True)]


async def pod_view(bus: Runner, keys: RouterKeys, pod: str) -> PodView | None:
    reply = await bus.run(_POD, [keys.pod(pod), keys.pod_tier(pod), keys.draining(pod), keys.lease(pod)])
    if not reply:
        return None
    tier, draining, call_sid, pod_status = reply
    return PodView(tier, bool(draining), call_sid, pod_status)
