"""Cooldowns: what a carrier refuses because of us is left out for a while, then probed with one call at a time."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from msgspec.structs import astuple

from trunkline.store.database import Connection
from trunkline.store.sql import Area
from trunkline.value import Private, Value

_SQL = Area("cooldowns")

Scope = Literal["account", "country", "number", "process"]
AccountName = tuple[str, str]


class Subject(Value, frozen=True):
    """What is in a cooldown. Its name: `carrier/account`, `carrier/account/country`, a number's id, or
    `process:carrier/account`."""

    scope: Scope
    name: str


class CooldownProbe(Value, frozen=True):
    """The last attempt that probed a cooldown, and its state."""

    id: UUID
    state: str
    end_reason: str | None
    sent_at: datetime
    phone: Private[str]


class Cooldown(Value, frozen=True):
    """`probe` is None before the first one. `needs_ringing`: the carrier accepts such calls and fails them later."""

    code: str
    opens_at: datetime
    probes: int
    needs_ringing: bool = False
    probe: CooldownProbe | None = None


class NewProbe(Value, frozen=True):
    subject: Subject
    carrier: str
    account: str
    attempt_id: UUID
    probes: int
    opens_at: datetime


class CarrierRefused(Value, frozen=True):
    subject: Subject
    account: AccountName
    code: str
    why: str = ""
    # What an operator has to do about it.
    remedy: str = ""
    after_acceptance: bool = False


class ActiveCooldown(Value, frozen=True):
    """A cooldown for people: which one it is, why and since when, and when it is probed next."""

    subject: Subject
    code: str
    why: str
    since: datetime
    until: datetime
    refused_at: datetime | None = None
    probes: int = 0
    is_probing: bool = False


async def begin(
    conn: Connection, refused: Sequence[CarrierRefused], *, first_wait_s: float
) -> list[ActiveCooldown]:
    """A transaction of its own: writing results locks attempts, and limits are locked first."""
    columns = zip(
        *((*astuple(r.subject), *r.account, r.code[:200], r.why, r.after_acceptance) for r in refused),
        strict=True,
    )
    rows = await conn.fetch(_SQL.begin, *columns, first_wait_s)
    return [
        ActiveCooldown(_subject(row), row["code"], row["why"], row["began_at"], row["opens_at"])
        for row in rows
    ]


async def end_accepted(tx: Connection, accepted: Iterable[tuple[Subject, UUID]]) -> list[Subject]:
    """End those whose probe was accepted, by their probe; returns those that still existed."""
    columns = zip(*((*astuple(subject), probe) for subject, probe in accepted), strict=True)
    return [Subject(*row) for row in await tx.fetch(_SQL.end_accepted, *columns)]


async def note_accepted(
    conn: Connection,
    accounts: Collection[AccountName],
    probes: Sequence[UUID],
    reached: Sequence[Subject] = (),
) -> list[Subject]:
    """These accounts accepted calls. Returns the cooldowns that end because a probe was among them, or because the
    process that could not reach them did."""
    names = [subject.name for subject in reached]
    rows = await conn.fetch(_SQL.note_accepted, *zip(*accounts, strict=True), probes, names)
    return [Subject(*row) for row in rows]


async def note_unexplained(conn: Connection, account: AccountName, code: str, leads: Sequence[UUID]) -> int:
    """How many leads met this code in a row, with no accepted call between."""
    count: int = await conn.fetchval(_SQL.note_unexplained, *account, code[:200], leads)
    return count


async def unreachable_processes(conn: Connection, account: AccountName) -> int:
    count: int = await conn.fetchval(_SQL.count_unreachable, *account)
    return count


async def taken_at(conn: Connection, accounts: Sequence[AccountName]) -> dict[AccountName, datetime]:
    rows = await conn.fetch(_SQL.taken_at, *zip(*accounts, strict=True))
    return {(row["carrier"], row["account"]): row["taken_at"] for row in rows}


async def resting(conn: Connection) -> dict[UUID, datetime]:
    """Numbers that may not dial before a time."""
    return {row["id"]: row["until"] for row in await conn.fetch(_SQL.resting)}


async def active(
    conn: Connection, account: AccountName, number_id: UUID | None = None, country: str = ""
) -> list[ActiveCooldown]:
    """The cooldowns that apply to calls of this account from this number to this country, the oldest first."""
    rows = await conn.fetch(_SQL.active, *account, str(number_id), country)
    return [
        ActiveCooldown(
            _subject(row),
            row["code"],
            row["why"],
            row["began_at"],
            row["opens_at"],
            row["refused_at"],
            row["probes"],
            bool(row["is_probing"]),
        )
        for row in rows
    ]


async def renew_account(tx: Connection, account: AccountName, *, known_in_s: float) -> list[Subject]:
    """Its credentials or its address changed: its next call is a probe, as soon as every process has read the change.
    Returns the cooldowns that end by it."""
    return [Subject(*row) for row in await tx.fetch(_SQL.renew_account, *account, known_in_s)]


def _subject(row: Any) -> Subject:
    return Subject(row["scope"], row["subject"])
