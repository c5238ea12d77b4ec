"""The intent's statements. The caller decides what is one transaction."""

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any, Protocol
from uuid import UUID

import asyncpg

from trunkline.model import Entry, Finish, Grant, Intent, Outcome, Refusal, RefusalReason
from trunkline.store.cooldowns import NewProbe
from trunkline.store.database import Connection
from trunkline.store.schedule import entry_of
from trunkline.store.sql import Area
from trunkline.value import Private, Value

_SQL = Area("dispatch")

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


class NextStart(Value, frozen=True):
    """The next start of a pace, once the attempt has started."""

    kind: str
    subject: str
    next_start_at: datetime


class NewAttempt(Value, frozen=True):
    """An attempt to be inserted, and the intent that is sent once it is committed."""

    grant: Grant
    lead: LockedLead
    intent: Intent
    intent_at: datetime
    reserved_micros: int
    day: date
    # How it goes without a reserved agent.
    overdial: Overdial | None = None
    next_starts: tuple[NextStart, ...] = ()
    # The cooldowns that it probes.
    probes: tuple[NewProbe, ...] = ()

    @property
    def id(self) -> UUID:
        return self.intent.attempt_id


class RefusedLead(Protocol):
    @property
    def id(self) -> UUID: ...

    @property
    def merchant_id(self) -> str: ...


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


async def write_attempts(
    tx: Connection, attempts: Sequence[NewAttempt], dialer: str
) -> tuple[frozenset[UUID], frozenset[UUID]]:
    """The inserted attempts, and those whose slot was reserved."""
    if not attempts:
        return frozenset(), frozenset()
    starts = [(a.id, start) for a in attempts for start in a.next_starts]
    slots = [a.intent.slot for a in attempts]
    overdials = [a.overdial for a in attempts]
    rows = await tx.fetch(
        _SQL.write_intents,
        *_columns(attempts),
        [a.reserved_micros for a in attempts],
        [a.day for a in attempts],
        dialer,
        [attempt_id for attempt_id, _ in starts],
        [start.kind for _, start in starts],
        [start.subject for _, start in starts],
        [start.next_start_at for _, start in starts],
        [s.pod if s else None for s in slots],
        [s.no if s else None for s in slots],
        [s.incarnation if s else None for s in slots],
        [s.source_pool if s else None for s in slots],
        [o.group if o else None for o in overdials],
        [o.answer_rate if o else None for o in overdials],
        [o.abandon_max if o else None for o in overdials],
        [a.intent.ready_at for a in attempts],
    )
    inserted = frozenset(row["id"] for row in rows if row["is_attempt"])
    return inserted, frozenset(row["id"] for row in rows if not row["is_attempt"])


def _columns(attempts: Sequence[NewAttempt]) -> tuple[list[Any], ...]:
    intents = [a.intent for a in attempts]
    return (
        [i.attempt_id for i in intents],
        [i.lead_id for i in intents],
        [i.attempt_no for i in intents],
        [a.lead.reseller_id for a in attempts],
        [a.lead.merchant_id for a in attempts],
        [a.lead.campaign_id for a in attempts],
        [i.number_id for i in intents],
        [a.grant.channel_no for a in attempts],
        [i.carrier for i in intents],
        [i.account for i in intents],
        [i.to_phone for i in intents],
        [i.from_phone for i in intents],
        [i.due_at for i in intents],
        [a.intent_at for a in attempts],
        [i.send_at for i in intents],
    )


async def write_refusals(tx: Connection, refused: Sequence[tuple[RefusedLead, Refusal]]) -> dict[UUID, Entry]:
    """End or move the leads as their refusals say, and record why. Returns the new entries of those that moved."""
    if not refused:
        return {}
    ends = [(lead.id, refusal.finish) for lead, refusal in refused if refusal.finish]
    moves = [(lead.id, refusal) for lead, refusal in refused if refusal.due_at and not refusal.finish]
    rows = await tx.fetch(
        _SQL.write_refusals,
        [lead_id for lead_id, _ in ends],
        [finish.word or finish.outcome.value for _, finish in ends],
        [finish.reason for _, finish in ends],
        [lead_id for lead_id, _ in moves],
        [refusal.due_at for _, refusal in moves],
        [refusal.closes_at for _, refusal in moves],
        [lead.id for lead, _ in refused],
        [refusal.reason.value for _, refusal in refused],
        [lead.merchant_id for lead, _ in refused],
        [refusal.subject for _, refusal in refused],
        [refusal.until for _, refusal in refused],
    )
    return {row["id"]: entry_of(row) for row in rows}


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
        [a.id for a in attempts],
        [a.lead.id for a in attempts],
        [a.intent.number_id for a in attempts],
        [a.grant.channel_no for a in attempts],
        [a.intent.to_phone for a in attempts],
        [a.intent.from_phone for a in attempts],
    )
    return {row["id"]: Owners(row["channel_owner"], row["person_owner"], row["lead_owner"]) for row in rows}


async def disown(tx: Connection, attempts: Sequence[NewAttempt], dialer: str) -> list[Entry]:
    """Write attempts as not sent, whatever happened to their commit; returns the leads that are due again."""
    await tx.execute(_SQL.disown_lock, [a.lead.id for a in attempts])
    rows = await tx.fetch(_SQL.disown, *_columns(attempts), dialer)
    due_again = await tx.fetch(_SQL.disown_leads, [row["lead_id"] for row in rows])
    return [entry_of(row) for row in due_again]


async def defer_broken(conn: Connection, lead_id: UUID, version: int, error: str) -> Refusal:
    """A lead that broke its own intent: deferred, longer each time, or ended after ten times."""
    row = await conn.fetchrow(_SQL.defer_broken, lead_id, version, error[:500])
    subject = error[:200]
    if row is None:
        return Refusal(RefusalReason.ERROR, subject=subject)
    if row["outcome"] is not None:
        finish = Finish(Outcome(row["outcome"]), row["outcome_reason"])
        return Refusal(RefusalReason.ERROR, subject=subject, finish=finish)
    moved = entry_of(row)
    return Refusal(RefusalReason.ERROR, until=moved.due_at, subject=subject, moved=moved)


async def slow_account(conn: Connection, account: str, seconds: float) -> None:
    await conn.execute(_SQL.slow_account, account, seconds)


async def lock_closed(tx: Connection, closed: Sequence[tuple[UUID, int]]) -> list[ClosedLead]:
    rows = await tx.fetch(
        _SQL.lock_closed, [lead_id for lead_id, _ in closed], [version for _, version in closed]
    )
    return [ClosedLead(**row) for row in rows]
