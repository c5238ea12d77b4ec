"""The intent's statements. The caller decides what is one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any
from uuid import UUID

import asyncpg

from trunkline.model import Entry, Finish, Grant, Outcome, Slot
from trunkline.store.database import Connection
from trunkline.store.schedule import entry_of
from trunkline.store.sql import Area
from trunkline.value import Private, Value

_SQL = Area("dispatch")

_NONE: frozenset[UUID] = frozenset()

# A lock was held for too long, or Postgres ended a deadlock. Nothing was written.
CONTENDED: tuple[type[BaseException], ...] = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)
# Postgres cannot take a value or a row: a bug, which must not fail the other leads of the batch.
UNACCEPTABLE: tuple[type[BaseException], ...] = (
    asyncpg.DataError,
    asyncpg.exceptions.DataError,
    asyncpg.IntegrityConstraintViolationError,
)


class LockedLead(Value, frozen=True):
    """A lead that is locked until the transaction ends, with what the gates need."""

    id: UUID
    phone: Private[str]
    timezone: str | None
    merchant_id: str
    reseller_id: str
    campaign_id: UUID | None
    attempt_count: int
    max_attempts: int
    due_at: datetime
    closes_at: datetime | None
    # The pools whose numbers may dial it.
    pool_id: str
    overflow_pool_id: str | None
    merchant_max_concurrent: int | None
    # Of the granted number, read without a lock; None if there is no such number.
    carrier: str | None
    account: str | None
    now: datetime
    # Why no call may start at all.
    halted: str | None
    # The level of the do-not-call list that has the phone, if any.
    listed_by: str | None
    # The pre-checks that it has passed recently.
    passed_checks: bytes | None
    # JSON for the prompts of the assistant, where it is the carrier's own.
    payload: Private[str | None] = None
    # How often it was answered without an agent: its next call has a reserved agent, whatever a policy allows.
    no_agent_count: int = 0
    # Not before then, because calls of this merchant found no agent: see the table `no_agent_brakes`.
    agents_from: datetime | None = None
    # The agents of its merchant or its pool are external.
    are_agents_elsewhere: bool = False
    # No call from then on.
    expires_at: datetime | None = None

    @property
    def earliest_at(self) -> datetime:
        """When its call may leave, as far as the lead is concerned: calls are prepared ahead of their due time."""
        return max(self.now, self.due_at)


class LockedNumber(Value, frozen=True):
    id: UUID
    e164: Private[str]
    carrier: str
    account: str
    max_channels: int
    starts_per_s: float | None
    status: str
    pool_id: str
    # Whether its calls may be counted under this lock: see `lock_and_count_limits`.
    may_count: bool


class Overdial(Value, frozen=True):
    """A call without a reserved agent, by choice: the group whose agents it counts on, the probability of an answer,
    and the share of abandoned calls that it was admitted under."""

    group: str
    answer_rate: float
    abandon_max: float


class NewAttempt(Value, frozen=True):
    grant: Grant
    lead: LockedLead
    number: LockedNumber
    intent_at: datetime
    send_at: datetime
    reserved_micros: int
    day: date
    # The end of its calling window when it was admitted.
    closes_at: datetime | None = None
    # The agent that is reserved for the call; None where it needs none, or is overdialled.
    slot: Slot | None = None
    overdial: Overdial | None = None
    ring_min_s: int = 0
    # When all that the call needs was available; None: when its lead was due.
    ready_at: datetime | None = None


class NextStart(Value, frozen=True):
    """The next start of a pace, once this attempt has started."""

    attempt_id: UUID
    kind: str
    subject: str
    next_start_at: datetime


class Move(Value, frozen=True):
    due_at: datetime
    closes_at: datetime | None


class NewDecision(Value, frozen=True):
    lead_id: UUID
    reason: str
    merchant_id: str
    subject: str | None
    until: datetime | None


@dataclass(slots=True)
class IntentWrites:
    """All writes of an intent."""

    attempts: list[NewAttempt] = field(default_factory=list)
    next_starts: list[NextStart] = field(default_factory=list)
    ends: dict[UUID, Finish] = field(default_factory=dict)
    moves: dict[UUID, Move] = field(default_factory=dict)
    decisions: list[NewDecision] = field(default_factory=list)

    @property
    def has_refusals(self) -> bool:
        return bool(self.ends or self.moves or self.decisions)


class WrittenIntents(Value, frozen=True):
    """The inserted attempts, those whose slot was, and the entries of the leads that moved, for the schedule."""

    inserted: frozenset[UUID]
    reserved: frozenset[UUID]
    moved: Mapping[UUID, Entry]


class Explanation(Value, frozen=True):
    """The state of a lead that could not be locked. All fields are None for one that is gone."""

    attempt_id: UUID
    status: str | None
    version: int | None
    due_at: datetime | None
    now: datetime
    is_due: bool | None
    is_stale: bool


class Owners(Value, frozen=True):
    """The attempts that conflict with one."""

    channel: UUID | None
    person: UUID | None
    lead: UUID | None


class ClosedLead(Value, frozen=True):
    id: UUID
    phone: Private[str]
    timezone: str | None
    merchant_id: str
    reseller_id: str
    campaign_id: UUID | None
    due_at: datetime
    now: datetime


async def lock_granted(
    tx: Connection,
    grants: Sequence[Grant],
    *,
    lock_timeout_ms: int,
    transaction_timeout_ms: int,
    known: tuple[UUID, int] | None,
) -> dict[UUID, LockedLead]:
    """Bound the transaction, then lock the leads that are still as granted. By lead. `known` is the database that the
    caller has seen, and its beat."""
    rows = await tx.fetch(
        _SQL.lock_granted,
        [g.lead_id for g in grants],
        [g.version for g in grants],
        [g.granted_ms for g in grants],
        [g.number_id for g in grants],
        str(lock_timeout_ms),
        str(transaction_timeout_ms),
        *(known or (None, None)),
    )
    return {row["id"]: LockedLead(**row) for row in rows}


async def write(tx: Connection, writes: IntentWrites, dialer: str) -> WrittenIntents:
    inserted, reserved = await _write_attempts(tx, writes, dialer) if writes.attempts else (_NONE, _NONE)
    moved = await _write_refusals(tx, writes) if writes.has_refusals else {}
    return WrittenIntents(inserted, reserved, moved)


async def _write_attempts(
    tx: Connection, writes: IntentWrites, dialer: str
) -> tuple[frozenset[UUID], frozenset[UUID]]:
    starts = writes.next_starts
    slots = [a.slot for a in writes.attempts]
    overdials = [a.overdial for a in writes.attempts]
    rows = await tx.fetch(
        _SQL.write_intents,
        *_columns(writes.attempts),
        [a.reserved_micros for a in writes.attempts],
        [a.day for a in writes.attempts],
        dialer,
        [s.attempt_id for s in starts],
        [s.kind for s in starts],
        [s.subject for s in starts],
        [s.next_start_at for s in starts],
        [s.pod if s else None for s in slots],
        [s.no if s else None for s in slots],
        [s.incarnation if s else None for s in slots],
        [s.source_pool if s else None for s in slots],
        [o.group if o else None for o in overdials],
        [o.answer_rate if o else None for o in overdials],
        [o.abandon_max if o else None for o in overdials],
        [a.ready_at for a in writes.attempts],
    )
    inserted = frozenset(row["id"] for row in rows if row["is_attempt"])
    return inserted, frozenset(row["id"] for row in rows if not row["is_attempt"])


async def _write_refusals(tx: Connection, writes: IntentWrites) -> dict[UUID, Entry]:
    finishes, moves, decisions = writes.ends.values(), writes.moves.values(), writes.decisions
    rows = await tx.fetch(
        _SQL.write_refusals,
        list(writes.ends),
        [f.word or f.outcome.value for f in finishes],
        [f.reason for f in finishes],
        list(writes.moves),
        [m.due_at for m in moves],
        [m.closes_at for m in moves],
        [d.lead_id for d in decisions],
        [d.reason for d in decisions],
        [d.merchant_id for d in decisions],
        [d.subject for d in decisions],
        [d.until for d in decisions],
    )
    return {row["id"]: entry_of(row) for row in rows}


def _columns(attempts: Sequence[NewAttempt]) -> tuple[list[Any], ...]:
    return (
        [a.grant.attempt_id for a in attempts],
        [a.lead.id for a in attempts],
        [a.lead.attempt_count + 1 for a in attempts],
        [a.lead.reseller_id for a in attempts],
        [a.lead.merchant_id for a in attempts],
        [a.lead.campaign_id for a in attempts],
        [a.number.id for a in attempts],
        [a.grant.channel_no for a in attempts],
        [a.number.carrier for a in attempts],
        [a.number.account for a in attempts],
        [a.lead.phone for a in attempts],
        [a.number.e164 for a in attempts],
        [a.lead.due_at for a in attempts],
        [a.intent_at for a in attempts],
        [a.send_at for a in attempts],
    )


async def explain(tx: Connection, grants: Sequence[Grant]) -> dict[UUID, Explanation]:
    """By attempt."""
    rows = await tx.fetch(
        _SQL.explain,
        [g.attempt_id for g in grants],
        [g.lead_id for g in grants],
        [g.granted_ms for g in grants],
    )
    return {row["attempt_id"]: Explanation(**row) for row in rows}


async def owners(tx: Connection, attempts: Sequence[NewAttempt]) -> dict[UUID, Owners]:
    """By the attempt that was not inserted."""
    rows = await tx.fetch(
        _SQL.owners,
        [a.grant.attempt_id for a in attempts],
        [a.lead.id for a in attempts],
        [a.number.id for a in attempts],
        [a.grant.channel_no for a in attempts],
        [a.lead.phone for a in attempts],
        [a.number.e164 for a in attempts],
    )
    return {row["id"]: Owners(row["channel_owner"], row["person_owner"], row["lead_owner"]) for row in rows}


async def disown(tx: Connection, attempts: Sequence[NewAttempt], dialer: str) -> list[Entry]:
    """Write attempts as not sent, whatever happened to their commit; returns the leads that are due again."""
    await tx.execute(_SQL.disown_lock, [a.lead.id for a in attempts])
    rows = await tx.fetch(_SQL.disown, *_columns(attempts), dialer)
    due_again = await tx.fetch(_SQL.disown_leads, [row["lead_id"] for row in rows])
    return [entry_of(row) for row in due_again]


async def defer_broken(
    conn: Connection, lead_id: UUID, version: int, error: str
) -> tuple[Finish | None, Entry | None]:
    """A lead that broke its own intent: deferred, longer each time, or ended after ten times."""
    row = await conn.fetchrow(_SQL.defer_broken, lead_id, version, error[:500])
    if row is None:
        return None, None
    if row["outcome"] is not None:
        return Finish(Outcome(row["outcome"]), row["outcome_reason"]), None
    return None, entry_of(row)


async def slow_account(conn: Connection, account: str, seconds: float) -> None:
    await conn.execute(_SQL.slow_account, account, seconds)


async def lock_closed(tx: Connection, closed: Sequence[tuple[UUID, int]]) -> list[ClosedLead]:
    rows = await tx.fetch(
        _SQL.lock_closed, [lead_id for lead_id, _ in closed], [version for _, version in closed]
    )
    return [ClosedLead(**row) for row in rows]
