"""What the limits of an intent count: what all of them ask under the locks, what only some ask in another statement."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any
from uuid import UUID

from trunkline.model import PersonCalls, PersonQuestion
from trunkline.store.cooldowns import AccountName, Cooldown, CooldownProbe, Subject
from trunkline.store.database import Connection
from trunkline.store.dispatch import LockedNumber
from trunkline.store.sql import Area
from trunkline.value import Private, Value

_SQL = Area("dispatch")


class TalkQuestion(Value, frozen=True):
    """When did this merchant last talk with this person?"""

    phone: Private[str]
    merchant_id: str
    cooldown_s: int


class DayQuestion(Value, frozen=True):
    """What has a merchant used today? From these amounts on it is counted exactly, without what was not placed."""

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

    @property
    def has_more(self) -> bool:
        """Whether anything is asked that most intents do not ask."""
        return bool(self.talks or self.merchants or self.campaigns or self.days)


@dataclass(slots=True)
class LimitCounts:
    now: datetime
    persons: dict[PersonQuestion, PersonCalls] = field(default_factory=dict)
    talks: dict[TalkQuestion, datetime] = field(default_factory=dict)
    merchants: dict[str, int] = field(default_factory=dict)
    campaigns: dict[tuple[str, UUID], int] = field(default_factory=dict)
    days: dict[tuple[str, date], Used] = field(default_factory=dict)
    paces: dict[tuple[str, str], datetime] = field(default_factory=dict)
    doubts: dict[tuple[str, str], Doubts] = field(default_factory=dict)
    # Calls of the numbers that have one above their maximum.
    crowds: dict[UUID, int] = field(default_factory=dict)
    # When accounts last took a call, and the cooldowns of these accounts.
    taken: dict[AccountName, datetime] = field(default_factory=dict)
    cooldowns: dict[Subject, Cooldown] = field(default_factory=dict)


async def lock_and_count(
    tx: Connection, keys: Sequence[int], asked: Questions
) -> tuple[dict[UUID, LockedNumber], LimitCounts]:
    """Lock the names that are counted under, in the given order, then the numbers; and count under the locks."""
    rows = await tx.fetch(_SQL.lock_and_count_limits, keys, asked.numbers, *_columns(asked))
    locked = {row["id"]: _locked(row) for row in rows if row["kind"] == "locked"}
    return locked, _counts(rows, asked)


async def count(conn: Connection, asked: Questions) -> LimitCounts:
    """Without a lock: what nobody may act on."""
    return _counts(await conn.fetch(_SQL.count_limits, *_columns(asked), asked.numbers), asked)


async def count_more(tx: Connection, asked: Questions, counts: LimitCounts) -> None:
    """Add what most intents do not ask, in a later statement than the locks under which it is asked."""
    if not asked.has_more:
        return
    talks, days = asked.talks, asked.days
    rows = await tx.fetch(
        _SQL.count_more,
        [q.phone for q in talks],
        [q.merchant_id for q in talks],
        [q.cooldown_s for q in talks],
        asked.merchants,
        *_unzip(asked.campaigns),
        [q.merchant_id for q in days],
        [q.day for q in days],
        [q.first_at for q in days],
        [q.attempts_from for q in days],
        [q.micros_from for q in days],
    )
    _note(counts, rows, asked)


def _columns(asked: Questions) -> tuple[list[Any], ...]:
    persons = asked.persons
    return (
        [q.phone for q in persons],
        [q.merchant_id or "" for q in persons],
        [q.max_calls for q in persons],
        [q.window_s for q in persons],
        [q.asked_by for q in persons],
        *_unzip(asked.paces),
        *_unzip(asked.accounts),
    )


def _unzip(pairs: Sequence[tuple[object, object]]) -> tuple[list[object], list[object]]:
    return [first for first, _ in pairs], [second for _, second in pairs]


def _locked(row: Any) -> LockedNumber:
    return LockedNumber(
        row["id"],
        row["e164"],
        row["carrier"],
        row["account"],
        row["max_channels"],
        row["starts_per_s"],
        row["status"],
        row["pool_id"],
        may_count=row["flag"],
    )


def _counts(rows: Sequence[Any], asked: Questions) -> LimitCounts:
    counts = LimitCounts(now=next(row["at"] for row in rows if row["kind"] == "now"))
    _note(counts, rows, asked)
    return counts


def _note(counts: LimitCounts, rows: Sequence[Any], asked: Questions) -> None:
    """Answers name their question by its place, counted from 1."""
    for row in rows:
        kind, place, n, m, at, flag, *_ = row
        which = place - 1
        match kind:
            case "person":
                counts.persons[asked.persons[which]] = PersonCalls(n, at, flag)
            case "talk":
                counts.talks[asked.talks[which]] = at
            case "merchant":
                counts.merchants[asked.merchants[which]] = n
            case "campaign":
                counts.campaigns[asked.campaigns[which]] = n
            case "day":
                counts.days[asked.days[which].merchant_id, asked.days[which].day] = Used(n, m)
            case "pace":
                counts.paces[asked.paces[which]] = at
            case "doubt":
                counts.doubts[asked.accounts[which]] = Doubts(n, m or 0)
                if at is not None:
                    counts.taken[asked.accounts[which]] = at
            case "number":
                counts.crowds[asked.numbers[which]] = n
            case "cooldown":
                scope, subject, *_ = row["words"]
                counts.cooldowns[Subject(scope, subject)] = _cooldown(row)


def _cooldown(row: Any) -> Cooldown:
    _, _, code, probe_id, state, end_reason, phone = row["words"]
    # An attempt whose COMMIT was lost leaves none behind.
    probe = (
        CooldownProbe(UUID(probe_id), state, end_reason, row["since"], phone) if state is not None else None
    )
    return Cooldown(code, row["at"], row["n"], row["flag"], probe)
