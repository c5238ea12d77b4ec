"""Mailboxes and their events: append, claim, read, complete, fail. `mailbox_admin` is for operators.

An append locks its mailboxes first and counts under the lock; a completion compares that count in its own UPDATE.
Between the two no event is lost, whichever comes first. Lock order: mailboxes last but for jobs, sorted by (kind, key).
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from trunkline.states import MailboxStatus
from trunkline.store.database import Connection
from trunkline.store.rows import columns
from trunkline.store.sql import Area
from trunkline.value import Value

_SQL = Area("mailbox")

_STATUSES = {status.value: status for status in MailboxStatus}

# Mailboxes of this kind are also counted in metrics named after it.
ISSUE = "issue"

KIND_BYTES_MAX = 63

# A row lock is held for one statement and a commit. A longer wait for it means that its holder is stuck.
LOCK_TIMEOUT_MS = 1000
# How long a batch of appends waits for one of its mailboxes. Then it is written without the locked ones.
BATCH_LOCK_TIMEOUT_MS = 50
# Between a completion and its COMMIT there is nothing to do: a process that is stopped there must lose its locks.
COMMIT_TIMEOUT_MS = 5000


class NewEvent(Value, frozen=True):
    kind: str
    key: str
    dedupe_key: str
    type: str
    payload: dict[str, Any]
    # None wakes a worker, unless the mailbox waits for one already. False wakes none: the event waits for the next
    # sweep, or for an urgent one, which wakes a worker even then.
    urgent: bool | None = None


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """An appended event. A doubled event gets the receipt of the first, with `created` false."""

    seq: int
    created: bool
    status_before: MailboxStatus


class Claim(Value, frozen=True):
    """A claimed mailbox, until its lease ends. Its events are those after `processed`, up to `appended`."""

    kind: str
    key: str
    mailbox_id: int
    fence: int
    processed: int
    appended: int
    failures: int


class Event(msgspec.Struct, frozen=True, gc=False):
    key: str
    seq: int
    type: str
    payload: dict[str, Any]
    created_at: datetime


class ClaimedMailbox(Value, frozen=True):
    """A claim and its pending events in order, at most `events_max` of them."""

    claim: Claim
    events: list[Event]
    events_max: int

    @property
    def upto(self) -> int:
        """Its mailbox is processed up to this number when these events are. There may be more than are read at once."""
        return self.claim.appended if len(self.events) < self.events_max else self.events[-1].seq


class Completed(Value, frozen=True):
    status: MailboxStatus
    took: timedelta


class Parked(Value, frozen=True):
    """An unreadable event, and why."""

    key: str
    seq: int
    error: str


async def append(
    conn: Connection, events: Sequence[NewEvent], *, lock_timeout_ms: int | None = None
) -> list[Receipt]:
    """Append, alone or inside a transaction; a receipt for each event, in their order. It waits `LOCK_TIMEOUT_MS` for a
    mailbox, unless the caller has less time."""
    if lock_timeout_ms is None:
        lock_timeout_ms = LOCK_TIMEOUT_MS
    if len(events) == 1:
        [event] = events
        row = await conn.fetchrow(
            _SQL.append_one,
            event.kind,
            event.key,
            event.dedupe_key,
            event.type,
            event.payload,
            lock_timeout_ms,
        )
        assert row is not None, "a function's answer"
        return [Receipt(row["number"], row["is_new"], _STATUSES[row["status_before"]])]
    boxes: dict[tuple[str, str], int] = {}
    unique: dict[tuple[int, str], NewEvent] = {}
    for event in events:
        box = boxes.setdefault((event.kind, event.key), len(boxes) + 1)
        unique.setdefault((box, event.dedupe_key), event)
    places = [box for box, _ in unique]
    amounts: Counter[int] = Counter()
    ordinals: list[int] = []
    for box in places:
        amounts[box] += 1
        ordinals.append(amounts[box])
    rows = await conn.fetch(
        _SQL.append,
        [kind for kind, _ in boxes],
        [key for _, key in boxes],
        [amounts[box] for box in boxes.values()],
        places,
        ordinals,
        [dedupe_key for _, dedupe_key in unique],
        [event.type for event in unique.values()],
        [event.payload for event in unique.values()],
        lock_timeout_ms,
    )
    receipts = dict(zip(unique, _receipts(places, rows), strict=True))
    if len(unique) == len(events):
        return list(receipts.values())
    return [receipts[boxes[event.kind, event.key], event.dedupe_key] for event in events]


def _receipts(boxes: Sequence[int], rows: Sequence[Any]) -> Iterator[Receipt]:
    """A mailbox's new events are numbered in their order, on from its last; doubled ones had a number already."""
    last: dict[int, int] = {}
    status: dict[int, MailboxStatus] = {}
    known: dict[int, int] = {}
    for box, number, status_before, known_at in rows:
        if known_at is None:
            last[box], status[box] = number, _STATUSES[status_before]
        else:
            known[known_at] = number
    for at, box in enumerate(boxes, 1):
        if at in known:
            yield Receipt(known[at], False, status[box])
        else:
            last[box] += 1
            yield Receipt(last[box], True, status[box])


