"""Mailboxes for operators: counts, lists, contents; manual actions, and retention."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from trunkline.schema.queues import BATCH_MAX, MailboxEvent, MailboxState, MailboxSummary
from trunkline.states import MailboxStatus
from trunkline.store import mailboxes
from trunkline.store.database import Connection
from trunkline.store.rows import affected, pick, pick_or_none
from trunkline.store.sql import Area, query

_SQL = Area("mailbox")
_LIST = query("mailbox/list", status="($2::text IS NULL OR processing_status = $2)")
_LIST_DEAD = query("mailbox/list", status="processing_status = $2 AND processing_status = 'dead'")

Which = Literal["all", "unprocessed", "parked"]
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


# By the index with the status. Idle mailboxes are most of them: they are found in the order of keys.
_LISTS = {
    MailboxStatus.QUEUED: _SQL.list_active,
    MailboxStatus.PROCESSING: _SQL.list_active,
    MailboxStatus.DEAD: _LIST_DEAD,
}


@dataclass(frozen=True, slots=True)
class StoredEvent(MailboxEvent):
    kind: str
    key: str


async def summary(
    conn: Connection, kinds: Sequence[str] | None = None, *, count_max: int | None = None
) -> list[MailboxSummary]:
    """Every kind that has mailboxes which are not idle; or of these kinds. With a limit, counted up to it."""
    return [pick(MailboxSummary, row) for row in await conn.fetch(_SQL.summary, kinds, count_max)]


async def list_mailboxes(
    conn: Connection, kind: str, *, status: MailboxStatus | None, after: str, limit: int
) -> list[MailboxState]:
    listing = _LISTS.get(status, _LIST) if status else _LIST
    return [pick(MailboxState, row) for row in await conn.fetch(listing, kind, status, after, limit)]


async def stuck(
    conn: Connection, *, in_hand_for_s: float, limit: int, kinds: Sequence[str] | None = None
) -> list[MailboxState]:
    """Mailboxes that one worker has held for long, the longest first."""
    return [pick(MailboxState, row) for row in await conn.fetch(_SQL.stuck, in_hand_for_s, limit, kinds)]


async def get(conn: Connection, kind: str, key: str) -> MailboxState | None:
    return pick_or_none(MailboxState, await conn.fetchrow(_SQL.get, kind, key))


async def list_events(
    conn: Connection, kind: str, key: str, *, which: Which, after: int, limit: int
) -> list[StoredEvent]:
    rows = await conn.fetch(_SQL.list_events, kind, key, after, which, limit)
    return [pick(StoredEvent, row) for row in rows]


async def get_event(conn: Connection, kind: str, key: str, seq: int) -> StoredEvent | None:
    return pick_or_none(StoredEvent, await conn.fetchrow(_SQL.get_event, kind, key, seq))


async def replay(conn: Connection, kind: str, key: str | None = None, *, limit: int = BATCH_MAX) -> list[str]:
    """Bring a dead mailbox back, or those of a kind; returns the keys of those that were dead."""
    return [row["key"] for row in await conn.fetch(_SQL.replay, kind, key, limit)]


async def replay_event(tx: Connection, kind: str, key: str, seq: int) -> int | None:
    """Append a parked event again; returns its new number. None if it was not parked."""
    await mailboxes.lock(tx, {(kind, key)})
    number: int | None = await tx.fetchval(_SQL.replay_event, kind, key, seq)
    return number


async def rename(tx: Connection, kind: str, to: str, *, limit: int) -> tuple[list[str], bool]:
    """Move mailboxes of a kind to another; returns their keys, and whether some are left."""
    keys = [row["key"] for row in await tx.fetch(_SQL.rename, kind, to, limit)]
    return keys, bool(await tx.fetchval(_SQL.has_kind, kind))


async def set_aside(conn: Connection, kind: str, key: str, seq: int, error: str) -> bool:
    """Let a mailbox go on without one of its pending events."""
    return await conn.fetchval(_SQL.set_aside, kind, key, seq, error) is not None


async def set_aside_lately(conn: Connection, *, within_s: float) -> dict[str, int]:
    """How many events were parked, by kind."""
    return {row["kind"]: row["events"] for row in await conn.fetch(_SQL.set_aside_lately, within_s)}


async def retire_events(
    conn: Connection, *, older_than_s: float, limit: int, after: datetime = LONG_AGO
) -> tuple[int, datetime | None]:
    """Remove events that were processed long ago; returns how many, and up to which time of arrival."""
    row = await conn.fetchrow(_SQL.retire_events, older_than_s, limit, after)
    assert row is not None, "an aggregate"
    return row["removed"], row["upto"]


async def retire_mailboxes(conn: Connection, *, idle_for_s: float, limit: int) -> int:
    """Remove mailboxes that are long idle and empty; returns how many."""
    return affected(await conn.execute(_SQL.retire_mailboxes, idle_for_s, limit))
