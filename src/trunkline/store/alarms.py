"""Alarms: raised, cleared, told, and what they are judged by."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from trunkline.model import new_id
from trunkline.store.database import Connection
from trunkline.store.rows import pick, pick_or_none
from trunkline.store.sql import query
from trunkline.store.tenants import Tenant

_RAISE = query("alarms/raise")
_CLEAR = query("alarms/clear")
_CLEAR_BY_ID = query("alarms/clear_by_id")
_RECORD_PAST = query("alarms/record_past")
_OPEN = query("alarms/open")
_GET = query("alarms/get")
_LIST = query("alarms/list")
_UNTOLD = query("alarms/untold")
_TOLD = query("alarms/told")
_ADD_SAMPLES = query("alarms/add_samples")
_SAMPLES = query("alarms/samples")
_FORGET_SAMPLES = query("alarms/forget_samples")
_LATENESS = query("alarms/lateness")
_PLACED = query("alarms/placed")
_OVERDUE = query("alarms/overdue")
_UNKNOWN_ATTEMPTS = query("alarms/unknown_attempts")
_DEAD_JOBS = query("alarms/dead_jobs")


@dataclass(frozen=True, slots=True)
class Alarm:
    id: UUID
    name: str
    subject: str
    severity: str
    detail: Mapping[str, Any]
    raised_at: datetime
    # When it was last said to be so.
    seen_at: datetime
    cleared_at: datetime | None
    cleared_by: str | None
    raise_told_at: datetime | None
    clear_told_at: datetime | None
    reseller_id: str | None
    merchant_id: str | None

    @property
    def tenant(self) -> Tenant:
        return Tenant(self.reseller_id, self.merchant_id)


@dataclass(frozen=True, slots=True)
class Seen:
    """One value of one alarm's measure, and how long ago it was."""

    name: str
    subject: str
    age_s: float
    value: float


@dataclass(frozen=True, slots=True)
class Overdue:
    """Leads that should have been called by now, and how many of them need an agent of ours for it."""

    leads: float = 0.0
    needing_agents: float = 0.0


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
        _RAISE, alarm_id, name, subject, severity, dict(detail), tenant.reseller_id, tenant.merchant_id
    )
    return bool(stored == alarm_id)


async def clear(tx: Connection, name: str, subject: str, by: str) -> Alarm | None:
    return pick_or_none(Alarm, await tx.fetchrow(_CLEAR, name, subject, by))


async def clear_by_id(tx: Connection, alarm_id: UUID, by: str) -> Alarm | None:
    return pick_or_none(Alarm, await tx.fetchrow(_CLEAR_BY_ID, alarm_id, by))


async def record_past(
    tx: Connection, name: str, subject: str, *, severity: str, detail: Mapping[str, Any], lasted_s: float
) -> None:
    await tx.execute(_RECORD_PAST, new_id(), name, subject, severity, dict(detail), lasted_s)


async def list_open(conn: Connection) -> list[Alarm]:
    return [pick(Alarm, row) for row in await conn.fetch(_OPEN)]


async def get(conn: Connection, tenant: Tenant, alarm_id: UUID) -> Alarm | None:
    return pick_or_none(Alarm, await conn.fetchrow(_GET, tenant.reseller_id, tenant.merchant_id, alarm_id))


async def list_alarms(
    conn: Connection, tenant: Tenant, wanted: AlarmFilter, *, before: UUID, limit: int
) -> list[Alarm]:
    rows = await conn.fetch(
        _LIST,
        tenant.reseller_id,
        tenant.merchant_id,
        before,
        wanted.is_open,
        wanted.name,
        wanted.severity,
        limit,
    )
    return [pick(Alarm, row) for row in rows]


async def untold(tx: Connection, limit: int) -> list[Alarm]:
    return [pick(Alarm, row) for row in await tx.fetch(_UNTOLD, limit)]


async def told(tx: Connection, alarm_ids: Sequence[UUID]) -> None:
    await tx.execute(_TOLD, alarm_ids)


async def add_samples(conn: Connection, values: Mapping[tuple[str, str], float]) -> None:
    names, subjects = [name for name, _ in values], [subject for _, subject in values]
    await conn.execute(_ADD_SAMPLES, names, subjects, list(values.values()))


async def samples(conn: Connection, within_s: float) -> list[Seen]:
    return [Seen(**row) for row in await conn.fetch(_SAMPLES, within_s)]


async def forget_samples(conn: Connection, after_s: float) -> None:
    await conn.execute(_FORGET_SAMPLES, after_s)


async def lateness_p99_s(conn: Connection) -> float:
    return float(await conn.fetchval(_LATENESS))


async def was_placed(conn: Connection) -> bool:
    return bool(await conn.fetchval(_PLACED))


async def overdue(conn: Connection, streamless: Collection[str] = ()) -> Overdue:
    """`streamless`: carriers that run the agent themselves."""
    row = await conn.fetchrow(_OVERDUE, list(streamless))
    assert row is not None, "a sum always has a row"
    return Overdue(row["leads"], row["needing_agents"])


async def unknown_attempts(conn: Connection) -> dict[str, float]:
    return {row["subject"]: row["value"] for row in await conn.fetch(_UNKNOWN_ATTEMPTS)}


async def dead_jobs(conn: Connection) -> dict[str, float]:
    return {row["subject"]: row["value"] for row in await conn.fetch(_DEAD_JOBS)}
