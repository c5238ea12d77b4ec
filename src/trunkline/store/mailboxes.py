"""Mailboxes and their events: append, claim, read, complete, fail. `mailbox_admin` has what people ask.

An append locks its mailboxes first and counts under the lock; a completion compares that count in its own UPDATE.
Between the two no event is lost, whichever comes first. Lock order: mailboxes last but for jobs, sorted by (kind, key).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from trunkline.states import MailboxStatus
from trunkline.store.database import Connection
from trunkline.store.sql import query

_ENSURE = query("mailbox/ensure")
_LOCK = query("mailbox/lock")
_APPEND = query("mailbox/append")
_CLAIM_DUE = query("mailbox/claim_due")
_CLAIM_NUDGED = query("mailbox/claim_nudged")
_EVENTS = query("mailbox/events")
_COMPLETE = query("mailbox/complete")
_PARK = query("mailbox/park")
_FAIL = query("mailbox/fail")
_BURY = query("mailbox/bury")
_RENEW = query("mailbox/renew")
_RELEASE = query("mailbox/release")
_PATIENCE = query("mailbox/patience")

KIND_BYTES_MAX = 63
KEY_BYTES_MAX = 500

# A row lock is held for one statement and a commit. Whoever waits longer for it waits for somebody who is stuck.
LOCK_TIMEOUT_MS = 1000
# Between a completion and its COMMIT there is nothing to do: a process that is stopped there must let go of its locks.
COMMIT_TIMEOUT_MS = 5000


@dataclass(frozen=True, slots=True)
class NewEvent:
    kind: str
    key: str
    dedupe_key: str
    type: str
    payload: dict[str, Any]
    # An event that is not urgent wakes nobody: it waits for an urgent one, or for the next sweep.
    urgent: bool = True


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where an event is. A doubled event gets the receipt of the first, with `created` false."""

    seq: int
    created: bool
    status_before: MailboxStatus


@dataclass(frozen=True, slots=True)
class Claim:
    """A mailbox in our hands until its lease ends. Its events are those after `processed`, up to `appended`."""

    kind: str
    key: str
    fence: int
    processed: int
    appended: int
    failures: int


@dataclass(frozen=True, slots=True)
class Event:
    key: str
    seq: int
    type: str
    payload: dict[str, Any]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Handled:
    """A claim of which the events up to this number were handled."""

    claim: Claim
    upto: int


@dataclass(frozen=True, slots=True)
class Completed:
    status: MailboxStatus
    took: timedelta


@dataclass(frozen=True, slots=True)
class Parked:
    """An event that nobody can read, and why."""

    key: str
    seq: int
    error: str


async def append(tx: Connection, events: Sequence[NewEvent]) -> list[Receipt]:
    """Append inside a transaction; a receipt for each event, in their order."""
    once: dict[tuple[str, str, str], NewEvent] = {}
    for event in events:
        once.setdefault((event.kind, event.key, event.dedupe_key), event)
    await lock(tx, {(kind, key) for kind, key, _ in once})
    distinct = list(once.values())
    rows = await tx.fetch(
        _APPEND,
        [e.kind for e in distinct],
        [e.key for e in distinct],
        [e.dedupe_key for e in distinct],
        [e.type for e in distinct],
        [e.payload for e in distinct],
    )
    assert len(rows) == len(distinct), "every mailbox is there, under our lock"
    found = {row["position"]: row for row in rows}
    receipts = {
        identity: Receipt(row["seq"], row["created"], MailboxStatus(row["status_before"]))
        for identity, row in zip(once, (found[n] for n in range(1, len(distinct) + 1)), strict=True)
    }
    return [receipts[event.kind, event.key, event.dedupe_key] for event in events]


async def lock(tx: Connection, mailboxes: set[tuple[str, str]]) -> None:
    """Lock mailboxes, made if they are missing, until the end of the transaction."""
    ordered = sorted(mailboxes)
    kinds, keys = [kind for kind, _ in ordered], [key for _, key in ordered]
    while True:
        await tx.execute(_ENSURE, kinds, keys, str(LOCK_TIMEOUT_MS))
        # Retention may have removed one between the two statements.
        if len(await tx.fetch(_LOCK, kinds, keys)) == len(ordered):
            return


