"""What is known of attempts, and what becomes of their leads. Lock order everywhere: leads, then attempts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from trunkline.model import Budget, CallFacts, Entry, Finish, Retry
from trunkline.states import AttemptState, LeadStatus, sources
from trunkline.store.database import Connection
from trunkline.store.sql import query

_LOCK_LEADS = query("attempts/lock_leads")
_LOCK = query("attempts/lock")
_READ = query("attempts/read")
_WRITE_RESULTS = query("attempts/write_results")
_APPLY_FACTS = query("attempts/apply_facts")
_FINISH_LEADS = query("attempts/finish_leads")
_RETRY_LEADS = query("attempts/retry_leads")
_CURRENT = query("attempts/current")
_OVERDUE = query("attempts/overdue")


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt and what its lead still allows."""

    id: UUID
    lead_id: UUID | None
    attempt_no: int
    carrier: str
    holds_channel: bool
    facts: CallFacts
    lead_status: LeadStatus | None
    budget: Budget

    @property
    def is_newest(self) -> bool:
        return self.attempt_no == self.budget.attempt_count


@dataclass(frozen=True, slots=True)
class Result:
    """What the carrier answered to a request to dial."""

    attempt_id: UUID
    state: AttemptState
    call_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Current:
    """What the answer gate has to know."""

    lead_id: UUID | None
    merchant_id: str
    is_newest: bool
    is_over: bool


async def lock(tx: Connection, attempt_ids: Sequence[UUID]) -> dict[UUID, Attempt]:
    """Lock the leads of these attempts, then the attempts, each in id order; then read both."""
    await tx.execute(_LOCK_LEADS, attempt_ids)
    await tx.execute(_LOCK, attempt_ids)
    rows = await tx.fetch(_READ, attempt_ids)
    return {row["id"]: _attempt(row) for row in rows}


def _attempt(row: Any) -> Attempt:
    return Attempt(
        id=row["id"],
        lead_id=row["lead_id"],
        attempt_no=row["attempt_no"],
        carrier=row["carrier"],
        holds_channel=row["holds_channel"],
        facts=CallFacts(
            state=AttemptState(row["state"]),
            call_id=row["carrier_call_id"],
            ringing_at=row["ringing_at"],
            answered_at=row["answered_at"],
            ended_at=row["ended_at"],
            end_reason=row["end_reason"],
            duration_s=row["duration_s"],
        ),
        lead_status=LeadStatus(row["lead_status"]) if row["lead_status"] else None,
        budget=Budget(row["attempt_count"] or 1, row["max_attempts"] or 1, row["carrier_error_count"] or 0),
    )


async def write_results(tx: Connection, results: Sequence[Result]) -> set[UUID]:
    """Compare-and-set many answers at once; the ids whose state became what their answer says."""
    rows = await tx.fetch(
        _WRITE_RESULTS,
        [r.attempt_id for r in results],
        [r.state.value for r in results],
        [",".join(sources(r.state)) for r in results],
        [r.call_id for r in results],
        [r.reason for r in results],
    )
    wanted = {r.attempt_id: r.state.value for r in results}
    return {row["id"] for row in rows if row["state"] == wanted[row["id"]]}


async def apply_facts(tx: Connection, facts: Mapping[UUID, CallFacts]) -> None:
    """Write what is now known. The caller holds the locks under which it was worked out."""
    known = list(facts.values())
    await tx.execute(
        _APPLY_FACTS,
        list(facts),
        [f.state.value for f in known],
        [f.call_id for f in known],
        [f.ringing_at for f in known],
        [f.answered_at for f in known],
        [f.ended_at for f in known],
        [f.end_reason for f in known],
        [f.duration_s for f in known],
    )


async def finish_leads(tx: Connection, ends: Mapping[UUID, Finish]) -> None:
    if ends:
        finishes = list(ends.values())
        await tx.execute(
            _FINISH_LEADS, list(ends), [f.outcome.value for f in finishes], [f.reason for f in finishes]
        )


async def retry_leads(tx: Connection, retries: Mapping[UUID, Retry]) -> list[Entry]:
    """Send leads back to BACKLOG; returns them as the schedule needs them."""
    if not retries:
        return []
    wanted = list(retries.values())
    rows = await tx.fetch(
        _RETRY_LEADS,
        list(retries),
        [r.delay_s for r in wanted],
        [int(r.carrier_error) for r in wanted],
        [int(not r.counted) for r in wanted],
    )
    return [Entry(row["id"], row["version"], row["pool_id"], row["due_at"]) for row in rows]


async def current(conn: Connection, attempt_id: UUID) -> Current | None:
    row = await conn.fetchrow(_CURRENT, attempt_id)
    if row is None:
        return None
    return Current(
        lead_id=row["lead_id"],
        merchant_id=row["merchant_id"],
        is_newest=row["lead_id"] is None or bool(row["newest"]),
        is_over=row["state"] in ("ended", "rejected"),
    )


async def doubt_overdue(conn: Connection, *, age_s: float, limit: int) -> list[UUID]:
    """Move attempts whose request should long have been answered to `in_doubt`."""
    rows = await conn.fetch(_OVERDUE, age_s, limit)
    return [row["id"] for row in rows]
