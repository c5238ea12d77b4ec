"""Writes that only the pool manager may make. Every script here carries its term and refuses an older one."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from trunkline.bus.router import RouterBus, pairs
from trunkline.bus.scripts import Script, Word, script
from trunkline.routing import Allocation, GonePod, Pod
from trunkline.value import Value

_LEAD = script("router_acquire_leadership")
_REBUILT = script("router_rebuilt")
_TIERS = script("router_tiers")
_SILENT = script("router_silent")
_REMOVE = script("router_remove")
_PODS = script("router_pods")
_UNPROVEN = script("router_unproven")
_PROVE = script("router_prove")
_ENDED = script("router_ended")
_MERCHANTS = script("router_merchants")
_MERCHANT = script("router_merchant")
_CENSUS = script("router_census")
_VERSION = script("router_version")

# Pods per run of a script: about 30 µs each, so a few ms at most.
PAGE = 100
# A proposal needs its row by then.
PROOF_S = 5.0
PROOFS_MAX = 500
# The largest that a script can compare.
MAX_INCARNATION = 2**53 - 1


class TermLost(Exception):
    """A newer leader manages the pools, or the projection was lost: nothing was written."""


class ProjectedPod(Value, frozen=True):
    """A pod in Postgres, with its live allocations. `is_certain`: a pod that looks free is free."""

    pod: Pod
    allocations: Sequence[Allocation] = ()
    is_certain: bool = True


@dataclass(frozen=True, slots=True)
class Put:
    """`fixed` pods were wrong before. `drains`: pod -> s that its drain lasts, where Postgres differs."""

    fixed: int
    drains: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Unproven:
    """Allocations to compare with Postgres; `reset`: allocation -> call and pod that an operator reset by hand."""

    ids: Sequence[str]
    reset: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LeadershipClaim:
    """`is_taken` False: a newer term leads. `must_rebuild`: this projection is new and not rebuilt yet."""

    is_taken: bool
    epoch: str
    must_rebuild: bool
    age_s: float


async def lead(bus: RouterBus, term: int) -> LeadershipClaim:
    taken, epoch, rebuild, age_ms = await bus.run(_LEAD, term)
    return LeadershipClaim(bool(taken), epoch, bool(rebuild), age_ms / 1000)


async def silent(
    bus: RouterBus, *, ttl_s: float, gap_max_s: float, waiter_silence_ms: int = 7000
) -> tuple[int, list[GonePod]]:
    """How many pods send heartbeats, and those that were silent for `ttl_s`."""
    times = (round(ttl_s * 1000), round(gap_max_s * 1000))
    total, *flat = await bus.run(_SILENT, *times, PAGE, waiter_silence_ms)
    rows = [flat[i : i + 3] for i in range(0, len(flat), 3)]
    return total, [GonePod(pod, "", heard_ms, bool(leaving)) for pod, heard_ms, leaving in rows]


async def census(bus: RouterBus) -> dict[str, list[str]]:
    """Tier -> its pods."""
    return {tier: sorted(pods) for tier, *pods in await bus.read(_CENSUS)}


async def set_merchant(bus: RouterBus, merchant_id: str, config: str) -> None:
    """Publish a merchant's config that Postgres has already; '' removes it."""
    await bus.read(_MERCHANT, merchant_id, config)