async def claim_due(conn: Connection, kind: str, *, limit: int, worker: str, lease_s: float) -> list[Claim]:
    """The sweep: whatever has work and is in nobody's hands."""
    return _claims(kind, await conn.fetch(_CLAIM_DUE, kind, limit, worker, lease_s))


async def claim_nudged(
    conn: Connection, kind: str, keys: Sequence[str], *, worker: str, lease_s: float
) -> list[Claim]:
    """Those of these mailboxes that have work and are in nobody's hands."""
    return _claims(kind, await conn.fetch(_CLAIM_NUDGED, kind, keys, worker, lease_s))


def _claims(kind: str, rows: Sequence[Any]) -> list[Claim]:
    return [Claim(kind, **row) for row in rows]


async def events(conn: Connection, claims: Sequence[Claim], *, limit: int) -> dict[str, list[Event]]:
    """The pending events of claimed mailboxes of one kind, in order, by key; at most `limit` of each."""
    found: dict[str, list[Event]] = {claim.key: [] for claim in claims}
    rows = await conn.fetch(
        _EVENTS,
        claims[0].kind,
        [c.key for c in claims],
        [c.processed for c in claims],
        [c.appended for c in claims],
        limit,
    )
    for row in rows:
        found[row["key"]].append(Event(**row))
    return found


async def limit_waiting(tx: Connection, lock_timeout_ms: int) -> None:
    """Let no statement of this transaction wait longer than this for what somebody else has locked."""
    await tx.execute(_PATIENCE, str(lock_timeout_ms))


async def complete(tx: Connection, handled: Sequence[Handled]) -> dict[str, Completed]:
    """Mark the events and free the mailboxes, last in the handler's transaction. A key that is missing from the
    answer lost its lease: its effects must not be committed."""
    rows = await tx.fetch(
        _COMPLETE,
        handled[0].claim.kind,
        [h.claim.key for h in handled],
        [h.claim.fence for h in handled],
        [h.upto for h in handled],
        str(LOCK_TIMEOUT_MS),
        str(COMMIT_TIMEOUT_MS),
    )
    return {row["key"]: Completed(MailboxStatus(row["processing_status"]), row["took"]) for row in rows}


async def park(tx: Connection, kind: str, parked: Sequence[Parked]) -> None:
    """Set events aside with the reason why nobody can read them."""
    await tx.execute(_PARK, kind, [p.key for p in parked], [p.seq for p in parked], [p.error for p in parked])


async def fail(
    conn: Connection, claim: Claim, error: str, *, failures_max: int, delay_s: float
) -> MailboxStatus | None:
    """Put a mailbox back for later, or park it as dead. None if it is no longer ours."""
    status = await conn.fetchval(_FAIL, claim.kind, claim.key, claim.fence, error, failures_max, delay_s)
    return MailboxStatus(status) if status else None


async def bury(conn: Connection, claim: Claim) -> str | None:
    """Park a mailbox as dead that its workers did not survive; the last error. None if it is no longer ours."""
    error: str | None = await conn.fetchval(_BURY, claim.kind, claim.key, claim.fence)
    return error


async def renew(conn: Connection, kind: str, held: Sequence[Claim], *, lease_s: float) -> set[int]:
    """Lengthen leases; the fences of those that were lost."""
    rows = await conn.fetch(_RENEW, kind, [c.key for c in held], [c.fence for c in held], lease_s)
    return {row["fence"] for row in rows}


async def release(conn: Connection, kind: str, held: Sequence[Claim]) -> list[str]:
    """Give claims back unhandled; the keys of those that were still ours."""
    rows = await conn.fetch(_RELEASE, kind, [c.key for c in held], [c.fence for c in held])
    return [row["key"] for row in rows]
