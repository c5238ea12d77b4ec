"""Writes that only the pool manager may make. Every script here carries its term and refuses an older one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from trunkline.bus.keys import RouterKeys
from trunkline.bus.pipe import Word
from trunkline.bus.router import Runner, run
from trunkline.bus.scripts import Script, script
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


@dataclass(frozen=True, slots=True)
class SilentPod:
    pod: str
    heard_ms: str
    was_leaving: bool


@dataclass(frozen=True, slots=True)
class ClusterPod:
    """A pod as Kubernetes reports it."""

    name: str
    uid: str
    is_ready: bool
    is_deleting: bool
    ip: str = ""
    port: int = 0
    version: str = ""


class LiveRow(Value, frozen=True):
    """A live allocation of a slot in Postgres. A call of '': its dial is not answered yet."""

    id: str
    sid: str
    pod: str
    slot: str
    incarnation: str
    merchant: str
    source: str
    turn: str
    at_s: str


class TruePod(Value, frozen=True):
    """A pod in Postgres, with its live rows. `unheard_ms` -1: no heartbeat ever. `believed`: it counts as free where it
    looks free."""

    name: str
    incarnation: str
    tier: str
    fields: Mapping[str, str]
    ready: str
    leaving: str
    changing: str
    reset_calls: str
    drain_s: int
    unheard_ms: int
    believed: int
    rows: Sequence[LiveRow]


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


async def lead(bus: Runner, keys: RouterKeys, term: int) -> LeadershipClaim:
    taken, epoch, rebuild, age_ms = await run(bus, keys, _LEAD, term)
    return LeadershipClaim(bool(taken), epoch, bool(rebuild), age_ms / 1000)


async def silent(
    bus: Runner, keys: RouterKeys, *, ttl_s: float, gap_max_s: float, waiter_silence_ms: int = 7000
) -> tuple[int, list[SilentPod]]:
    """How many pods send heartbeats, and those that were silent for `ttl_s`."""
    times = (round(ttl_s * 1000), round(gap_max_s * 1000))
    total, *flat = await run(bus, keys, _SILENT, *times, PAGE, waiter_silence_ms)
    rows = [flat[i : i + 3] for i in range(0, len(flat), 3)]
    return total, [SilentPod(pod, heard, bool(leaving)) for pod, heard, leaving in rows]


async def census(bus: Runner, keys: RouterKeys) -> dict[str, list[str]]:
    """Tier -> its pods."""
    return {tier: sorted(pods) for tier, *pods in await bus.run(_CENSUS, [keys.epoch], [keys.base])}


async def set_merchant(bus: Runner, keys: RouterKeys, merchant_id: str, config: str) -> None:
    """Publish a merchant's config that Postgres has already; '' removes it."""
    await bus.run(_MERCHANT, [keys.epoch], [keys.base, merchant_id, config])


class Term:
    """The manager's writes, for one term of one epoch."""

    def __init__(self, bus: Runner, keys: RouterKeys, epoch: str, number: int):
        self._bus = bus
        self._keys = keys
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

    async def put(self, pods: Sequence[TruePod], *, lease_ttl_s: int) -> Put:
        """Make pods what Postgres has. At most `PAGE` at once."""
        _, fixed, wakes, *drains = await self._write(
            _PODS, lease_ttl_s, *(msgspec.json.encode(pod).decode() for pod in pods)
        )
        if wakes:
            self._bus.wake_dialers()
        return Put(fixed, {drains[i]: int(drains[i + 1]) for i in range(0, len(drains), 2)})

    async def unproven(self) -> Unproven:
        _, ids, reset = await self._write(_UNPROVEN, round(PROOF_S * 1000), PROOFS_MAX)
        return Unproven(ids, {reset[i]: reset[i + 1] for i in range(0, len(reset), 2)})

    async def prove(
        self, live: Sequence[LiveRow], others: Sequence[str], reset: Sequence[str], *, lease_ttl_s: int
    ) -> int:
        """Returns how many proposals were taken back."""
        documents = (msgspec.json.encode(part).decode() for part in (live, others, reset))
        _, wakes, given_back = await self._write(_PROVE, lease_ttl_s, *documents)
        if wakes:
            self._bus.wake_dialers()
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
        return {flat[i]: flat[i + 1] for i in range(0, len(flat), 2)} if done == 1 else None

    async def _write(self, lua: Script, *args: Word) -> list[Any]:
        reply = await run(self._bus, self._keys, lua, self.epoch, self.number, *args)
        values = reply if isinstance(reply, list) else [reply]
        if values[0] == 0:
            raise TermLost(f"term {self.number} of {self.epoch} does not count any more")
        return values
