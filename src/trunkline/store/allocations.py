"""Which call has which slot of which pod. The unique indexes of `allocations` decide; Valkey proposes.

Lock order everywhere: leads, limits, new allocations, attempts, existing allocations (by id), mailboxes, jobs.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import asyncpg

from trunkline.model import Slot
from trunkline.routing import Allocation, EndedAllocation, Unallocated, WhyUnallocated
from trunkline.store import mailboxes
from trunkline.store.database import Connection
from trunkline.store.mailboxes import NewEvent
from trunkline.store.rows import columns
from trunkline.store.sql import Area
from trunkline.value import Value, replace

_SQL = Area("allocations")
_PODS_SQL = Area("pods")

# The words of the function `allocate_call` that differ.
_WHY: Mapping[str, WhyUnallocated] = {"none": "busy", "waits": "hold"}


class Address(Value, frozen=True):
    """The address of the process with this number."""

    incarnation: int
    pod: str
    base_url: str
    ip: str = ""
    port: int = 0
    # Between its heartbeats. None: it sends none.
    interval_s: float | None = None


@dataclass(frozen=True, slots=True)
class Addresses:
    """`seen`: the cursor for later changes."""

    found: Sequence[Address]
    seen: str


class AllocationRequest(Value, frozen=True):
    """A call that needs a pod. `id` is that of its row if it has no attempt; `proposal` is Valkey's."""

    id: UUID
    call: str
    attempt_id: UUID | None
    merchant_id: str
    proposal: Slot | None = None
    # The longest wait for one, 0: none.
    wait_max_s: float = 0.0
    # A waiting call without a request for this long has hung up.
    silence_s: float = 7.0
    tombstone_s: float = 600.0


async def begin(conn: Connection, attempt_id: UUID, call: str) -> Allocation | None:
    """A call with a reserved slot was answered. None: it has none, or not any more, or another call has it."""
    try:
        row = await conn.fetchrow(_SQL.begin, attempt_id, call)
    except asyncpg.UniqueViolationError:
        return None  # the call has a row of its own
    if row is None:
        return None
    return Allocation(row["id"], call, slot_of(row), row["merchant_id"], row["turn"], row["base_url"])


async def allocate(
    conn: Connection, request: AllocationRequest, tiers: Sequence[str]
) -> Allocation | Unallocated:
    """`tiers`: where Postgres searches, in this order, if there is no proposal or its slot is taken."""
    proposal = request.proposal
    row = await conn.fetchrow(
        _SQL.allocate,
        request.id,
        request.call,
        request.attempt_id,
        request.merchant_id,
        proposal.pod if proposal else None,
        proposal.no if proposal else None,
        proposal.incarnation if proposal else None,
        list(tiers),
        request.wait_max_s,
        request.silence_s,
        request.tombstone_s,
    )
    assert row is not None, "the function always answers"
    if row["result"] != "pod":
        return Unallocated(_WHY.get(row["result"], row["result"]), row["waiting_before"])
    call, merchant_id = request.call, request.merchant_id
    return Allocation(
        row["id"], call, slot_of(row), merchant_id, row["turn"], row["base_url"], row["is_existing"]
    )


async def allocate_new(conn: Connection, requests: Sequence[AllocationRequest]) -> list[Allocation | None]:
    """Calls without an attempt that Valkey proposes a slot for. None, of those that need `allocate`: the call has a row
    already, the slot is another's, or its pod does not take it."""
    proposed = [(request, request.proposal) for request in requests if request.proposal is not None]
    rows = await conn.fetch(
        _SQL.allocate_new,
        *columns([request for request, _ in proposed], "id", "call", "merchant_id"),
        *columns([slot for _, slot in proposed], "pod", "no", "incarnation"),
    )
    found, given = {row["id"]: row for row in rows}, dict[UUID, Allocation]()
    for request, proposal in proposed:
        if row := found.get(request.id):
            slot, base_url = replace(proposal, source_pool=row["source_pool"]), row["base_url"]
            given[request.id] = Allocation(
                request.id, request.call, slot, request.merchant_id, base_url=base_url, is_existing=False
            )
    return [given.get(request.id) for request in requests]


