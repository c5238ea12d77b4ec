"""Jobs for operators: lists, counts, and actions."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from trunkline.schema.queues import BATCH_MAX, COUNT_MAX, Job, JobTypeState
from trunkline.states import JobStatus
from trunkline.store.database import Connection
from trunkline.store.jobs import Inserted, inserted
from trunkline.store.rows import pick, pick_or_none
from trunkline.store.sql import Area, query
from trunkline.store.tenants import Tenant

_EVERYBODY = "$1::text IS NULL AND $2::text IS NULL"
_TENANT = "reseller_id = $1 AND ($2::text IS NULL OR merchant_id = $2)"
# By whether they are of all tenants, and whether they are of one type.
_LISTS = {
    (True, False): query("jobs/list", whose=_EVERYBODY),
    (False, False): query("jobs/list", whose=_TENANT),
    (True, True): query("jobs/list_of_type", whose=_EVERYBODY),
    (False, True): query("jobs/list_of_type", whose=_TENANT),
}
_SQL = Area("jobs")


@dataclass(frozen=True, slots=True)
class StoredJob(Job):
    """With its payload and its result as text of JSON."""

    fraction: float | None
    note: str | None
    result: str | None
    payload: str | None


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
    listing = _LISTS[tenant.is_platform, job_type is not None]
    whose = (tenant.reseller_id, tenant.merchant_id)
    rows = await conn.fetch(listing, *whose, list(statuses), job_type, before, limit)
    return [pick(Job, row) for row in rows]


async def get(conn: Connection, tenant: Tenant, job_id: UUID) -> StoredJob | None:
    return pick_or_none(
        StoredJob, await conn.fetchrow(_SQL.get, tenant.reseller_id, tenant.merchant_id, job_id)
    )


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
    rows = await tx.fetch(_SQL.dead_ids, tenant.reseller_id, tenant.merchant_id, job_type, job_id, BATCH_MAX)
    back = await tx.fetch(_SQL.replay, [row["id"] for row in rows])
    return len(rows), [inserted(row) for row in back]


async def pause(tx: Connection, job_type: str, reason: str, paused_by: str) -> None:
    await tx.execute(_SQL.pause, job_type, reason, paused_by)


async def resume(tx: Connection, job_type: str) -> bool:
    """Whether it was paused."""
    return await tx.fetchval(_SQL.resume, job_type) is not None


async def types(conn: Connection, job_types: Sequence[str]) -> list[JobTypeState]:
    return [pick(JobTypeState, row) for row in await conn.fetch(_SQL.types, job_types, COUNT_MAX)]


async def dead_letters(conn: Connection) -> dict[str, int]:
    """How many there are of each type that has any, up to `COUNT_MAX`."""
    return {row["job_type"]: row["dead"] for row in await conn.fetch(_SQL.dead_letters, COUNT_MAX)}


async def _locked_status(tx: Connection, tenant: Tenant, job_id: UUID) -> JobStatus | None:
    row = await tx.fetchrow(_SQL.lock_one, tenant.reseller_id, tenant.merchant_id, job_id)
    return JobStatus(row["status"]) if row is not None else None
