"""When recurring jobs are next due. The row is the guard: its next tick moves in the transaction that enqueues it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from trunkline.schema.queues import JobSchedule
from trunkline.store.database import Connection
from trunkline.store.rows import pick
from trunkline.store.sql import Area

_SQL = Area("jobs")


@dataclass(frozen=True, slots=True)
class Schedule(JobSchedule):
    # When this was read, by Postgres's clock.
    now: datetime


async def register(
    tx: Connection, name: str, *, job_type: str, rule: str, timezone: str, payload: str, next_at: datetime
) -> None:
    await tx.execute(_SQL.register_schedule, name, job_type, rule, timezone, payload, next_at)


async def lock_due(tx: Connection, names: Sequence[str]) -> list[Schedule]:
    return [pick(Schedule, row) for row in await tx.fetch(_SQL.lock_due_schedules, names)]


async def advance(tx: Connection, name: str, *, next_at: datetime, last_at: datetime) -> None:
    await tx.execute(_SQL.advance_schedule, name, next_at, last_at)


async def list_ticks(conn: Connection, names: Sequence[str]) -> list[Schedule]:
    """Those that are not due yet."""
    return [pick(Schedule, row) for row in await conn.fetch(_SQL.list_ticks, names)]


async def pull(tx: Connection, tick: Schedule, *, next_at: datetime) -> None:
    """Move a tick to an earlier time. Waits for no lock."""
    await tx.execute(_SQL.pull_tick, tick.name, tick.next_at, next_at)


async def next_tick_in_s(conn: Connection, names: Sequence[str]) -> float | None:
    seconds: float | None = await conn.fetchval(_SQL.next_tick, names)
    return seconds


async def list_schedules(conn: Connection) -> list[JobSchedule]:
    return [pick(JobSchedule, row) for row in await conn.fetch(_SQL.list_schedules)]