def slot_of(row: Any) -> Slot:
    return Slot(row["pod"], row["slot"], row["incarnation"], row["source_pool"])


@dataclass(frozen=True, slots=True)
class Release:
    """`by_pod` names the pod that releases, `turn` which of the call's streams it had, None for any. A call without a
    row gets a tombstone of this id if no pod releases."""

    call: str
    tombstone_id: UUID
    by_pod: str = ""
    turn: int | None = None


async def release(
    conn: Connection, calls: Sequence[Release], why: str = "released"
) -> list[EndedAllocation | None]:
    """End calls' allocations. None: it has no live one, or not with the pod and the turn that releases."""
    ended: list[EndedAllocation | None] = [None] * len(calls)
    for row in await conn.fetch(_SQL.release, *columns(calls, "call", "by_pod", "turn", "tombstone_id"), why):
        ended[row["no"] - 1] = EndedAllocation(row["id"], row["pod"], row["source_pool"])
    return ended


async def free_slots(
    conn: Connection, callers: Mapping[str, int], most: int, silence_s: float
) -> dict[str, list[Slot]]:
    """By tier: slots that dials may reserve. `callers`: the inbound reserve of each tier, -1 for 10 %."""
    rows = await conn.fetch(_SQL.free_slots, list(callers), list(callers.values()), most, silence_s)
    by_tier: dict[str, list[Slot]] = {tier: [] for tier in callers}
    for row in rows:
        by_tier[row["tier"]].append(Slot(row["pod"], row["slot"], row["incarnation"], source_of(row["tier"])))
    return by_tier


def assign(
    wants: Sequence[tuple[UUID, Sequence[str]]], free: Mapping[str, Sequence[Slot]]
) -> dict[UUID, Slot]:
    """Give each a slot of the first of its tiers that has one left. Merchants with a tier of their own take theirs
    first, so no call takes a common slot needlessly. Pure."""
    left = {tier: list(reversed(slots)) for tier, slots in free.items()}
    assigned: dict[UUID, Slot] = {}
    for attempt_id, tiers in wants:
        if slot := next((left[tier].pop() for tier in tiers if left.get(tier)), None):
            assigned[attempt_id] = slot
    return assigned


def source_of(tier: str) -> str:
    """The pool of a tier's pods, as the router's responses name it."""
    return tier if tier.startswith("merchant:") else f"pool:{tier}"


async def drop(tx: Connection, ids: Sequence[UUID]) -> None:
    await tx.execute(_SQL.drop, ids)


async def note(conn: Connection, noted: Allocation, *, has_attempt: bool) -> bool:
    """Write an allocation that was made while Postgres was unavailable. False: its slot is another's by now, so it is
    written without a pod, and the pod's next heartbeat decides."""
    values, slot = (noted.id, has_attempt, noted.call, noted.merchant_id), noted.slot
    try:
        await conn.execute(_SQL.note, *values, slot.pod, slot.no, slot.incarnation, slot.source_pool)
    except asyncpg.UniqueViolationError:
        with suppress(asyncpg.UniqueViolationError):  # the call has a row under another id
            await conn.execute(_SQL.note, *values, None, None, None, "")
        return False
    return True


async def merchant_tiers(conn: Connection, merchant_ids: Sequence[str]) -> dict[str, str]:
    """Merchant -> its config as JSON, of those that have one."""
    rows = await conn.fetch(_SQL.merchant_tiers, list(merchant_ids))
    return {row["merchant_id"]: row["config"] for row in rows}


async def live(conn: Connection, ids: Sequence[UUID]) -> set[UUID]:
    return {row["id"] for row in await conn.fetch(_SQL.live, ids)}


