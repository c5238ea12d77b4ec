"""What only the pool manager may write. Every script here carries its term and refuses an older one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trunkline.bus.pipe import Word
from trunkline.bus.router import Runner, run
from trunkline.bus.router_keys import RouterKeys
from trunkline.bus.scripts import Script, script

_LEAD = script("router_lead")
_SETTLED = script("router_settled")
_REBUILT = script("router_rebuilt")
_TIERS = script("router_tiers")
_SILENT = script("router_silent")
_REMOVE = script("router_remove")
_RECOVER = script("router_recover")
_SYNC = script("router_sync")
_RESTORE = script("router_restore")
_ENDED = script("router_ended")
_BALANCE = script("router_balance")
_MERCHANTS = script("router_merchants")
_MERCHANT = script("router_merchant")
_CENSUS = script("router_census")
_LEDGER = script("router_ledger")
_ABANDON = script("router_abandon")

# Pods that one run of a script looks at: about 20 µs each, so a few ms at most.
PAGE = 200
# Pods that one run of the balance looks at.
BALANCE_LOOKS = 1000


class TermLost(Exception):
    """Somebody newer manages the pools, or memory was lost: what was to be written was not."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """A call that lost its pod. It may live on at its carrier."""

    call_sid: str
    allocation_id: str


@dataclass(frozen=True, slots=True)
class Silent:
    pod: str
    heard_ms: str
    was_leaving: bool


@dataclass(frozen=True, slots=True)
class Unnamed:
    call_sid: str
    pod: str
    allocation_id: str


@dataclass(frozen=True, slots=True)
class Census:
    pods: Mapping[str, Sequence[str]]
    unnamed: Sequence[Unnamed]


@dataclass(frozen=True, slots=True)
class ClusterPod:
    """A pod as the cluster shows it."""

    name: str
    uid: str
    is_ready: bool
    is_deleting: bool
    ip: str = ""
    port: int = 0
    version: str = ""


@dataclass(frozen=True, slots=True)
class Synced:
    tier: str
    status: str
    orphans: Sequence[Orphan]


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call that the journal knows to have a pod."""

    call_sid: str
    allocation_id: str
    merchant_id: str
    allocated_at_s: int
    source_pool: str


@dataclass(frozen=True, slots=True)
class Lead:
    """`is_taken` False: somebody newer leads. `must_rebuild`: this memory is new, and nobody has rebuilt it yet.
    `age_s`: since when it is; for ever, if nothing was allocated before it."""

    is_taken: bool
    epoch: str
    must_rebuild: bool
    age_s: float


async def lead(bus: Runner, keys: RouterKeys, term: int) -> Lead:
    taken, epoch, rebuild, age_ms = await run(bus, keys, _LEAD, term)
    return Lead(bool(taken), epoch, bool(rebuild), age_ms / 1000)


async def silent(
    bus: Runner, keys: RouterKeys, *, ttl_s: float, gap_max_s: float, waiter_silence_ms: int = 7000
) -> tuple[int, list[Silent]]:
    """How many pods send heartbeats, and those that were silent for `ttl_s`."""
    times = (round(ttl_s * 1000), round(gap_max_s * 1000))
    total, *flat = await run(bus, keys, _SILENT, *times, PAGE, waiter_silence_ms)
    rows = [flat[i : i + 3] for i in range(0, len(flat), 3)]
    return total, [Silent(pod, heard, bool(leaving)) for pod, heard, leaving in rows]


async def census(bus: Runner, keys: RouterKeys, *, unnamed_s: float) -> Census:
    *tiers, (_, *flat) = await bus.run(_CENSUS, [keys.epoch], [keys.base, round(unnamed_s * 1000)])
    unnamed = [Unnamed(*flat[i : i + 3]) for i in range(0, len(flat), 3)]
    return Census({tier: sorted(pods) for tier, *pods in tiers}, unnamed)


async def set_merchant(bus: Runner, keys: RouterKeys, merchant_id: str, config: str) -> None:
    """Make a merchant's config live that Postgres has already; '' removes it."""
    await bus.run(_MERCHANT, [keys.epoch], [keys.base, merchant_id, config])


