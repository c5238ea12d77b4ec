"""Jobs for operators: lists, counts, and actions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from uuid import UUID

import asyncpg

from trunkline.states import JobStatus
from trunkline.store.database import Connection
from trunkline.store.jobs import Inserted, inserted
from trunkline.store.rows import pick
from trunkline.store.sql import Area, query
from trunkline.store.tenants import Tenant

_EVERYBODY = "$1::text IS NULL AND $2::text IS NULL"
_TENANT = "reseller_id = $1 AND ($2::text IS NULL OR merchant_id = $2)"
_LIST_ALL = query("jobs/list", whose=_EVERYBODY)
_LIST_OF_TENANT = query("jobs/list", whose=_TENANT)
_LIST_ALL_OF_TYPE = query("jobs/list_of_type", whose=_EVERYBODY)
_LIST_OF_TENANT_OF_TYPE = query("jobs/list_of_type", whose=_TENANT)
_SQL = Area("jobs")

REPLAY_MAX = 1000
# A count stops here.
COUNT_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Job:
    id: UUID
    job_type: str
    status: JobStatus
    outcome: str | None
    priority: int
    run_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempt_count: int
    max_attempts: int
    locked_by: str | None
    lease_expires_at: datetime | None
    unique_key: str | None
    concurrency_key: str | None
    cancel_requested: bool
    reseller_id: str | None
    merchant_id: str | None
    last_error_code: str | None
    last_error_message: str | None
    fraction: float | None
    note: str | None
    result: str | None
    payload: str | None

    @property
    def tenant(self) -> Tenant:
        return Tenant(self.reseller_id, self.merchant_id)


@dataclass(frozen=True, slots=True)
class TypeState:
    """The counts of a type, up to a limit, and whether it is paused."""

    job_type: str
    pending: int
    dead: int
    paused_reason: str | None
    paused_by: str | None
    paused_at: datetime | None


class Cancelled(StrEnum):
    DONE = "cancelled"
    # It runs. Its worker is notified, and may finish first.
    ASKED = "asked"


async def list_jobs(
    conn: Connection,
    tenant: Tenant,
    *,
    statuses: Sequence[JobStatus] = tuple(JobStatus),
    job_type: str | None = None,
    before: UUID,
    limit: int,
) -> list[Job]:
    """A page of jobs, newest first."""
    rows = await conn.fetch(
        _listing(tenant, job_type),
        tenant.reseller_id,
        tenant.merchant_id,
        list(statuses),
        job_type,
        before,
        limit,
    )
    return [_job(row) for row in rows]


def _listing(tenant: Tenant, job_type: str | None) -> str:
    if job_type is None:
        return _LIST_ALL if tenant.is_platform else _LIST_OF_TENANT
    return _LIST_ALL_OF_TYPE if tenant.is_platform else _LIST_OF_TENANT_OF_TYPE


async def get(conn: Connection, tenant: Tenant, job_id: UUID) -> Job | None:
    row = await conn.fetchrow(_SQL.get, tenant.reseller_id, tenant.merchant_id, job_id)
    return None if row is None else _job(row)


async def cancel(tx: Connection, tenant: Tenant, job_id: UUID, reason: str) -> Cancelled | None:
    """Cancel a waiting job, or request it of a running one. None: it is neither."""
    match await _locked_status(tx, tenant, job_id):
        case JobStatus.PENDING:
            await tx.execute(_SQL.cancel_pending, job_id, reason)
            return Cancelled.DONE
        case JobStatus.IN_PROGRESS:
            await tx.execute(_SQL.ask_cancel, job_id)
            return Cancelled.ASKED
        case _:
            return None


async def run_now(tx: Connection, tenant: Tenant, job_id: UUID) -> Inserted | None:
    """Let a waiting job run now. None: it does not wait."""
    if await _locked_status(tx, tenant, job_id) is not JobStatus.PENDING:
        return None
    row = await tx.fetchrow(_SQL.run_now, job_id)
    return inserted(row) if row is not None else None


async def replay(
    tx: Connection, tenant: Tenant, *, job_id: UUID | None = None, job_type: str | None = None
) -> tuple[int, list[Inserted]]:
    """Put dead letters back; returns how many there were, and those that wait now. The others were superseded."""
    rows = await tx.fetch(_SQL.dead_ids, tenant.reseller_id, tenant.merchant_id, job_type, job_id, REPLAY_MAX)
    back = await tx.fetch(_SQL.replay, [row["id"] for row in rows])
    return len(rows), [inserted(row) for row in back]


async def pause(tx: Connection, job_type: str, reason: str, paused_by: str) -> None:
    await tx.execute(_SQL.pause, job_type, reason, paused_by)


async def resume(tx: Connection, job_type: str) -> bool:
    """Whether it was paused."""
    return await tx.fetchval(_SQL.resume, job_type) is not None


async def types(conn: Connection, job_types: Sequence[str]) -> list[TypeState]:
    return [pick(TypeState, row) for row in await conn.fetch(_SQL.types, job_types, COUNT_MAX)]


async def dead_letters(conn: Connection) -> dict[str, int]:
    """How many there are of each type that has any, up to `COUNT_MAX`."""
    return {row["job_type"]: row["dead"] for row in await conn.fetch(_SQL.dead_letters, COUNT_MAX)}


def _job(row: asyncpg.Record) -> Job:
    job = pick(Job, row)
    return replace(job, status=JobStatus(job.status))


async def _locked_status(tx: Connection, tenant: Tenant, job_id: UUID) -> JobStatus | None:
    row = await tx.fetchrow(_SQL.lock_one, tenant.reseller_id, tenant.merchant_id, job_id)
    return JobStatus(row["status"]) if row is not None else None