async def addresses(conn: Connection, since: str = "") -> Addresses:
    """Of all pods, or of those that got a number or an address since `seen` of an earlier read."""
    rows = await (conn.fetch(_SQL.addresses_since, since) if since else conn.fetch(_SQL.addresses))
    pods = [
        Address(row["incarnation"], row["name"], row["base_url"], row["ip"], row["port"], row["interval_s"])
        for row in rows
        if row["name"] is not None
    ]
    return Addresses(pods, rows[0]["oldest_running"])


async def owners(conn: Connection, slots: Sequence[Slot]) -> dict[tuple[str, int], UUID]:
    """The allocations of these slots, by pod and number."""
    rows = await conn.fetch(_SQL.owners, *columns(slots, "pod", "no"))
    return {(row["pod"], row["slot"]): row["id"] for row in rows}


async def pods_without_streams(conn: Connection) -> list[str]:
    """Pods that send heartbeats and whose last calls did not reach their agents."""
    return [row["name"] for row in await conn.fetch(_PODS_SQL.missing)]


async def end_doubts(conn: Connection, after_s: float) -> list[EndedAllocation]:
    return [EndedAllocation(row["id"], row["pod"]) for row in await conn.fetch(_SQL.end_doubts, after_s)]


async def end_strays(conn: Connection) -> list[EndedAllocation]:
    return [EndedAllocation(row["id"], row["pod"]) for row in await conn.fetch(_SQL.end_strays)]


async def tell_untaken(conn: Connection) -> int:
    """Append to the mailboxes of calls that did not reach the agent of their pod. Returns how many there are, appended
    before or now."""
    ids = [row["id"] for row in await conn.fetch(_SQL.untaken)]
    await tell_without_agent(conn, ids, "pod_silent")
    return len(ids)


async def tell_without_agent(conn: Connection, ids: Sequence[UUID], why: str) -> None:
    """Append to the mailboxes of these calls, once for each reason: the fold decides about their leads again."""
    payload = {"kind": "document", "agent_joined": False}
    if ids:
        await mailboxes.append(
            conn, [NewEvent("call", str(attempt_id), why, "document", payload) for attempt_id in ids]
        )


async def forget(conn: Connection, without_attempt_s: float) -> None:
    await conn.execute(_SQL.forget, without_attempt_s)


class LostAgent(Value, frozen=True):
    """The call's agent is lost, and it may have another one. `pod`: where the agent was; None if unknown, or if an
    earlier request has moved the call already."""

    pod: str | None
    merchant_id: str


# over: the agent or the carrier has ended the call. exhausted: it had every agent that it may have.
Resumption = LostAgent | Literal["over", "exhausted"]


async def resume(conn: Connection, attempt_id: UUID, call: str, turn: int, *, turn_max: int) -> Resumption:
    """The stream of this turn ended, and the carrier requests what follows. Once per stream, however often and from
    whichever process it is requested."""
    is_last = turn >= turn_max
    row = await conn.fetchrow(_SQL.exhaust if is_last else _SQL.resume, attempt_id, call, turn)
    if row is not None and is_last:
        return "exhausted"
    if row is not None:
        if row["lost_pod"] is not None and row["never_joined"]:
            await conn.execute(_PODS_SQL.miss, row["lost_pod"])
        return LostAgent(row["lost_pod"], row["merchant_id"])
    known = await conn.fetchrow(_SQL.turn, attempt_id)
    if known is None:
        row = None if is_last else await conn.fetchrow(_SQL.resume_missing, attempt_id, call, turn)
        return "over" if row is None else LostAgent(None, row["merchant_id"])
    if known["is_over"] or known["call"] != call:
        return "over"
    return LostAgent(None, known["merchant_id"])


async def is_resumed(conn: Connection, call: str, turn: int) -> bool:
    """Whether another agent has the call by now, or is being searched."""
    return bool(await conn.fetchval(_SQL.is_resumed, call, turn))
