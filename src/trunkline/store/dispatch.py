"""The intent's statements: lock, count, write. The caller decides what is one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from operator import itemgetter
from types import SimpleNamespace
from typing import Any, Protocol
from uuid import UUID

import asyncpg

from trunkline.model import (
    Entry,
    Finish,
    Grant,
    Intent,
    Outcome,
    PersonCalls,
    PersonQuestion,
    Refusal,
    RefusalReason,
)
from trunkline.store.cooldowns import AccountName, Cooldown, CooldownProbe, NewProbe, Subject
from trunkline.store.database import Connection
from trunkline.store.rows import columns, pick
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


# What `attempts` takes of a new attempt, in the order of the statements that insert one.
_ATTEMPT_COLUMNS = (
    "grant.attempt_id",
    "lead.id",
    "intent.attempt_no",
    "lead.reseller_id",
    "lead.merchant_id",
    "lead.campaign_id",
    "intent.number_id",
    "grant.channel_no",
    "intent.carrier",
    "intent.account",
    "intent.to_phone",
    "intent.from_phone",
    "intent.due_at",
    "intent_at",
    "intent.send_at",
)
_NO_SLOT = SimpleNamespace(pod=None, no=None, incarnation=None, source_pool=None)
_NO_OVERDIAL = SimpleNamespace(group=None, answer_rate=None, abandon_max=None)
_UNREAD = datetime.min.replace(tzinfo=UTC)


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

    attempt_id: UUID
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


class TalkQuestion(Value, frozen=True):
    """When did this merchant last talk with this person?"""

    phone: Private[str]
    merchant_id: str
    cooldown_s: int


class DayQuestion(Value, frozen=True):
    """What has a merchant used today? From these amounts on the count is exact, without attempts that were not
    placed."""

    merchant_id: str
    day: date
    first_at: datetime
    attempts_from: int
    micros_from: int


class Used(Value, frozen=True):
    attempts: int = 0
    micros: int = 0


class Doubts(Value, frozen=True):
    """Attempts in doubt at an account, and its channels (counted only beyond a few doubts)."""

    attempts: int = 0
    channels: int = 0


@dataclass(slots=True)
class Questions:
    persons: list[PersonQuestion] = field(default_factory=list)
    talks: list[TalkQuestion] = field(default_factory=list)
    merchants: list[str] = field(default_factory=list)
    campaigns: list[tuple[str, UUID]] = field(default_factory=list)
    days: list[DayQuestion] = field(default_factory=list)
    paces: list[tuple[str, str]] = field(default_factory=list)
    accounts: list[tuple[str, str]] = field(default_factory=list)
    numbers: list[UUID] = field(default_factory=list)


@dataclass(slots=True)
class LimitCounts:
    # When they were taken, by Postgres's clock.
    now: datetime = _UNREAD
    # The numbers that were locked.
    numbers: dict[UUID, LockedNumber] = field(default_factory=dict)
    persons: dict[PersonQuestion, PersonCalls] = field(default_factory=dict)
    talks: dict[TalkQuestion, datetime] = field(default_factory=dict)
    merchants: dict[str, int] = field(default_factory=dict)
    campaigns: dict[tuple[str, UUID], int] = field(default_factory=dict)
    days: dict[tuple[str, date], Used] = field(default_factory=dict)
    paces: dict[tuple[str, str], datetime] = field(default_factory=dict)
    doubts: dict[tuple[str, str], Doubts] = field(default_factory=dict)
    # Calls of the numbers that have one above their maximum.
    overfull: dict[UUID, int] = field(default_factory=dict)
    # When accounts last accepted a call, and the cooldowns of these accounts.
    taken: dict[AccountName, datetime] = field(default_factory=dict)
    cooldowns: dict[Subject, Cooldown] = field(default_factory=dict)


class GroupCount(Value, frozen=True):
    """`free`: free slots, less the inbound reserve and those for waiting calls. Of the calls that ring for them without
    a reservation: how many, the sum of their answer rates, and the least share that any was admitted under."""

    free: int
    calls: int
    answers_expected: float
    abandon_max: float


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
        *columns(grants, "lead_id", "version", "granted_ms", "number_id"),
        str(lock_timeout_ms),
        str(transaction_timeout_ms),
        *(known or (None, None)),
    )
    return {row["id"]: LockedLead(**row) for row in rows}


async def count(
    conn: Connection, questions: Questions, lock_keys: Sequence[int] | None = None
) -> LimitCounts:
    """Lock the names that are counted, in the given order, then the numbers; and count under the locks. Without keys
    nothing is locked: for display only."""
    persons, numbers = questions.persons, questions.numbers
    phones, *others = columns(persons, "phone", "max_calls", "window_s", "asked_by")
    arrays = [
        phones,
        [question.merchant_id or "" for question in persons],
        *others,
        [kind for kind, _ in questions.paces],
        [subject for _, subject in questions.paces],
        [carrier for carrier, _ in questions.accounts],
        [account for _, account in questions.accounts],
    ]
    if lock_keys is None:
        rows = await conn.fetch(_SQL.count_limits, *arrays, numbers)
    else:
        rows = await conn.fetch(_SQL.lock_and_count_limits, lock_keys, numbers, *arrays)
    counts = LimitCounts()
    _note(counts, rows, questions)
    return counts


async def count_conditional(tx: Connection, questions: Questions, counts: LimitCounts) -> None:
    """Add the counts that most intents do not need, in a later statement than the locks that they need."""
    rows = await tx.fetch(
        _SQL.count_conditional,
        *columns(questions.talks, "phone", "merchant_id", "cooldown_s"),
        questions.merchants,
        [merchant_id for merchant_id, _ in questions.campaigns],
        [campaign_id for _, campaign_id in questions.campaigns],
        *columns(questions.days, "merchant_id", "day", "first_at", "attempts_from", "micros_from"),
    )
    _note(counts, rows, questions)


def _note(counts: LimitCounts, rows: Sequence[Any], questions: Questions) -> None:
    """Rows name their question by its position, counted from 1."""
    for row in rows:
        kind, position, n, m, at, flag, *_ = row
        index = position - 1
        match kind:
            case "now":
                counts.now = at
            case "locked":
                number = (*row[6:14], flag)  # the columns from `id` to `pool_id`
                counts.numbers[row["id"]] = LockedNumber(*number)
            case "person":
                counts.persons[questions.persons[index]] = PersonCalls(n, at, flag)
            case "talk":
                counts.talks[questions.talks[index]] = at
            case "merchant":
                counts.merchants[questions.merchants[index]] = n
            case "campaign":
                counts.campaigns[questions.campaigns[index]] = n
            case "day":
                counts.days[questions.days[index].merchant_id, questions.days[index].day] = Used(n, m)
            case "pace":
                counts.paces[questions.paces[index]] = at
            case "doubt":
                counts.doubts[questions.accounts[index]] = Doubts(n, m or 0)
                if at is not None:
                    counts.taken[questions.accounts[index]] = at
            case "number":
                counts.overfull[questions.numbers[index]] = n
            case "cooldown":
                scope, subject, code, probe_id, state, end_reason, phone = row["words"]
                # An attempt whose COMMIT was lost has no row.
                attempt = (state, end_reason, row["since"], phone)
                probe = None if state is None else CooldownProbe(UUID(probe_id), *attempt)
                counts.cooldowns[Subject(scope, subject)] = Cooldown(code, at, n, flag, probe)


async def count_overdialled(
    tx: Connection,
    callers: Mapping[str, Mapping[str, int]],
    silence_s: float,
    persons: Sequence[tuple[str, str]],
) -> tuple[dict[str, GroupCount], set[tuple[str, str]]]:
    """By group; and of the given persons, by merchant and phone, those whom that merchant abandoned before. `callers`:
    by group, its tiers and the inbound reserve of each, -1 for 10 %."""
    tiers = [(group, tier, left) for group, of in callers.items() for tier, left in of.items()]
    rows = await tx.fetch(
        _SQL.count_overdialled,
        [group for group, _, _ in tiers],
        [tier for _, tier, _ in tiers],
        [left for _, _, left in tiers],
        silence_s,
        [merchant for merchant, _ in persons],
        [phone for _, phone in persons],
    )
    groups, abandoned = {}, set()
    for row in rows:
        if row["phone"] is None:
            groups[row["name"]] = pick(GroupCount, row)
        else:
            abandoned.add((row["name"], row["phone"]))
    return groups, abandoned


async def groups_ringing(conn: Connection) -> frozenset[str]:
    return frozenset(map(itemgetter("overdial_group"), await conn.fetch(_SQL.groups_ringing)))


async def write_attempts(
    tx: Connection, attempts: Sequence[NewAttempt], dialer: str
) -> tuple[set[UUID], set[UUID]]:
    """The inserted attempts, and those whose slot was reserved."""
    inserted: set[UUID] = set()
    reserved: set[UUID] = set()
    rows = await tx.fetch(
        _SQL.write_intents,
        *columns(attempts, *_ATTEMPT_COLUMNS, "reserved_micros", "day"),
        dialer,
        *columns(
            [start for attempt in attempts for start in attempt.next_starts],
            "attempt_id",
            "kind",
            "subject",
            "next_start_at",
        ),
        *columns([a.intent.slot or _NO_SLOT for a in attempts], "pod", "no", "incarnation", "source_pool"),
        *columns([a.overdial or _NO_OVERDIAL for a in attempts], "group", "answer_rate", "abandon_max"),
        *columns(attempts, "intent.ready_at"),
    )
    for row in rows:
        (inserted if row["is_attempt"] else reserved).add(row["id"])
    return inserted, reserved


async def name_probes(tx: Connection, probes: Sequence[NewProbe]) -> None:
    """The cooldowns whose next probe is an attempt of this intent."""
    names = ("subject.scope", "subject.name", "carrier", "account", "attempt_id", "probes", "opens_at")
    await tx.execute(_SQL.name_probes, *columns(probes, *names))


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
    rows = await tx.fetch(_SQL.explain, *columns(grants, "attempt_id", "lead_id", "granted_ms"))
    return {row["attempt_id"]: Explanation(**row) for row in rows}


async def owners(tx: Connection, attempts: Sequence[NewAttempt]) -> dict[UUID, Owners]:
    """By the attempt that was not inserted."""
    rows = await tx.fetch(
        _SQL.owners,
        *columns(attempts, "grant.attempt_id", "lead.id", "grant.number_id", "grant.channel_no"),
        *columns(attempts, "intent.to_phone", "intent.from_phone"),
    )
    return {row["id"]: Owners(row["channel_owner"], row["person_owner"], row["lead_owner"]) for row in rows}


async def disown(tx: Connection, attempts: Sequence[NewAttempt], dialer: str) -> list[Entry]:
    """Write attempts as not sent, whatever happened to their commit; returns the leads that are due again."""
    await tx.execute(_SQL.disown_lock, [a.lead.id for a in attempts])
    rows = await tx.fetch(_SQL.disown, *columns(attempts, *_ATTEMPT_COLUMNS), dialer)
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
