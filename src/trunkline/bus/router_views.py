"""Views of the router's pods and calls, and draining a pod."""

from collections.abc import Sequence
from dataclasses import dataclass

from trunkline.bus.keys import RouterKeys
from trunkline.bus.router import Runner, run
from trunkline.bus.scripts import script

_DRAIN = script("router_drain")
_RESET = script("router_reset")
_STATUS = script("router_status")
_POD = script("router_pod")
_LIST = script("router_list")


@dataclass(frozen=True, slots=True)
class PodView:
    name: str
    tier: str
    draining: bool
    lease: str
    status: str
    calls: tuple[str, ...] = ()
    ip: str = ""
    port: int = 0
    version: str = ""
    # The number of its process. 0 in lists, and for one that Postgres has not registered.
    incarnation: int = 0
    # Ended calls whose handlers hang, and those that it is about to hand over to other pods.
    hanging: tuple[str, ...] = ()
    handing_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RouterCall:
    call_sid: str
    pod: str
    source_pool: str
    merchant_id: str
    allocated_at_s: int
    # '' for a record that was restored from a heartbeat.
    allocation_id: str = ""


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


async def drain(bus: Runner, keys: RouterKeys, pod: str, ttl_s: int) -> Drained | None:
    """Keep new calls away for `ttl_s`; 0 ends the drain. None: there is no such pod."""
    reply = await run(bus, keys, _DRAIN, pod, ttl_s)
    if not reply:
        return None
    tier, has_call, draining, status, wakes = reply
    if wakes:
        bus.wake_dialers()
    return Drained(tier, bool(has_call), bool(draining), status)


async def reset(bus: Runner, keys: RouterKeys, pod: str, tombstone_s: int) -> str | None:
    """Free a pod by hand; its status afterwards. None: Valkey does not have it."""
    reply = await run(bus, keys, _RESET, pod, tombstone_s)
    if not reply:
        return None
    if reply[0]:
        bus.wake_dialers()
    return str(reply[1])


async def counts(bus: Runner, keys: RouterKeys) -> RouterCounts:
    calls, waiting, kept, *flat = await bus.run(_STATUS, [keys.epoch], [keys.base])
    rows = [flat[i : i + 7] for i in range(0, len(flat), 7)]
    pools = [PoolCount(tier, bool(shared), *map(int, numbers)) for tier, shared, *numbers in rows]
    return RouterCounts(calls, waiting, sorted(pools, key=lambda pool: pool.tier), kept)


async def pod_view(bus: Runner, keys: RouterKeys, pod: str) -> PodView | None:
    reply = await bus.run(_POD, [keys.epoch], [keys.base, pod])
    if not reply:
        return None
    tier, draining, lease, status, calls, ip, port, version, number, hanging, leaving = reply
    return PodView(
        pod,
        tier,
        bool(draining),
        lease,
        status,
        tuple(calls.split()),
        ip,
        int(port or 0),
        version,
        int(number or 0),
        tuple(hanging.split()),
        tuple(leaving.split()),
    )


async def pods(bus: Runner, keys: RouterKeys, first: int, count: int) -> list[PodView]:
    rows = await bus.run(_LIST, [keys.epoch], [keys.base, "pods", first, count])
    return [
        PodView(
            name,
            tier,
            bool(draining),
            "",
            status,
            tuple(calls.split()),
            ip,
            int(port or 0),
            version,
            hanging=tuple(hanging.split()),
            handing_over=tuple(leaving.split()),
        )
        for name, tier, status, draining, calls, ip, port, version, hanging, leaving in rows
    ]


async def calls(bus: Runner, keys: RouterKeys, first: int, count: int) -> list[RouterCall]:
    rows = await bus.run(_LIST, [keys.epoch], [keys.base, "calls", first, count])
    return [
        RouterCall(sid, pod, source, merchant, int(at or 0), allocation)
        for sid, pod, source, merchant, at, allocation in rows
    ]