class Term:
    """The manager's pen, for one term of one epoch."""

    def __init__(self, bus: Runner, keys: RouterKeys, epoch: str, number: int):
        self._bus = bus
        self._keys = keys
        self.epoch = epoch
        self.number = number

    async def settled(self) -> None:
        """Nothing was allocated before this epoch: idle pods are believed at once."""
        await self._write(_SETTLED)

    async def rebuilt(self) -> None:
        """What was known is back: whoever leads next need not do it again."""
        await self._write(_REBUILT)

    async def publish_tiers(self, order: Sequence[str], tiers: Mapping[str, str]) -> bool:
        """True if they are new."""
        flat = [part for tier in tiers.items() for part in tier]
        return bool((await self._write(_TIERS, " ".join(order), *flat))[0] == 1)

    async def remove(self, pod: str, *, uid: str = "", heard_ms: str = "") -> list[Orphan] | None:
        """None: it is another pod by now, or it spoke."""
        done, *orphans = await self._write(_REMOVE, pod, uid, heard_ms)
        return _orphans(orphans) if done == 1 else None

    async def recover(self, tier: str, pods: Sequence[str]) -> tuple[int, list[tuple[str, str]]]:
        """How many were put right, and the calls that had been reset by hand with their pods."""
        fixed, *flat = await self._write(_RECOVER, tier, *pods)
        return fixed, [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]

    async def sync(self, pod: ClusterPod, *, durable_tier: str, may_be_idle: bool) -> Synced:
        fields = ["ip", pod.ip, "version", pod.version, *(("port", pod.port) if pod.port else ())]
        _, tier, status, *orphans = await self._write(
            _SYNC,
            pod.name,
            pod.uid,
            int(pod.is_ready),
            int(pod.is_deleting),
            durable_tier,
            int(may_be_idle),
            *fields,
        )
        return Synced(tier, status, _orphans(orphans))

    async def restore(
        self, pod: str, tier: str, calls: Sequence[OpenCall], *, lease_ttl_s: int, by_heartbeat: bool
    ) -> None:
        flat = [
            part
            for call in calls
            for part in (
                call.call_sid,
                call.allocation_id,
                call.merchant_id,
                call.allocated_at_s,
                call.source_pool,
            )
        ]
        await self._write(_RESTORE, pod, tier, lease_ttl_s, int(by_heartbeat), *flat)

    async def missing(self, pods: Sequence[str]) -> list[str]:
        """Those of these pods that are not there."""
        return [str(pod) for pod in (await self._write(_LEDGER, "pods", *pods))[1:]]

    async def over(self, allocations: Sequence[tuple[str, str, str]]) -> dict[str, bool]:
        """Those of these allocations (call, pod, id) that are over, by id, and whether the call itself has ended."""
        flat = [part for allocation in allocations for part in allocation]
        _, *found = await self._write(_LEDGER, "calls", *flat)
        return {found[i]: bool(found[i + 1]) for i in range(0, len(found), 2)}

    async def abandon(self, unnamed: Unnamed, *, tombstone_s: int) -> bool:
        """End the allocation of a call that never came. False: it came, or has another one by now."""
        done, *_ = await self._write(_ABANDON, unnamed.call_sid, unnamed.allocation_id, tombstone_s)
        return bool(done == 1)

    async def bury(self, ended: Mapping[str, int]) -> None:
        """Tombstones: call -> s that are left of it."""
        if ended:
            await self._write(_ENDED, *(part for call in ended.items() for part in call))

    async def balance(self) -> list[tuple[str, str]]:
        """Pods that moved, or will when their calls are over, with their new tiers."""
        _, *flat = await self._write(_BALANCE, BALANCE_LOOKS)
        return [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]

    async def merchant_edits(self) -> str:
        """How many edits by the API there were. To be asked before Postgres is."""
        _, edits = await self._write(_MERCHANTS, "?")
        return str(edits)

    async def merchants(self, truth: Mapping[str, str], edits: str) -> dict[str, str] | None:
        """Make them live; returns what was changed by hand: merchant -> JSON, '' if it was removed. None if somebody
        has edited one since `edits` were counted: the truth is no longer that, and nothing was done."""
        done, _, *flat = await self._write(
            _MERCHANTS, edits, *(part for each in truth.items() for part in each)
        )
        return {flat[i]: flat[i + 1] for i in range(0, len(flat), 2)} if done == 1 else None

    async def _write(self, lua: Script, *args: Word) -> list[Any]:
        reply = await run(self._bus, self._keys, lua, self.epoch, self.number, *args)
        values = reply if isinstance(reply, list) else [reply]
        if values[0] in (0, -1) and not (lua is _RECOVER and values[0] == 0):
            raise TermLost(f"term {self.number} of {self.epoch} does not count any more")
        return values


def _orphans(flat: Sequence[str]) -> list[Orphan]:
    return [Orphan(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]
