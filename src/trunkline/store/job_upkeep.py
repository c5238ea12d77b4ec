"""What the outbox needs so that it stays small and true."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.jobs import Lane
from trunkline.store.sql import query

_FORGET_HISTORY = query("jobs/forget_history")
_FORGET_DEAD = query("jobs/forget_dead")
_FORGET_PROGRESS = query("jobs/forget_progress")
_LOCK_KEYS = query("jobs/lock_drifting_keys")
_RECOUNT = query("jobs/recount_keys")
_UNPARK = query("jobs/unpark")
_VACUUM = query("jobs/vacuum")
_DEAD_ROWS = query("jobs/dead_rows")


async def forget_history(conn: Connection, before: datetime, limit: int) -> int:
    return _count(await conn.execute(_FORGET_HISTORY, id_at(before), before, limit))


async def forget_dead(conn: Connection, before: datetime, limit: int) -> int:
    return _count(await conn.execute(_FORGET_DEAD, id_at(before), before, limit))


async def forget_progress(conn: Connection) -> int:
    return _count(await conn.execute(_FORGET_PROGRESS))


async def lock_keys(tx: Connection, after: tuple[str, str], limit: int) -> list[tuple[str, str]]:
    """A page of concurrency keys, locked. Those in use right now are passed over."""
    return [(row["job_type"], row["key"]) for row in await tx.fetch(_LOCK_KEYS, *after, limit)]


async def recount_keys(
    tx: Connection, keys: Sequence[tuple[str, str]], running_max: dict[str, int]
) -> tuple[int, list[tuple[Lane, datetime]]]:
    """Make locked keys what they truly are; how many were wrong, and where parked jobs wait that were let in."""
    rows = await tx.fetch(_RECOUNT, [key[0] for key in keys], [key[1] for key in keys])
    wrong = sum(row["running"] != row["truth"] for row in rows)
    waiting = [(row["job_type"], row["key"]) for row in rows if row["has_parked"]]
    unparked = await tx.fetch(
        _UNPARK,
        [job_type for job_type, _ in waiting],
        [key for _, key in waiting],
        [running_max.get(job_type, 1) for job_type, _ in waiting],
    )
    return wrong, [(Lane(row["job_type"], row["priority"], keyed=True), row["run_at"]) for row in unparked]


async def dead_rows(conn: Connection) -> int:
    count: int | None = await conn.fetchval(_DEAD_ROWS)
    return count or 0


async def vacuum(conn: Connection) -> None:
    await conn.execute(_VACUUM)


def id_at(moment: datetime) -> UUID:
    """The smallest UUIDv7 of a moment."""
    epoch_ms = (moment - datetime(1970, 1, 1, tzinfo=moment.tzinfo)) // timedelta(milliseconds=1)
    return UUID(int=max(0, epoch_ms) << 80)


def _count(status: str) -> int:
    return int(status.rpartition(" ")[2])
