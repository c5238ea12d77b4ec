"""Maintenance of the outbox: retention, recounts, vacuum."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from trunkline.store import jobs
from trunkline.store.database import Connection
from trunkline.store.jobs import Key, Lane
from trunkline.store.rows import affected, pick
from trunkline.store.sql import Area, query

_FORGET_HISTORY = query("jobs/forget", table="job_history", ended="finished_at")
_FORGET_DEAD = query("jobs/forget", table="job_dead", ended="died_at")
_SQL = Area("jobs")


async def forget_history(conn: Connection, before: datetime, limit: int) -> int:
    return affected(await conn.execute(_FORGET_HISTORY, id_at(before), before, limit))


async def forget_dead(conn: Connection, before: datetime, limit: int) -> int:
    return affected(await conn.execute(_FORGET_DEAD, id_at(before), before, limit))


async def forget_progress(conn: Connection) -> int:
    return affected(await conn.execute(_SQL.forget_progress))


async def lock_keys(tx: Connection, after: Key, limit: int) -> list[Key]:
    """A page of concurrency keys, locked. Those that are locked already are skipped."""
    rows = await tx.fetch(
        _SQL.lock_drifting_keys, after.job_type, after.key, after.reseller_id, after.merchant_id, limit
    )
    return [Key(*row) for row in rows]


async def recount_keys(
    tx: Connection, keys: Sequence[Key], running_max: dict[str, int]
) -> tuple[int, list[tuple[Lane, datetime]]]:
    """Correct the counts of locked keys; returns how many were wrong, and the lanes of the unparked jobs."""
    rows = await tx.fetch(_SQL.recount_keys, *jobs.key_columns(keys))
    wrong = sum(row["running"] != row["truth"] for row in rows)
    waiting = [pick(Key, row) for row in rows if row["has_parked"]]
    return wrong, await jobs.unpark(tx, waiting, running_max)


async def follow_clock_back(
    tx: Connection, jump_s: float | None, *, lease_s: float
) -> list[tuple[Lane, datetime]]:
    """The server's clock was set back: what was due before is due again, and no lease is longer than `lease_s`; returns
    the lanes of the jobs that are due. `jump_s` None: it may have been set back while no worker watched."""
    await tx.execute(_SQL.leases_back, lease_s, jump_s)
    rows = await tx.fetch(_SQL.due_back, jump_s)
    return [(Lane(row["job_type"], row["priority"], row["is_keyed"]), row["run_at"]) for row in rows]


async def dead_rows(conn: Connection) -> int:
    count: int | None = await conn.fetchval(_SQL.dead_rows)
    return count or 0


async def vacuum(conn: Connection) -> None:
    await conn.execute(_SQL.vacuum)


def id_at(moment: datetime) -> UUID:
    """The smallest UUIDv7 of a time."""
    epoch_ms = (moment - datetime(1970, 1, 1, tzinfo=moment.tzinfo)) // timedelta(milliseconds=1)
    return UUID(int=max(0, epoch_ms) << 80)
