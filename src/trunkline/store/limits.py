"""Counts for the limits of an intent: those that every intent needs under the locks, the others in later statements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

from trunkline.model import PersonCalls, PersonQuestion
from trunkline.store.cooldowns import AccountName, Cooldown, CooldownProbe, Subject
from trunkline.store.database import Connection
from trunkline.store.dispatch import LockedNumber
from trunkline.store.sql import Area
from trunkline.value import Private, Value

_SQL = Area("dispatch")
_UNREAD = datetime.min.replace(tzinfo=UTC)


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


async def lock_and_count(tx: Connection, keys: Sequence[int], questions: Questions) -> LimitCounts:
    """Lock the names that are counted, in the given order, then the numbers; and count under the locks."""
    rows = await tx.fetch(_SQL.lock_and_count_limits, keys, questions.numbers, *_columns(questions))
    return _noted(LimitCounts(), rows, questions)


async def count(conn: Connection, questions: Questions) -> LimitCounts:
    """Without a lock: for display only."""
    rows = await conn.fetch(_SQL.count_limits, *_columns(questions), questions.numbers)
    return _noted(LimitCounts(), rows, questions)


async def count_conditional(tx: Connection, questions: Questions, counts: LimitCounts) -> None:
    """Add the counts that most intents do not need, in a later statement than the locks that they need."""
    talks, merchants, campaigns, days = (
        questions.talks,
        questions.merchants,
        questions.campaigns,
        questions.days,
    )
    if not (talks or merchants or campaigns or days):
        return
    rows = await tx.fetch(
        _SQL.count_conditional,
        [q.phone for q in talks],
        [q.merchant_id for q in talks],
        [q.cooldown_s for q in talks],
        merchants,
        [merchant_id for merchant_id, _ in campaigns],
        [campaign_id for _, campaign_id in campaigns],
        [q.merchant_id for q in days],
        [q.day for q in days],
        [q.first_at for q in days],
        [q.attempts_from for q in days],
        [q.micros_from for q in days],
    )
    _noted(counts, rows, questions)


def _columns(questions: Questions) -> tuple[list[Any], ...]:
    persons = questions.persons
    return (
        [q.phone for q in persons],
        [q.merchant_id or "" for q in persons],
        [q.max_calls for q in persons],
        [q.window_s for q in persons],
        [q.asked_by for q in persons],
        [kind for kind, _ in questions.paces],
        [subject for _, subject in questions.paces],
        [carrier for carrier, _ in questions.accounts],
        [account for _, account in questions.accounts],
    )


def _noted(counts: LimitCounts, rows: Sequence[Any], questions: Questions) -> LimitCounts:
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
                scope, subject, *_ = row["words"]
                counts.cooldowns[Subject(scope, subject)] = _cooldown(row)
    return counts


def _cooldown(row: Any) -> Cooldown:
    _, _, code, probe_id, state, end_reason, phone = row["words"]
    # An attempt whose COMMIT was lost has no row.
    probe = (
        CooldownProbe(UUID(probe_id), state, end_reason, row["since"], phone) if state is not None else None
    )
    return Cooldown(code, row["at"], row["n"], row["flag"], probe)


class GroupCount(Value, frozen=True):
    """`free`: free slots, less the inbound reserve and those for waiting calls. Of the calls that ring for them without
    a reservation: how many, the sum of their answer rates, and the least share that any was admitted under."""

    free: int
    calls: int
    answers_expected: float
    abandon_max: float


class OverdialCount(Value, frozen=True):
    """`abandoned`: those of the given persons, by merchant and phone, whom that merchant abandoned before."""

    groups: Mapping[str, GroupCount]
    abandoned: Private[frozenset[tuple[str, str]]]


async def count_overdialled(
    tx: Connection,
    callers: Mapping[str, Mapping[str, int]],
    silence_s: float,
    persons: Sequence[tuple[str, str]],
) -> OverdialCount:
    """`callers`: by group, its tiers and the inbound reserve of each, -1 for 10 %."""
    tiers = [
        (group, tier, left)
        for group, tiers_of_group in callers.items()
        for tier, left in tiers_of_group.items()
    ]
    rows = await tx.fetch(
        _SQL.count_overdialled,
        [group for group, _, _ in tiers],
        [tier for _, tier, _ in tiers],
        [left for _, _, left in tiers],
        silence_s,
        [merchant for merchant, _ in persons],
        [phone for _, phone in persons],
    )
    return OverdialCount(
        {
            row["name"]: GroupCount(row["free"], row["calls"], row["answers_expected"], row["abandon_max"])
            for row in rows
            if row["phone"] is None
        },
        frozenset((row["name"], row["phone"]) for row in rows if row["phone"] is not None),
    )


async def groups_ringing(conn: Connection) -> frozenset[str]:
    return frozenset(row["overdial_group"] for row in await conn.fetch(_SQL.groups_ringing))