async def lock(tx: Connection, mailboxes: set[tuple[str, str]]) -> None:
    """Lock mailboxes, inserted if they are missing, until the end of the transaction."""
    kinds, keys = [kind for kind, _ in mailboxes], [key for _, key in mailboxes]
    await tx.execute(_SQL.lock, kinds, keys, LOCK_TIMEOUT_MS)


async def lock_free(tx: Connection, mailboxes: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Lock those of these mailboxes that no other transaction holds, inserted if they are missing; returns which. Waits
    for none."""
    listed = list(mailboxes)
    places = await tx.fetchval(_SQL.lock_free, [kind for kind, _ in listed], [key for _, key in listed])
    return {listed[place - 1] for place in places}


async def claim(
    conn: Connection,
    kind: str,
    keys: Sequence[str] | None,
    *,
    limit: int,
    worker: str,
    lease_s: float,
    events_max: int,
) -> list[ClaimedMailbox]:
    """Those of these mailboxes that have work and are unclaimed; without keys, of all."""
    if keys is not None and len(keys) == limit == 1:
        rows = await conn.fetch(_SQL.claim_one, kind, keys[0], worker, lease_s, events_max)
    else:
        rows = await conn.fetch(_SQL.claim, kind, keys, limit, worker, lease_s, events_max)
    claimed: list[ClaimedMailbox] = []
    for key, mailbox_id, fence, processed, appended, failures, seq, type_, payload, created_at in rows:
        if not claimed or claimed[-1].claim.mailbox_id != mailbox_id:
            claim = Claim(kind, key, mailbox_id, fence, processed, appended, failures)
            claimed.append(ClaimedMailbox(claim, [], events_max))
        if seq is not None:
            claimed[-1].events.append(Event(key, seq, type_, payload, created_at))
    return claimed


async def complete(tx: Connection, handled: Sequence[ClaimedMailbox]) -> dict[str, Completed]:
    """Mark the events and free the mailboxes, last in the handler's transaction. A key that is missing from the result
    lost its lease: its effects must not be committed."""
    rows = await tx.fetch(
        _SQL.complete,
        handled[0].claim.kind,
        *columns(handled, "claim.key", "claim.fence", "upto"),
        str(LOCK_TIMEOUT_MS),
        str(COMMIT_TIMEOUT_MS),
    )
    return {key: Completed(_STATUSES[status], took) for key, status, took in rows}


async def park(tx: Connection, kind: str, parked: Sequence[Parked]) -> None:
    """Park unreadable events with the reason."""
    await tx.execute(_SQL.park, kind, *columns(parked, "key", "seq", "error"))


async def fail(
    conn: Connection, claim: Claim, error: str, *, failures_max: int, delay_s: float, counts: bool = True
) -> MailboxStatus | None:
    """Put a mailbox back for later, or make it a dead letter. None if the claim was lost."""
    status = await conn.fetchval(
        _SQL.fail, claim.kind, claim.key, claim.fence, error, failures_max, delay_s, counts
    )
    return MailboxStatus(status) if status else None


async def bury(conn: Connection, claim: Claim) -> str | None:
    """Make a mailbox that its workers did not survive a dead letter; returns the last error. None if the claim was
    lost."""
    error: str | None = await conn.fetchval(_SQL.bury, claim.kind, claim.key, claim.fence)
    return error


async def renew(conn: Connection, kind: str, held: Sequence[Claim], *, lease_s: float) -> set[int]:
    """Renew leases; returns the fences of those that were lost."""
    rows = await conn.fetch(_SQL.renew, kind, *columns(held, "key", "fence"), lease_s)
    return {row["fence"] for row in rows}


async def release(conn: Connection, kind: str, held: Sequence[Claim]) -> list[str]:
    """Give claims back unhandled; returns the keys of those that were not lost."""
    rows = await conn.fetch(_SQL.release, kind, *columns(held, "key", "fence"))
    return [row["key"] for row in rows]


async def follow_clock_back(
    conn: Connection, kind: str, jump_s: float, *, lease_s: float, delay_max_s: float
) -> None:
    """The server's clock was set back: nothing waits for as long as the jump was."""
    await conn.execute(_SQL.follow_clock_back, kind, lease_s, delay_max_s, jump_s)


async def truly_due(conn: Connection, kind: str, jump_s: float, limit: int) -> list[str]:
    """The server's clock was set forward: what could be claimed without the jump."""
    return [row["key"] for row in await conn.fetch(_SQL.truly_due, kind, jump_s, limit)]
