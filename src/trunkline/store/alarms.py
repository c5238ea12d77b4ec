"""Alarms: raised, cleared, notified, and the samples that decide about them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from trunkline.model import new_id
from trunkline.schema.alarms import Alarm
from trunkline.store.database import Connection
from trunkline.store.rows import pick
from trunkline.store.sql import Area
from trunkline.store.tenants import Tenant

_SQL = Area("alarms")
_BY_SUBJECT = {
    "unknown_attempts": _SQL.unknown_attempts,
    # By kind: how many there are, and the age of the oldest one that a worker could take.
    "dead_mailboxes": _SQL.dead_mailboxes,
    "waiting_mailboxes": _SQL.waiting_mailboxes,
}


@dataclass(frozen=True, slots=True)
class StoredAlarm(Alarm):
    """Its definition, which the code has, says what it means and what to do: see `described`."""

    raise_told_at: datetime | None
    clear_told_at: datetime | None
    # When the webhook last accepted a notification of it.
    notified_at: datetime | None


@dataclass(frozen=True, slots=True)
class Seen:
    """One sample of an alarm's measure, and its age."""

    name: str
    subject: str
    age_s: float
    value: float


@dataclass(frozen=True, slots=True)
class LongStop:
    """A stop: its subject, its reason, its author, and its age in hours."""

    subject: str
    reason: str
    changed_by: str
    hours: float


@dataclass(frozen=True, slots=True)
class AlarmFilter:
    is_open: bool | None = None
    name: str | None = None
    severity: str | None = None


async def raise_alarm(
    tx: Connection, name: str, subject: str, *, severity: str, detail: Mapping[str, Any], tenant: Tenant
) -> bool:
    """True if it was not raised before."""
    alarm_id = new_id()
    stored = await tx.fetchval(
        _SQL.raise_alarm,
        alarm_id,
        name,
        subject,
        severity,
        dict(detail),
        tenant.reseller_id,
        tenant.merchant_id,
    )
    return bool(stored == alarm_id)


async def clear(tx: Connection, name: str, subject: str, by: str) -> bool:
    return await tx.fetchrow(_SQL.clear, name, subject, by) is not None


async def clear_by_id(tx: Connection, alarm_id: UUID, by: str) -> StoredAlarm | None:
    row = await tx.fetchrow(_SQL.clear_by_id, alarm_id, by)
    return _read(row) if row else None


async def record_outage(
    conn: Connection,
    alarm_id: UUID,
    name: str,
    *,
    severity: str,
    detail: Mapping[str, Any],
    lasted_s: float,
    was_notified: bool,
) -> None:
    await conn.execute(_SQL.record_outage, alarm_id, name, severity, dict(detail), lasted_s, was_notified)


async def list_open(conn: Connection) -> list[StoredAlarm]:
    return [alarm for alarm, _ in await current(conn, 0) if alarm.cleared_at is None]


async def current(conn: Connection, again_after_s: float) -> list[tuple[StoredAlarm, bool]]:
    """Raised alarms, and ended ones without a notification; with each, whether a notification is due."""
    return [(_read(row), row["is_due"]) for row in await conn.fetch(_SQL.current, again_after_s)]


async def claim_notifications(
    conn: Connection, alarm_ids: Sequence[UUID], *, again_after_s: float, for_s: float
) -> list[StoredAlarm]:
    rows = await conn.fetch(_SQL.claim_notifications, alarm_ids, again_after_s, for_s)
    return [_read(row) for row in rows]


async def notified(conn: Connection, alarm_id: UUID, *, of_its_end: bool) -> None:
    await conn.execute(_SQL.notified, alarm_id, of_its_end)


async def not_notified(conn: Connection, alarm_id: UUID) -> None:
    await conn.execute(_SQL.not_notified, alarm_id)


async def give_up_notifications(conn: Connection) -> None:
    await conn.execute(_SQL.give_up_notifications)


async def get(conn: Connection, tenant: Tenant, alarm_id: UUID) -> StoredAlarm | None:
    row = await conn.fetchrow(_SQL.get, tenant.reseller_id, tenant.merchant_id, alarm_id)
    return _read(row) if row else None


async def list_alarms(
    conn: Connection, tenant: Tenant, wanted: AlarmFilter, *, before: UUID, limit: int
) -> list[StoredAlarm]:
    rows = await conn.fetch(
        _SQL.list,
        tenant.reseller_id,
        tenant.merchant_id,
        before,
        wanted.is_open,
        wanted.name,
        wanted.severity,
        limit,
    )
    return [_read(row) for row in rows]


async def add_samples(conn: Connection, values: Mapping[tuple[str, str], float]) -> None:
    names, subjects = [name for name, _ in values], [subject for _, subject in values]
    await conn.execute(_SQL.add_samples, names, subjects, list(values.values()))


async def samples(conn: Connection, within_s: float) -> list[Seen]:
    return [Seen(**row) for row in await conn.fetch(_SQL.samples, within_s)]


async def forget_samples(conn: Connection, after_s: float) -> None:
    await conn.execute(_SQL.forget_samples, after_s)


async def lateness_p99_s(conn: Connection) -> float:
    return float(await conn.fetchval(_SQL.lateness))


async def was_placed(conn: Connection) -> bool:
    return bool(await conn.fetchval(_SQL.placed))


async def by_subject(conn: Connection, name: str) -> dict[str, float]:
    return {row["subject"]: row["value"] for row in await conn.fetch(_BY_SUBJECT[name])}


async def long_stops(conn: Connection) -> list[LongStop]:
    return [pick(LongStop, row) for row in await conn.fetch(_SQL.long_stops)]


def _read(row: asyncpg.Record) -> StoredAlarm:
    return pick(StoredAlarm, row, meaning="", action="")
