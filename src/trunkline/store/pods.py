"""Pods, from their heartbeats and from Kubernetes. Postgres is the truth; Valkey's pools follow.

Every process of a pod gets a number when it registers, its incarnation. Writes with an older one are refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg

from trunkline.routing import (
    Allocation,
    ClusterPod,
    LostAllocation,
    Pod,
    PodHeartbeat,
    PodSuperseded,
    RegisteredPod,
)
from trunkline.store import allocations
from trunkline.store.database import Connection
from trunkline.store.rows import columns, pick
from trunkline.store.sql import Area
from trunkline.value import Value

_SQL = Area("pods")

# Boot ids of earlier processes that are stored: a heartbeat of one of them is late, or from a second cluster.
PAST_BOOTS_MAX = 8


class TierTarget(Value, frozen=True):
    """A tier of the published config, in the order in which new pods are assigned."""

    tier: str
    target: int
    calls_max: int


async def register(
    tx: Connection, beat: PodHeartbeat, tiers: Sequence[TierTarget], *, may_insert: bool
) -> RegisteredPod | PodSuperseded | None:
    """A heartbeat that Valkey could not assign: of a new pod, of a new process of a known one, or of one that Valkey
    has lost. None: the pod is unknown, and heartbeats alone register none here."""
    known = await tx.fetchrow(_SQL.lock, beat.pod)
    if known is None:
        if not may_insert:
            return None
        await tx.execute(_SQL.lock_tiers)
        inserted = await tx.fetchrow(
            _SQL.insert,
            *_values(beat),
            *columns(tiers, "tier", "target", "calls_max"),
            "",
            True,
            list(beat.hanging),
        )
        if inserted is not None:
            return await _registered(tx, beat.version, inserted, is_new=True)
        known = await tx.fetchrow(_SQL.lock, beat.pod)
        assert known is not None, "it was there when it was to be made"
    is_same = known["boot_id"] == beat.boot_id
    if not is_same and beat.boot_id in known["past_boots"]:
        return PodSuperseded()
    # A pod that Kubernetes reported has no boot id before its first heartbeat.
    if is_same or (known["boot_id"] == "" and known["uid"] != ""):
        if known["sequence"] >= beat.sequence:
            return await _registered(tx, beat.version, known)
        continued = await tx.fetchrow(_SQL.continue_incarnation, *_values(beat), list(beat.hanging))
        return await _registered(tx, beat.version, continued)
    await _append_unreached(tx, beat.pod)
    row = await tx.fetchrow(_SQL.replace, *_values(beat), "", True, PAST_BOOTS_MAX, list(beat.hanging))
    assert row is not None, "it is locked"
    lost = await lose_calls(tx, beat.pod, before=row["incarnation"], named=beat.calls)
    return await _registered(tx, beat.version, row, lost=lost)


async def lose_calls(
    tx: Connection, pod: str, *, before: int, named: Sequence[str] = ()
) -> list[LostAllocation]:
    """Allocations of earlier incarnations that the present one does not name."""
    rows = await tx.fetch(_SQL.lose_calls, pod, before, list(named))
    return [LostAllocation(row["id"], row["call"]) for row in rows if not row["stays"]]


async def write_beats(conn: Connection, beats: Sequence[tuple[PodHeartbeat, int]]) -> None:
    """Heartbeats with the incarnations they are of; each pod at most once."""
    await conn.execute(
        _SQL.write_beats,
        [beat.pod for beat, _ in beats],
        [incarnation for _, incarnation in beats],
        [beat.sequence for beat, _ in beats],
        [beat.leaving for beat, _ in beats],
        [" ".join(beat.calls) for beat, _ in beats],
        [beat.ip for beat, _ in beats],
        [beat.port for beat, _ in beats],
        [beat.version for beat, _ in beats],
        [beat.base_url for beat, _ in beats],
        [beat.interval_s for beat, _ in beats],
        [" ".join(beat.hanging) for beat, _ in beats],
    )


async def join_calls(conn: Connection, named: Sequence[tuple[str, str]]) -> None:
    """Calls that pods (pod, call) name for the first time: their agent is there. One without a pod is attached
    again."""
    for row in await conn.fetch(_SQL.join_calls, *zip(*named, strict=True)):
        try:
            await conn.execute(_SQL.attach, row["id"], row["pod"])
        except asyncpg.UniqueViolationError:
            continue  # another call got the slot at the same time


async def end_dropped(conn: Connection, dropped: Sequence[tuple[str, str]]) -> list[UUID]:
    """Calls that pods (pod, call) named and no longer name."""
    return [row["id"] for row in await conn.fetch(_SQL.end_dropped, *zip(*dropped, strict=True))]


async def mark_receiving(conn: Connection) -> None:
    await conn.execute(_SQL.mark_receiving)
    await conn.execute(_SQL.forget_future_heartbeats)


async def calls_of(conn: Connection, pod: str) -> list[str]:
    return [row["call"] for row in await conn.fetch(_SQL.calls_of, pod)]


async def drain(conn: Connection, pod: str, ttl_s: float) -> None:
    """Keep new calls away for `ttl_s`; 0 ends the drain."""
    await conn.execute(_SQL.drain, pod, ttl_s)


@dataclass(frozen=True, slots=True)
class UnnamedCall:
    id: UUID
    call: str
    pod: str


@dataclass(frozen=True, slots=True)
class Reset:
    """A pod that an operator freed: the calls whose allocations ended, those that it still names, and those whose
    handlers hang, which only the pod itself can end."""

    calls: Sequence[str]
    still_named: Sequence[str]
    hanging: Sequence[str]
    status: str = "unknown"


async def pods(conn: Connection, names: Sequence[str] | None = None) -> list[Pod]:
    return [pick(Pod, row) for row in await conn.fetch(_SQL.all, names if names is None else list(names))]


async def live_rows(conn: Connection, names: Sequence[str] | None = None) -> list[Allocation]:
    return [_live(row) for row in await conn.fetch(_SQL.live_rows, names if names is None else list(names))]


async def rows_by_id(conn: Connection, ids: Sequence[UUID]) -> list[Allocation]:
    return [_live(row) for row in await conn.fetch(_SQL.rows_by_id, list(ids))]


def _live(row: Any) -> Allocation:
    slot = allocations.slot_of(row)
    return Allocation(row["id"], row["call"] or "", slot, row["merchant_id"], row["turn"], at_s=row["at_s"])


async def ended_lately(conn: Connection, within_s: float) -> dict[str, int]:
    """Call -> seconds left of its tombstone."""
    rows = await conn.fetch(_SQL.ended_lately, within_s)
    return {row["call"]: row["left_s"] for row in rows if row["left_s"] > 0}


async def postgres_age_s(conn: Connection) -> float:
    age_s: float = await conn.fetchval(_SQL.postgres_age)
    return age_s


async def newest_version(conn: Connection) -> str:
    return await conn.fetchval(_SQL.newest_version) or ""


async def see(
    tx: Connection, seen: Sequence[ClusterPod], tiers: Sequence[TierTarget]
) -> tuple[list[str], list[LostAllocation]]:
    """Write what Kubernetes reports; returns the pods with something new, and the allocations that lost theirs. A pod
    that is not ready yet gets no tier: it would take a position that a ready one could fill."""
    known = {row["name"]: row for row in await tx.fetch(_SQL.seen, [pod.name for pod in seen])}
    changed: list[str] = []
    lost: list[LostAllocation] = []
    for pod in sorted(seen, key=lambda pod: pod.name):
        row = known.get(pod.name)
        if row is None and not pod.is_ready:
            continue
        if row is not None and not _is_news(pod, row):
            continue
        changed.append(pod.name)
        lost += await _see(tx, pod, tiers)
    return changed, lost


async def _see(tx: Connection, pod: ClusterPod, tiers: Sequence[TierTarget]) -> list[LostAllocation]:
    known = await tx.fetchrow(_SQL.lock, pod.name)
    values: tuple[Any, ...] = (pod.name, "", 0, pod.is_deleting, [], pod.ip, pod.port, pod.version, "", 30.0)
    await tx.execute(_SQL.note_version, pod.version)
    if known is None:
        await tx.execute(_SQL.lock_tiers)
        targets = columns(tiers, "tier", "target", "calls_max")
        await tx.fetchrow(_SQL.insert, *values, *targets, pod.uid, pod.is_ready, [])
        return []
    if known["uid"] in ("", pod.uid):
        fields = (pod.uid, pod.is_ready, pod.is_deleting, pod.ip, pod.port, pod.version)
        await tx.execute(_SQL.update_seen, pod.name, *fields)
        return []
    await _append_unreached(tx, pod.name)
    row = await tx.fetchrow(_SQL.replace, *values, pod.uid, pod.is_ready, PAST_BOOTS_MAX, [])
    assert row is not None, "it is locked"
    await tx.execute(_SQL.drain, pod.name, 0.0)
    return await lose_calls(tx, pod.name, before=row["incarnation"])


async def remove(
    tx: Connection, pod: str, *, uid: str = "", silent_s: float = 0.0
) -> list[LostAllocation] | None:
    """None: it is another pod by now, it sent a heartbeat, or it is gone already."""
    incarnation = await tx.fetchval(_SQL.lock_gone, pod, uid, silent_s)
    if incarnation is None:
        return None
    await _append_unreached(tx, pod)
    lost = await lose_calls(tx, pod, before=incarnation + 1)
    await tx.execute(_SQL.remove, pod)
    return lost


async def silence(tx: Connection, pod: str, silent_s: float) -> list[LostAllocation] | None:
    """It sent no heartbeat for `silent_s`, and stays registered: its allocations lose their pod. None: it sent one."""
    incarnation = await tx.fetchval(_SQL.lock_gone, pod, "", silent_s)
    if incarnation is None:
        return None
    await _append_unreached(tx, pod)
    return await lose_calls(tx, pod, before=incarnation + 1)


async def _append_unreached(tx: Connection, pod: str) -> None:
    """The pod is lost. Append to the mailboxes of calls that it was given and never named that they had no agent: their
    leads are called again."""
    ids = [row["id"] for row in await tx.fetch(_SQL.unreached, pod)]
    await allocations.tell_without_agent(tx, ids, "pod_lost")


async def existing(conn: Connection, names: Sequence[str]) -> set[str]:
    return {row["name"] for row in await conn.fetch(_SQL.existing, list(names))}


async def mark_changing(conn: Connection, names: Sequence[str]) -> list[str]:
    """These and no others are about to change. Returns those for which this is new, either way."""
    return [row["name"] for row in await conn.fetch(_SQL.mark_changing, list(names))]


async def change(conn: Connection, wanted: Sequence[TierTarget], names: Sequence[str]) -> dict[str, str]:
    """Give each pod (at the same index) its tier and maximum, if it has taken nothing for 2 s. Pod -> tier, of those
    that changed."""
    rows = await conn.fetch(_SQL.change, list(names), *columns(wanted, "tier", "calls_max"))
    return {row["name"]: row["tier"] for row in rows}


async def raise_maxima(conn: Connection, maxima: Mapping[str, int]) -> None:
    await conn.execute(_SQL.raise_maxima, list(maxima), list(maxima.values()))


async def unnamed(conn: Connection, after_s: float) -> list[UnnamedCall]:
    return [pick(UnnamedCall, row) for row in await conn.fetch(_SQL.unnamed, after_s)]


async def end_unnamed(conn: Connection, call: UnnamedCall, *, is_over: bool) -> bool:
    """False: the agent joined, or the call has another pod by now."""
    return await conn.fetchval(_SQL.end_unnamed, call.id, is_over, call.pod) is not None


async def end_left(conn: Connection, after_s: float) -> list[UUID]:
    """Calls without an attempt that their pods had, and have not named for this long."""
    return [row["id"] for row in await conn.fetch(_SQL.end_left, after_s)]


async def ending(conn: Connection) -> list[tuple[str, str]]:
    """Pods with the calls that they name without a live row, or whose handlers hang."""
    return [(row["pod"], row["call"]) for row in await conn.fetch(_SQL.ending)]


async def end_rows(conn: Connection, ids: Sequence[UUID], why: str) -> list[UUID]:
    return [row["id"] for row in await conn.fetch(_SQL.end_rows, list(ids), why)]


async def reset(tx: Connection, pod: str) -> Reset | None:
    """Free a pod by hand. None: no such pod."""
    left = await tx.fetchrow(_SQL.reset, pod)
    if left is None:
        return None
    rows = await live_rows(tx, [pod])
    await end_rows(tx, [row.id for row in rows], "reset")
    return Reset([row.call for row in rows if row.call], left["named"], left["hanging"])


async def forget_versions(conn: Connection) -> None:
    await conn.execute(_SQL.versions_gone)


def _is_news(pod: ClusterPod, row: Any) -> bool:
    is_same_uid = row["uid"] == pod.uid or (row["uid"] == "" and row["past_uid"] == pod.uid)
    if not is_same_uid or row["is_ready"] != pod.is_ready:
        return True
    if row["is_leaving"] != pod.is_deleting and (pod.is_deleting or row["sequence"] == 0):
        return True
    merged = (row["ip"] or pod.ip, row["port"] or pod.port, row["version"] or pod.version)
    if row["sequence"] == 0:
        merged = (pod.ip or row["ip"], pod.port or row["port"], pod.version or row["version"])
    return merged != (row["ip"], row["port"], row["version"])


async def _registered(
    tx: Connection, version: str, row: Any, *, is_new: bool = False, lost: Sequence[LostAllocation] = ()
) -> RegisteredPod:
    await tx.execute(_SQL.note_version, version)
    newest = await tx.fetchval(_SQL.newest_version)
    return RegisteredPod(
        row["incarnation"], row["tier"], is_new, row["past_boots"], newest or "", row["calls_max"], lost
    )


def _values(beat: PodHeartbeat) -> tuple[Any, ...]:
    return (
        beat.pod,
        beat.boot_id,
        beat.sequence,
        beat.leaving,
        list(beat.calls),
        beat.ip,
        beat.port,
        beat.version,
        beat.base_url,
        beat.interval_s,
    )
