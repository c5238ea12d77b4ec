"""Mailboxes and their events."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trunkline.states import MailboxStatus
from trunkline.store.database import Connection
from trunkline.store.sql import query

_ENSURE = query("mailbox/ensure")
_LOCK = query("mailbox/lock")
_APPEND = query("mailbox/append")
_CLAIM = query("mailbox/claim")
_EVENTS = query("mailbox/events")
_MARK_PROCESSED = query("mailbox/mark_processed")
_COMPLETE = query("mailbox/complete")
_FAIL = query("mailbox/fail")


@dataclass(frozen=True, slots=True)
class NewEvent:
    kind: str
    key: str
    dedupe_key: str
    type: str
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Appended:
    kind: str
    key: str
    status: MailboxStatus
    added: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A mailbox in our hands, until the lease ends. `appended` is how far its events had come."""

    kind: str
    key: str
    fence: int
    appended: int
    failures: int


@dataclass(frozen=True, slots=True)
class Event:
    key: str
    seq: int
    type: str
    payload: dict[str, Any]
    created_at: datetime


async def append(tx: Connection, events: Sequence[NewEvent]) -> list[Appended]:
    """Append in one transaction; returns the mailboxes that got something new."""
    kinds, keys = [e.kind for e in events], [e.key for e in events]
    await tx.execute(_ENSURE, kinds, keys)
    await tx.execute(_LOCK, kinds, keys)
    rows = await tx.fetch(
        _APPEND,
        kinds,
        keys,
        [e.dedupe_key for e in events],
        [e.type for e in events],
        [e.payload for e in events],
    )
    return [Appended(r["kind"], r["key"], MailboxStatus(r["status"]), r["added"]) for r in rows]


async def claim(
    conn: Connection, kind: str, keys: Sequence[str] | None, *, limit: int, worker: str, lease_s: float
) -> list[Claim]:
    """Claim nudged mailboxes, or whatever is due when no keys are given."""
    rows = await conn.fetch(_CLAIM, kind, keys, limit, worker, lease_s)
    return [Claim(kind, r["key"], r["fence"], r["appended"], r["failures"]) for r in rows]


async def events(conn: Connection, claims: Sequence[Claim]) -> dict[str, list[Event]]:
    """The pending events of claimed mailboxes, in order, by key."""
    found: dict[str, list[Event]] = {claim.key: [] for claim in claims}
    if claims:
        rows = await conn.fetch(
            _EVENTS, claims[0].kind, [c.key for c in claims], [c.appended for c in claims]
        )
        for row in rows:
            found[row["key"]].append(Event(**row))
    return found


async def complete(tx: Connection, claims: Sequence[Claim]) -> dict[str, MailboxStatus]:
    """Mark the events and free the mailboxes, last in the handler's transaction. A key that is missing from the
    answer lost its lease: its effects must not be committed."""
    kind, keys = claims[0].kind, [c.key for c in claims]
    appended = [c.appended for c in claims]
    await tx.execute(_MARK_PROCESSED, kind, keys, appended)
    rows = await tx.fetch(_COMPLETE, kind, keys, [c.fence for c in claims], appended)
    return {r["key"]: MailboxStatus(r["status"]) for r in rows}


async def fail(
    conn: Connection, claim: Claim, error: str, *, failures_max: int, delay_s: float
) -> MailboxStatus | None:
    """Put a mailbox back for later, or park it as dead. None if it is no longer ours."""
    status = await conn.fetchval(_FAIL, claim.kind, claim.key, claim.fence, error, failures_max, delay_s)
    return MailboxStatus(status) if status else None