class Term:
    """The manager's writes, for one term of one epoch."""

    def __init__(self, bus: RouterBus, epoch: str, number: int):
        self._bus = bus
        self.epoch = epoch
        self.number = number

    async def rebuilt(self) -> None:
        """Mark the projection as rebuilt: the next leader need not do it again."""
        await self._write(_REBUILT)

    async def publish_tiers(self, order: Sequence[str], tiers: Mapping[str, str]) -> bool:
        """True if they are new."""
        flat = [part for tier in tiers.items() for part in tier]
        return bool((await self._write(_TIERS, " ".join(order), *flat))[0] == 1)

    async def remove(
        self, pod: str, *, heard_ms: str = "", oldest: int = 0, newest: int = MAX_INCARNATION
    ) -> bool:
        """False: it is another process by now, or sent a heartbeat. 0 is the incarnation of a pod not in Postgres."""
        done, *_ = await self._write(_REMOVE, pod, heard_ms, oldest, newest)
        return bool(done == 1)

    async def put(self, pods: Sequence[ProjectedPod], *, lease_ttl_s: int) -> Put:
        """Make pods what Postgres has. At most `PAGE` at once."""
        _, fixed, wakes, *drains = await self._write(_PODS, lease_ttl_s, *(_json(_pod(pod)) for pod in pods))
        self._bus.wake(wakes)
        return Put(fixed, {pod: int(ttl_s) for pod, ttl_s in pairs(drains)})

    async def unproven(self) -> Unproven:
        _, ids, reset = await self._write(_UNPROVEN, round(PROOF_S * 1000), PROOFS_MAX)
        return Unproven(ids, dict(pairs(reset)))

    async def prove(
        self, live: Sequence[Allocation], others: Sequence[str], reset: Sequence[str], *, lease_ttl_s: int
    ) -> int:
        """Returns how many proposals were taken back."""
        documents = (_json([_row(each) for each in live]), _json(others), _json(reset))
        _, wakes, given_back = await self._write(_PROVE, lease_ttl_s, *documents)
        self._bus.wake(wakes)
        return int(given_back)

    async def set_version(self, version: str) -> None:
        """The newest of the agents' versions: new calls prefer it."""
        await self._write(_VERSION, version)

    async def bury(self, ended: Mapping[str, int]) -> None:
        """Tombstones: call -> its remaining s."""
        if ended:
            await self._write(_ENDED, *(part for call in ended.items() for part in call))

    async def merchant_edits(self) -> str:
        """How many edits the API has made. To be read before Postgres is."""
        _, edits = await self._write(_MERCHANTS, "?")
        return str(edits)

    async def merchants(self, truth: Mapping[str, str], edits: str) -> dict[str, str] | None:
        """Publish them; returns what was changed by hand: merchant -> JSON, '' if it was removed. None if the API has
        made another edit since `edits` were counted: `truth` is out of date, and nothing was done."""
        done, _, *flat = await self._write(
            _MERCHANTS, edits, *(part for each in truth.items() for part in each)
        )
        return dict(pairs(flat)) if done == 1 else None

    async def _write(self, lua: Script, *args: Word) -> list[Any]:
        reply = await self._bus.run(lua, self.epoch, self.number, *args)
        values = reply if isinstance(reply, list) else [reply]
        if values[0] == 0:
            raise TermLost(f"term {self.number} of {self.epoch} does not count any more")
        return values


def _json(content: object) -> str:
    return msgspec.json.encode(content).decode()


def _pod(projected: ProjectedPod) -> dict[str, object]:
    pod = projected.pod
    is_heard = pod.sequence > 0
    return {
        "name": pod.name,
        "incarnation": str(pod.incarnation),
        "tier": pod.tier,
        "fields": {
            **({"boot_id": pod.boot_id, "sequence": str(pod.sequence)} if is_heard else {}),
            "calls": " ".join(pod.named),
            "hanging": " ".join(pod.hanging),
            "past_boots": json.dumps([*pod.past_boots]),
            "base_url": pod.base_url,
            "ip": pod.ip,
            "port": str(pod.port or ""),
            "version": pod.version,
            "interval_s": f"{pod.interval_s:g}",
            "uid": pod.uid,
        },
        "ready": _flag(pod.is_ready),
        "leaving": _flag(pod.is_leaving),
        "changing": _flag(pod.is_changing),
        "reset_calls": " ".join(pod.reset_calls),
        "drain_s": round(pod.drain_left_s),
        "unheard_ms": max(0, round(pod.unheard_s * 1000)) if is_heard else -1,
        "believed": int(projected.is_certain),
        "rows": [_row(each) for each in projected.allocations],
    }


def _row(allocation: Allocation) -> dict[str, str]:
    """As texts: the script compares them with those in Valkey."""
    slot = allocation.slot
    return {
        "id": str(allocation.id),
        "sid": allocation.call,
        "pod": slot.pod,
        "slot": str(slot.no),
        "incarnation": str(slot.incarnation),
        "merchant": allocation.merchant_id,
        "source": slot.source_pool,
        "turn": str(allocation.turn),
        "at_s": str(allocation.at_s),
    }


def _flag(is_set: bool) -> str:
    return "1" if is_set else "0"
