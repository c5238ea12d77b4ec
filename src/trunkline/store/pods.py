"""Pods as their heartbeats and the cluster tell of them. Here they are true; Valkey's pools follow.

Every process of a pod gets a number when it registers, its incarnation. What carries an older one counts for nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg

from trunkline.store.database import Connection
from trunkline.store.rows import pick
from trunkline.store.sql import query
from trunkline.value import Value

_LOCK = query("pods/lock")
_LOCK_TIERS = query("pods/lock_tiers")
_INSERT = query("pods/insert")
_REPLACE = query("pods/replace")
_ADOPT = query("pods/adopt")
_LOSE_CALLS = query("pods/lose_calls")
_NOTE_VERSION = query("pods/note_version")
_NEWEST_VERSION = query("pods/newest_version")
_WRITE_BEATS = query("pods/write_beats")
_JOIN_CALLS = query("pods/join_calls")
_HOMELESS_CALLS = query("pods/homeless_calls")
_ATTACH = query("pods/attach")
_END_DROPPED = query("pods/end_dropped")
_ADVANCE_HEARING = query("pods/advance_hearing")
_FORGET_FUTURE = query("pods/forget_future_heartbeats")
_CALLS_OF = query("pods/calls_of")
_DRAIN = query("pods/drain")
_ALL = query("pods/all")
_LIVE_ROWS = query("pods/live_rows")
_ROWS_BY_ID = query("pods/rows_by_id")
_ENDED_LATELY = query("pods/ended_lately")
_POSTGRES_AGE = query("pods/postgres_age")
_SEEN = query("pods/seen")
_UPDATE_SEEN = query("pods/update_seen")
_LOCK_GONE = query("pods/lock_gone")
_REMOVE = query("pods/remove")
_EXISTING = query("pods/existing")
_MARK_CHANGING = query("pods/mark_changing")
_CHANGE = query("pods/change")
_RAISE_MAXIMA = query("pods/raise_maxima")
_UNNAMED = query("pods/unnamed")
_END_UNNAMED = query("pods/end_unnamed")
_ENDING = query("pods/ending")
_END_ROWS = query("pods/end_rows")
_RESET = query("pods/reset")
_VERSIONS_GONE = query("pods/versions_gone")

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


class TierTarget(Value, frozen=True):
    """A tier of the published config, in the order in which new pods are assigned."""

    tier: str
    target: int
    calls_max: int


@dataclass(frozen=True, slots=True)
class Lost:
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
    lost: Sequence[Lost] = ()


@dataclass(frozen=True, slots=True)
class Superseded:
    """This process was replaced by a later one: it is late, or it is another cluster under the same names."""


async def register(
    tx: Connection, beat: PodBeat, tiers: Sequence[TierTarget], *, may_insert: bool
) -> Registered | Superseded | None:
    """A pod's word that Valkey could not place: a new pod, a new process of a known one, or one that Valkey has lost.
    None: nobody knows it, and heartbeats alone make no pod here."""
    known = await tx.fetchrow(_LOCK, beat.pod)
    if known is None:
        if not may_insert:
            return None
        await tx.execute(_LOCK_TIERS)
        made = await tx.fetchrow(_INSERT, *_words(beat), *_targets(tiers), "", True)
        if made is not None:
            return await _registered(tx, beat.version, made, is_new=True)
        known = await tx.fetchrow(_LOCK, beat.pod)
        assert known is not None, "it was there when it was to be made"
    is_same = known["boot_id"] == beat.boot_id
    if not is_same and beat.boot_id in known["past_boots"]:
        return Superseded()
    # One that the cluster told of has no boot id before its first heartbeat.
    if is_same or (known["boot_id"] == "" and known["uid"] != ""):
        if known["sequence"] >= beat.sequence:
            return await _registered(tx, beat.version, known)
        return await _registered(tx, beat.version, await tx.fetchrow(_ADOPT, *_words(beat)))
    row = await tx.fetchrow(_REPLACE, *_words(beat), "", True, PAST_BOOTS_MAX)
    assert row is not None, "it is locked"
    lost = await lose_calls(tx, beat.pod, before=row["incarnation"], named=beat.calls)
    return await _registered(tx, beat.version, row, lost=lost)


async def lose_calls(tx: Connection, pod: str, *, before: int, named: Sequence[str] = ()) -> list[Lost]:
    """What incarnations before this one had, and the present one does not name."""
    rows = await tx.fetch(_LOSE_CALLS, pod, before, list(named))
    return [Lost(row["id"], row["call"]) for row in rows if not row["stays"]]


async def write_beats(conn: Connection, beats: Sequence[tuple[PodBeat, int]]) -> None:
    """Heartbeats with the incarnations they are of; each pod at most once."""
    await conn.execute(
        _WRITE_BEATS,
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
    )


async def join_calls(conn: Connection, named: Sequence[tuple[str, str]]) -> None:
    """Calls that pods (pod, call) name for the first time: their agent is there. One without a pod is given back."""
    pods, calls = [pod for pod, _ in named], [call for _, call in named]
    await conn.execute(_JOIN_CALLS, pods, calls)
    for row in await conn.fetch(_HOMELESS_CALLS, pods, calls):
        try:
            await conn.execute(_ATTACH, row["id"], row["pod"])
        except asyncpg.UniqueViolationError:
            continue  # another call got the slot in this moment


async def end_dropped(conn: Connection, dropped: Sequence[tuple[str, str]]) -> list[UUID]:
    """Calls that pods (pod, call) named and name no more."""
    rows = await conn.fetch(_END_DROPPED, [pod for pod, _ in dropped], [call for _, call in dropped])
    return [row["id"] for row in rows]


async def advance_hearing(conn: Connection) -> None:
    await conn.execute(_ADVANCE_HEARING)
    await conn.execute(_FORGET_FUTURE)


async def calls_of(conn: Connection, pod: str) -> list[str]:
    return [row["call"] for row in await conn.fetch(_CALLS_OF, pod)]


async def drain(conn: Connection, pod: str, ttl_s: float) -> None:
    """Keep new calls away for `ttl_s`; 0 lets them come again."""
    await conn.execute(_DRAIN, pod, ttl_s)


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
    reset_calls: Sequence[str]
    interval_s: float
    is_ready: bool
    is_leaving: bool
    is_changing: bool
    unheard_s: float
    drain_left_s: float


class Row(Value, frozen=True):
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


async def pods(conn: Connection, names: Sequence[str] | None = None) -> list[Pod]:
    return [pick(Pod, row) for row in await conn.fetch(_ALL, names if names is None else list(names))]


async def live_rows(conn: Connection, names: Sequence[str] | None = None) -> list[Row]:
    return [pick(Row, row) for row in await conn.fetch(_LIVE_ROWS, names if names is None else list(names))]


async def rows_by_id(conn: Connection, ids: Sequence[UUID]) -> list[Row]:
    return [pick(Row, row) for row in await conn.fetch(_ROWS_BY_ID, list(ids))]


async def ended_lately(conn: Connection, within_s: float) -> dict[str, int]:
    """Call -> seconds left of its tombstone."""
    rows = await conn.fetch(_ENDED_LATELY, within_s)
    return {row["call"]: row["left_s"] for row in rows if row["left_s"] > 0}


async def postgres_age_s(conn: Connection) -> float:
    age_s: float = await conn.fetchval(_POSTGRES_AGE)
    return age_s


async def newest_version(conn: Connection) -> str:
    return await conn.fetchval(_NEWEST_VERSION) or ""


async def see(
    tx: Connection, seen: Sequence[Sighted], tiers: Sequence[TierTarget]
) -> tuple[list[str], list[Lost]]:
    """What the cluster says: the pods of which it says something new, and the allocations that lost theirs. A pod that
    is not ready yet gets no tier: it would take a place that a ready one could fill."""
    known = {row["name"]: row for row in await tx.fetch(_SEEN, [pod.name for pod in seen])}
    changed: list[str] = []
    lost: list[Lost] = []
    for pod in sorted(seen, key=lambda one: one.name):
        row = known.get(pod.name)
        if row is None and not pod.is_ready:
            continue
        if row is not None and not _is_news(pod, row):
            continue
        changed.append(pod.name)
        lost += await _see(tx, pod, tiers)
    return changed, lost


async def _see(tx: Connection, pod: Sighted, tiers: Sequence[TierTarget]) -> list[Lost]:
    known = await tx.fetchrow(_LOCK, pod.name)
    words: tuple[Any, ...] = (pod.name, "", 0, pod.is_deleting, [], pod.ip, pod.port, pod.version, "", 30.0)
    await tx.execute(_NOTE_VERSION, pod.version)
    if known is None:
        await tx.execute(_LOCK_TIERS)
        await tx.fetchrow(_INSERT, *words, *_targets(tiers), pod.uid, pod.is_ready)
        return []
    if known["uid"] in ("", pod.uid):
        said = (pod.uid, pod.is_ready, pod.is_deleting, pod.ip, pod.port, pod.version)
        await tx.execute(_UPDATE_SEEN, pod.name, *said)
        return []
    row = await tx.fetchrow(_REPLACE, *words, pod.uid, pod.is_ready, PAST_BOOTS_MAX)
    assert row is not None, "it is locked"
    await tx.execute(_DRAIN, pod.name, 0.0)
    return await lose_calls(tx, pod.name, before=row["incarnation"])


async def remove(tx: Connection, pod: str, *, uid: str = "", silent_s: float = 0.0) -> list[Lost] | None:
    """None: it is another pod by now, it spoke, or it is gone already."""
    incarnation = await tx.fetchval(_LOCK_GONE, pod, uid, silent_s)
    if incarnation is None:
        return None
    lost = await lose_calls(tx, pod, before=incarnation + 1)
    await tx.execute(_REMOVE, pod)
    return lost


async def silence(tx: Connection, pod: str, silent_s: float) -> list[Lost] | None:
    """It has not spoken for so long, and stays known: what it had loses its pod. None: it spoke."""
    incarnation = await tx.fetchval(_LOCK_GONE, pod, "", silent_s)
    return None if incarnation is None else await lose_calls(tx, pod, before=incarnation + 1)


async def existing(conn: Connection, names: Sequence[str]) -> set[str]:
    return {row["name"] for row in await conn.fetch(_EXISTING, list(names))}


async def mark_changing(conn: Connection, names: Sequence[str]) -> list[str]:
    """These and no others are about to change. Returns those of which this is new, either way."""
    return [row["name"] for row in await conn.fetch(_MARK_CHANGING, list(names))]


async def change(conn: Connection, wanted: Sequence[TierTarget], names: Sequence[str]) -> dict[str, str]:
    """Give each pod (of the same place) its tier and maximum, if it has taken nothing for 2 s. Pod -> tier, of those
    that changed."""
    rows = await conn.fetch(_CHANGE, list(names), [w.tier for w in wanted], [w.calls_max for w in wanted])
    return {row["name"]: row["tier"] for row in rows}


async def raise_maxima(conn: Connection, maxima: Mapping[str, int]) -> None:
    await conn.execute(_RAISE_MAXIMA, list(maxima), list(maxima.values()))


async def unnamed(conn: Connection, after_s: float) -> list[UnnamedCall]:
    return [pick(UnnamedCall, row) for row in await conn.fetch(_UNNAMED, after_s)]


async def end_unnamed(conn: Connection, call: UnnamedCall, *, is_over: bool) -> bool:
    """False: it came, or has another pod by now."""
    return await conn.fetchval(_END_UNNAMED, call.id, is_over, call.pod) is not None


async def ending(conn: Connection) -> list[tuple[str, str]]:
    """Pods with the calls that they name and that no live row gives them."""
    return [(row["pod"], row["call"]) for row in await conn.fetch(_ENDING)]


async def end_rows(conn: Connection, ids: Sequence[UUID], why: str) -> list[UUID]:
    return [row["id"] for row in await conn.fetch(_END_ROWS, list(ids), why)]


async def reset(tx: Connection, pod: str) -> tuple[list[Row], list[str]] | None:
    """Free a pod by hand: the allocations that it had, and the calls that it still names. None: no such pod."""
    named = await tx.fetchval(_RESET, pod)
    if named is None:
        return None
    rows = await live_rows(tx, [pod])
    await end_rows(tx, [row.id for row in rows], "reset")
    return rows, list(named)


async def forget_versions(conn: Connection) -> None:
    await conn.execute(_VERSIONS_GONE)


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
    tx: Connection, version: str, row: Any, *, is_new: bool = False, lost: Sequence[Lost] = ()
) -> Registered:
    await tx.execute(_NOTE_VERSION, version)
    newest = await tx.fetchval(_NEWEST_VERSION)
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
