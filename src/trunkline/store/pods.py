"""Pods as their heartbeats and the cluster tell of them. Here they are true; Valkey's pools follow.

Every process of a pod gets a number when it registers, its incarnation. What carries an older one counts for nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg

from trunkline.store import allocations
from trunkline.store.database import Connection
from trunkline.store.rows import pick
from trunkline.store.sql import Area
from trunkline.value import Value

_SQL = Area("pods")

# Boot ids of earlier processes that are remembered: one of them speaking again is late, or a second cluster.
PAST_BOOTS_MAX = 8


class PodBeat(Value, frozen=True):
    """What a pod says of itself."""

    pod: str
    boot_id: str
    sequence: int
    leaving: bool
    calls: tuple[str, ...]
    ip: str
    port: int
    version: str
    base_url: str
    interval_s: float
    # Calls that it had lately.
    ended: tuple[str, ...] = ()
    # Calls that are over and whose handlers do not end: it takes so many calls fewer.
    hanging: tuple[str, ...] = ()
    # Those of `calls` that it is about to give to other pods.
    handing_over: tuple[str, ...] = ()


class TierTarget(Value, frozen=True):
    """A tier of the published config, in the order in which new pods are assigned."""

    tier: str
    target: int
    calls_max: int


@dataclass(frozen=True, slots=True)
class LostAllocation:
    """An allocation that lost its pod. `call` is None while its dial was not answered."""

    id: UUID
    call: str | None


@dataclass(frozen=True, slots=True)
class Registered:
    """`is_new`: nobody knew the pod. `lost` by its predecessor."""

    incarnation: int
    tier: str
    calls_max: int
    past_boots: Sequence[str]
    newest_version: str
    is_new: bool = False
    lost: Sequence[LostAllocation] = ()


@dataclass(frozen=True, slots=True)
class Superseded:
    """This process was replaced by a later one: it is late, or it is another cluster under the same names."""


async def register(
    tx: Connection, beat: PodBeat, tiers: Sequence[TierTarget], *, may_insert: bool
) -> Registered | Superseded | None:
    """A pod's word that Valkey could not place: a new pod, a new process of a known one, or one that Valkey has lost.
    None: nobody knows it, and heartbeats alone make no pod here."""
    known = await tx.fetchrow(_SQL.lock, beat.pod)
    if known is None:
        if not may_insert:
            return None
        await tx.execute(_SQL.lock_tiers)
        made = await tx.fetchrow(_SQL.insert, *_words(beat), *_targets(tiers), "", True, list(beat.hanging))
        if made is not None:
            return await _registered(tx, beat.version, made, is_new=True)
        known = await tx.fetchrow(_SQL.lock, beat.pod)
        assert known is not None, "it was there when it was to be made"
    is_same = known["boot_id"] == beat.boot_id
    if not is_same and beat.boot_id in known["past_boots"]:
        return Superseded()
    # One that the cluster told of has no boot id before its first heartbeat.
    if is_same or (known["boot_id"] == "" and known["uid"] != ""):
        if known["sequence"] >= beat.sequence:
            return await _registered(tx, beat.version, known)
        adopted = await tx.fetchrow(_SQL.adopt, *_words(beat), list(beat.hanging))
        return await _registered(tx, beat.version, adopted)
    await _tell_unreached(tx, beat.pod)
    row = await tx.fetchrow(_SQL.replace, *_words(beat), "", True, PAST_BOOTS_MAX, list(beat.hanging))
    assert row is not None, "it is locked"
    lost = await lose_calls(tx, beat.pod, before=row["incarnation"], named=beat.calls)
    return await _registered(tx, beat.version, row, lost=lost)


async def lose_calls(
    tx: Connection, pod: str, *, before: int, named: Sequence[str] = ()
) -> list[LostAllocation]:
    """What incarnations before this one had, and the present one does not name."""
    rows = await tx.fetch(_SQL.lose_calls, pod, before, list(named))
    return [LostAllocation(row["id"], row["call"]) for row in rows if not row["stays"]]


async def write_beats(conn: Connection, beats: Sequence[tuple[PodBeat, int]]) -> None:
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
    """Calls that pods (pod, call) name for the first time: their agent is there. One without a pod is given back."""
    pods, calls = [pod for pod, _ in named], [call for _, call in named]
    for row in await conn.fetch(_SQL.join_calls, pods, calls):
        try:
            await conn.execute(_SQL.attach, row["id"], row["pod"])
        except asyncpg.UniqueViolationError:
            continue  # another call got the slot in this moment


async def end_dropped(conn: Connection, dropped: Sequence[tuple[str, str]]) -> list[UUID]:
    """Calls that pods (pod, call) named and name no more."""
    rows = await conn.fetch(_SQL.end_dropped, [pod for pod, _ in dropped], [call for _, call in dropped])
    return [row["id"] for row in rows]


async def advance_hearing(conn: Connection) -> None:
    await conn.execute(_SQL.advance_hearing)
    await conn.execute(_SQL.forget_future_heartbeats)


async def calls_of(conn: Connection, pod: str) -> list[str]:
    return [row["call"] for row in await conn.fetch(_SQL.calls_of, pod)]


async def drain(conn: Connection, pod: str, ttl_s: float) -> None:
    """Keep new calls away for `ttl_s`; 0 lets them come again."""
    await conn.execute(_SQL.drain, pod, ttl_s)


class Pod(Value, frozen=True):
    name: str
    incarnation: int
    tier: str
    calls_max: int
    base_url: str
    ip: str
    port: int
    version: str
    boot_id: str
    past_boots: Sequence[str]
    uid: str
    sequence: int
    named: Sequence[str]
    hanging: Sequence[str]
    reset_calls: Sequence[str]
    interval_s: float
    is_ready: bool
    is_leaving: bool
    is_changing: bool
    unheard_s: float
    drain_left_s: float


class SlotAllocation(Value, frozen=True):
    """A live allocation on a slot. `call` is None while its dial is not answered."""

    id: UUID
    call: str | None
    pod: str
    slot: int
    incarnation: int
    merchant_id: str
    source_pool: str
    turn: int
    at_s: int


class Sighted(Value, frozen=True):
    """A pod as the cluster shows it."""

    name: str
    uid: str
    is_ready: bool
    is_deleting: bool
    ip: str
    port: int
    version: str


@dataclass(frozen=True, slots=True)
class UnnamedCall:
    id: UUID
    call: str
    pod: str


@dataclass(frozen=True, slots=True)
class FreedPod:
    """The allocations that it had, the calls that it still names, and those whose handlers hang."""

    rows: Sequence[SlotAllocation]
    named: Sequence[str]
    hanging: Sequence[str]


async def pods(conn: Connection, names: Sequence[str] | None = None) -> list[Pod]:
    return [pick(Pod, row) for row in await conn.fetch(_SQL.all, names if names is None else list(names))]


async def live_rows(conn: Connection, names: Sequence[str] | None = None) -> list[SlotAllocation]:
    return [
        pick(SlotAllocation, row)
        for row in await conn.fetch(_SQL.live_rows, names if names is None else list(names))
    ]


async def rows_by_id(conn: Connection, ids: Sequence[UUID]) -> list[SlotAllocation]:
    return [pick(SlotAllocation, row) for row in await conn.fetch(_SQL.rows_by_id, list(ids))]


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
    tx: Connection, seen: Sequence[Sighted], tiers: Sequence[TierTarget]
) -> tuple[list[str], list[LostAllocation]]:
    """What the cluster says: the pods of which it says something new, and the allocations that lost theirs. A pod that
    is not ready yet gets no tier: it would take a place that a ready one could fill."""
    known = {row["name"]: row for row in await tx.fetch(_SQL.seen, [pod.name for pod in seen])}
    changed: list[str] = []
    lost: list[LostAllocation] = []
    for pod in sorted(seen, key=lambda one: one.name):
        row = known.get(pod.name)
        if row is None and not pod.is_ready:
            continue
        if row is not None and not _is_news(pod, row):
            continue
        changed.append(pod.name)
        lost += await _see(tx, pod, tiers)
    return changed, lost


async def _see(tx: Connection, pod: Sighted, tiers: Sequence[TierTarget]) -> list[LostAllocation]:
    known = await tx.fetchrow(_SQL.lock, pod.name)
    words: tuple[Any, ...] = (pod.name, "", 0, pod.is_deleting, [], pod.ip, pod.port, pod.version, "", 30.0)
    await tx.execute(_SQL.note_version, pod.version)
    if known is None:
        await tx.execute(_SQL.lock_tiers)
        await tx.fetchrow(_SQL.insert, *words, *_targets(tiers), pod.uid, pod.is_ready, [])
        return []
    if known["uid"] in ("", pod.uid):
        said = (pod.uid, pod.is_ready, pod.is_deleting, pod.ip, pod.port, pod.version)
        await tx.execute(_SQL.update_seen, pod.name, *said)
        return []
    await _tell_unreached(tx, pod.name)
    row = await tx.fetchrow(_SQL.replace, *words, pod.uid, pod.is_ready, PAST_BOOTS_MAX, [])
    assert row is not None, "it is locked"
    await tx.execute(_SQL.drain, pod.name, 0.0)
    return await lose_calls(tx, pod.name, before=row["incarnation"])


async def remove(
    tx: Connection, pod: str, *, uid: str = "", silent_s: float = 0.0
) -> list[LostAllocation] | None:
    """None: it is another pod by now, it spoke, or it is gone already."""
    incarnation = await tx.fetchval(_SQL.lock_gone, pod, uid, silent_s)
    if incarnation is None:
        return None
    await _tell_unreached(tx, pod)
    lost = await lose_calls(tx, pod, before=incarnation + 1)
    await tx.execute(_SQL.remove, pod)
    return lost


async def silence(tx: Connection, pod: str, silent_s: float) -> list[LostAllocation] | None:
    """It has not spoken for so long, and stays known: what it had loses its pod. None: it spoke."""
    incarnation = await tx.fetchval(_SQL.lock_gone, pod, "", silent_s)
    if incarnation is None:
        return None
    await _tell_unreached(tx, pod)
    return await lose_calls(tx, pod, before=incarnation + 1)


async def _tell_unreached(tx: Connection, pod: str) -> None:
    """The pod is lost. Calls that it was given and never named are told that they had no agent: whoever answered is
    called again."""
    ids = [row["id"] for row in await tx.fetch(_SQL.unreached, pod)]
    await allocations.tell_without_agent(tx, ids, "pod_lost")


async def existing(conn: Connection, names: Sequence[str]) -> set[str]:
    return {row["name"] for row in await conn.fetch(_SQL.existing, list(names))}


async def mark_changing(conn: Connection, names: Sequence[str]) -> list[str]:
    """These and no others are about to change. Returns those of which this is new, either way."""
    return [row["name"] for row in await conn.fetch(_SQL.mark_changing, list(names))]


async def change(conn: Connection, wanted: Sequence[TierTarget], names: Sequence[str]) -> dict[str, str]:
    """Give each pod (of the same place) its tier and maximum, if it has taken nothing for 2 s. Pod -> tier, of those
    that changed."""
    rows = await conn.fetch(_SQL.change, list(names), [w.tier for w in wanted], [w.calls_max for w in wanted])
    return {row["name"]: row["tier"] for row in rows}


async def raise_maxima(conn: Connection, maxima: Mapping[str, int]) -> None:
    await conn.execute(_SQL.raise_maxima, list(maxima), list(maxima.values()))


async def unnamed(conn: Connection, after_s: float) -> list[UnnamedCall]:
    return [pick(UnnamedCall, row) for row in await conn.fetch(_SQL.unnamed, after_s)]


async def end_unnamed(conn: Connection, call: UnnamedCall, *, is_over: bool) -> bool:
    """False: it came, or has another pod by now."""
    return await conn.fetchval(_SQL.end_unnamed, call.id, is_over, call.pod) is not None


async def end_left(conn: Connection, after_s: float) -> list[UUID]:
    """Calls without an attempt that their pods have not named for so long, although they had them."""
    return [row["id"] for row in await conn.fetch(_SQL.end_left, after_s)]


async def ending(conn: Connection) -> list[tuple[str, str]]:
    """Pods with the calls that they name and that no live row gives them, or whose handlers hang."""
    return [(row["pod"], row["call"]) for row in await conn.fetch(_SQL.ending)]


async def end_rows(conn: Connection, ids: Sequence[UUID], why: str) -> list[UUID]:
    return [row["id"] for row in await conn.fetch(_SQL.end_rows, list(ids), why)]


async def reset(tx: Connection, pod: str) -> FreedPod | None:
    """Free a pod by hand. None: no such pod."""
    left = await tx.fetchrow(_SQL.reset, pod)
    if left is None:
        return None
    rows = await live_rows(tx, [pod])
    await end_rows(tx, [row.id for row in rows], "reset")
    return FreedPod(rows, left["named"], left["hanging"])


async def forget_versions(conn: Connection) -> None:
    await conn.execute(_SQL.versions_gone)


def _is_news(pod: Sighted, row: Any) -> bool:
    is_same_uid = row["uid"] == pod.uid or (row["uid"] == "" and row["past_uid"] == pod.uid)
    if not is_same_uid or row["is_ready"] != pod.is_ready:
        return True
    if row["is_leaving"] != pod.is_deleting and (pod.is_deleting or row["sequence"] == 0):
        return True
    told = (row["ip"] or pod.ip, row["port"] or pod.port, row["version"] or pod.version)
    if row["sequence"] == 0:
        told = (pod.ip or row["ip"], pod.port or row["port"], pod.version or row["version"])
    return told != (row["ip"], row["port"], row["version"])


async def _registered(
    tx: Connection, version: str, row: Any, *, is_new: bool = False, lost: Sequence[LostAllocation] = ()
) -> Registered:
    await tx.execute(_SQL.note_version, version)
    newest = await tx.fetchval(_SQL.newest_version)
    return Registered(
        row["incarnation"], row["tier"], row["calls_max"], row["past_boots"], newest or "", is_new, lost
    )


def _words(beat: PodBeat) -> tuple[Any, ...]:
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


def _targets(tiers: Sequence[TierTarget]) -> tuple[list[str], list[int], list[int]]:
    return [t.tier for t in tiers], [t.target for t in tiers], [t.calls_max for t in tiers]
