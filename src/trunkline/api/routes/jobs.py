"""Jobs: pending, running, done and dead ones, and the operations of an operator."""

from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

import msgspec
from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import FileResponse

from trunkline.api.auth import API_ROOT, AdminKey, JobsKey, LeadsKey, ReadKey
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import ApiError, conflict, invalid, not_found
from trunkline.api.models import READ_ERRORS, WRITE_ERRORS, require_found
from trunkline.api.ownership import owner_of, record
from trunkline.api.paging import LAST_ID, Cursors, Items, Page, PageQuery
from trunkline.api.principal import Principal
from trunkline.api.resources import extended
from trunkline.jobs.platform.catalogue import JobsApi
from trunkline.jobs.platform.exports import EXPORT, Export
from trunkline.jobs.registry import InvalidJob, PayloadRefused
from trunkline.jobs.wakeups import CANCELLED
from trunkline.leads.ingest import FieldProblem
from trunkline.schema.queues import (
    Job,
    JobDetail,
    JobProgress,
    JobRequest,
    JobSchedule,
    JobsReplay,
    JobTypeName,
    JobTypeState,
    NewExport,
    QueueReason,
    QueueReplayed,
)
from trunkline.states import JobStatus
from trunkline.store import job_admin, job_schedules
from trunkline.store.database import Connection
from trunkline.store.job_admin import Cancelled, StoredJob
from trunkline.store.tenants import PLATFORM, tenant_of

router = APIRouter(prefix=f"{API_ROOT}/jobs", tags=["jobs"])

TypeName = Annotated[str, Path(max_length=50, description="A type of job.")]


class DeadQuery(PageQuery):
    job_type: JobTypeName | None = None


class JobQuery(DeadQuery):
    status: JobStatus | None = None


@router.get("", responses=READ_ERRORS, summary="List jobs")
async def list_jobs(query: Annotated[JobQuery, Query()], who: ReadKey, api: Deps) -> Page[Job]:
    """Newest first: waiting, running, done (for a week) or dead."""
    statuses = tuple(JobStatus) if query.status is None else (query.status,)
    return await job_page(api, who, "jobs", query, statuses, query.job_type)


@router.post(
    "",
    status_code=201,
    responses=WRITE_ERRORS
    | {200: {"model": Job, "description": "A job with this unique key waits already."}},
    summary="Enqueue a job",
)
async def enqueue_job(body: JobRequest, who: JobsKey, api: Deps, response: Response) -> Job:
    """Of a type with `over_http`. 201 when it is durable; it never waits for a worker. Needs the scope `jobs`."""
    jobs_deps = jobs_api(api)
    job_type = next((known for known in jobs_deps.registry if known.name == body.job_type), None)
    if job_type is None or not job_type.over_http:
        raise not_found("type of job")
    async with api.store.writing() as tx:
        owner = await owner_of(tx, who, body.reseller_id, body.merchant_id)
        try:
            enqueued = await jobs_deps.outbox.enqueue(
                tx,
                job_type,
                body.payload,
                run_at=body.run_at,
                priority=body.priority,
                unique_key=body.unique_key,
                concurrency_key=body.concurrency_key,
                max_attempts=body.max_attempts,
                tenant=owner,
            )
        except PayloadRefused as error:
            raise invalid(FieldProblem("payload", str(error))) from None
        except InvalidJob as error:
            raise invalid(FieldProblem("unique_key", str(error))) from None
        if enqueued.is_new:
            await record(tx, who, "job.enqueued", enqueued.id, owner, job_type=job_type.name)
        job = await _visible(tx, who, enqueued.id)
    jobs_deps.outbox.wake(enqueued)
    if not enqueued.is_new:
        response.status_code = 200
    return job


@router.get("/dead", responses=READ_ERRORS, summary="List dead letters")
async def list_dead(query: Annotated[DeadQuery, Query()], who: ReadKey, api: Deps) -> Page[Job]:
    """Jobs that failed too often, newest first, until they are replayed or their retention ends."""
    return await job_page(api, who, "dead jobs", query, (JobStatus.FAILED,), query.job_type)


@router.post("/dead/replay", responses=WRITE_ERRORS, summary="Replay dead letters")
async def replay_dead(body: JobsReplay, who: AdminKey, api: Deps) -> QueueReplayed:
    """Oldest first, with all their attempts again."""
    return await replay(api, who, body.job_type)


@router.get("/types", responses=READ_ERRORS, summary="Count jobs by type")
async def list_types(who: ReadKey, api: Deps) -> Items[JobTypeState]:
    """For keys of the platform, since the counts are over all tenants; for others the list is empty."""
    if not who.tenant.is_platform:
        return Items([])
    async with api.store.reading() as connection:
        return Items(
            await job_admin.types(connection, [job_type.name for job_type in jobs_api(api).registry])
        )


@router.post("/types/{job_type}/pause", responses=WRITE_ERRORS, summary="Pause a type of job")
async def pause_type(job_type: TypeName, body: QueueReason, who: AdminKey, api: Deps) -> JobTypeState:
    """No job of it begins; running ones go on. Needs a key of the platform."""
    _require_type(api, who, job_type)
    async with api.store.writing() as tx:
        await job_admin.pause(tx, job_type, body.reason, who.actor)
        await record(tx, who, "jobs.paused", job_type, PLATFORM, reason=body.reason)
        [state] = await job_admin.types(tx, [job_type])
    return state


@router.post("/types/{job_type}/resume", responses=WRITE_ERRORS, summary="Resume a type of job")
async def resume_type(job_type: TypeName, who: AdminKey, api: Deps) -> JobTypeState:
    """Needs a key of the platform."""
    _require_type(api, who, job_type)
    async with api.store.writing() as tx:
        if await job_admin.resume(tx, job_type):
            await record(tx, who, "jobs.resumed", job_type, PLATFORM)
        [state] = await job_admin.types(tx, [job_type])
    jobs_api(api).notifier.broadcast("")
    return state


@router.get("/schedules", responses=READ_ERRORS, summary="List recurring jobs")
async def list_schedules(who: ReadKey, api: Deps) -> Items[JobSchedule]:
    """For keys of the platform; for others the list is empty."""
    if not who.tenant.is_platform:
        return Items([])
    async with api.store.reading() as connection:
        return Items(await job_schedules.list_schedules(connection))


@router.post("/exports", status_code=202, responses=WRITE_ERRORS, summary="Export leads as CSV")
async def create_export(body: NewExport, who: LeadsKey, api: Deps) -> Job:
    """Follow its progress; when it is done, `GET /api/v1/jobs/{job_id}/file` is the file."""
    jobs_deps = jobs_api(api)
    async with api.store.writing() as tx:
        owner = await owner_of(tx, who, None, body.merchant_id)
        wanted = Export(owner.merchant_id, body.status, body.campaign_id)
        enqueued = await jobs_deps.outbox.enqueue(tx, EXPORT, wanted, concurrency_key="export", tenant=owner)
        await record(tx, who, "export.requested", enqueued.id, owner)
        job = await _visible(tx, who, enqueued.id)
    jobs_deps.outbox.wake(enqueued)
    return job


@router.get("/{job_id}", responses=READ_ERRORS, summary="Get a job")
async def get_job(job_id: UUID, who: ReadKey, api: Deps) -> JobDetail:
    """With its payload while it waits, its progress, and its result when it is done."""
    return detailed(await get_visible(api, who, job_id))


@router.get("/{job_id}/progress", responses=READ_ERRORS, summary="Get the progress of a job")
async def get_progress(job_id: UUID, who: ReadKey, api: Deps) -> JobProgress:
    return extended(JobProgress, detailed(await get_visible(api, who, job_id)))


@router.get(
    "/{job_id}/file",
    response_class=FileResponse,
    responses=READ_ERRORS | {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
    summary="The file that a job has made",
)
async def get_file(job_id: UUID, who: ReadKey, api: Deps) -> FileResponse:
    """The file of a finished export, from the data folder, which the worker and the API must share."""
    job = await get_visible(api, who, job_id)
    name = (_json(job.result) or {}).get("file") if job.job_type == EXPORT.name else None
    path = jobs_api(api).files.path(name) if isinstance(name, str) else None
    if path is None or not path.is_file():
        raise not_found("file")
    return FileResponse(path, media_type="text/csv", filename=path.name)


@router.post("/{job_id}/retry", responses=WRITE_ERRORS, summary="Run a job now")
async def retry_job(job_id: UUID, who: AdminKey, api: Deps) -> Job:
    """A waiting job runs now instead of later; a dead one is replayed. One that runs or is done: 409."""
    return await retry(api, who, job_id)


@router.post("/{job_id}/cancel", responses=WRITE_ERRORS, summary="Cancel a job")
async def cancel_job(job_id: UUID, body: QueueReason, who: AdminKey, api: Deps) -> Job:
    """A waiting job ends at once. A running one is cancelled, and may finish first."""
    async with api.store.writing() as tx:
        before = await _visible(tx, who, job_id)
        cancelled = await job_admin.cancel(tx, who.tenant, job_id, body.reason)
        if cancelled is None:
            raise conflict("job_ended", "This job has ended. There is nothing to cancel.")
        await record(tx, who, "job.cancelled", job_id, tenant_of(before), reason=body.reason)
        job = await _visible(tx, who, job_id)
    if cancelled is Cancelled.ASKED:
        jobs_api(api).notifier.broadcast(CANCELLED)
    return job


async def replay(api: Api, who: Principal, job_type: str | None, reason: str | None = None) -> QueueReplayed:
    jobs_deps = jobs_api(api)
    async with api.store.writing() as tx:
        count, back = await job_admin.replay(tx, who.tenant, job_type=job_type)
        await record(tx, who, "jobs.replayed", job_type or "all", who.tenant, reason=reason, count=count)
    jobs_deps.outbox.wake(*back)
    return QueueReplayed(replayed=len(back), superseded=count - len(back))


async def retry(api: Api, who: Principal, job_id: UUID, reason: str | None = None) -> Job:
    jobs_deps = jobs_api(api)
    async with api.store.writing() as tx:
        before = await _visible(tx, who, job_id)
        if before.status == JobStatus.FAILED:
            _, back = await job_admin.replay(tx, who.tenant, job_id=job_id)
        else:
            woken = await job_admin.run_now(tx, who.tenant, job_id)
            if woken is None:
                raise conflict("job_not_waiting", "This job runs or has ended. There is nothing to retry.")
            back = [woken]
        await record(tx, who, "job.retried", job_id, tenant_of(before), reason=reason)
        job = await _visible(tx, who, job_id)
    jobs_deps.outbox.wake(*back)
    return job


async def job_page(
    api: Api, who: Principal, name: str, query: PageQuery, statuses: Sequence[JobStatus], job_type: str | None
) -> Page[Job]:
    cursors = Cursors(name, who, query)
    before, limit = cursors.start_id(LAST_ID), cursors.fetch_limit
    async with api.store.reading() as connection:
        rows = await job_admin.list_jobs(
            connection, who.tenant, statuses=statuses, job_type=job_type, before=before, limit=limit
        )
    return cursors.page(rows, lambda job: job.id)


async def get_visible(api: Api, who: Principal, job_id: UUID) -> StoredJob:
    async with api.store.reading() as connection:
        return await _visible(connection, who, job_id)


async def _visible(conn: Connection, who: Principal, job_id: UUID) -> StoredJob:
    return require_found(await job_admin.get(conn, who.tenant, job_id), "job")


def detailed(job: StoredJob) -> JobDetail:
    return extended(
        JobDetail, job, payload=_json(job.payload), result=_json(job.result), progress=job.fraction
    )


def _require_type(api: Api, who: Principal, job_type: str) -> None:
    """Types do not exist for a tenant. A type of another version may be paused too."""
    if not who.tenant.is_platform or job_type not in {known.name for known in jobs_api(api).registry}:
        raise not_found("type of job")


def jobs_api(api: Api) -> JobsApi:
    if api.deps.jobs is None:
        raise ApiError(
            503, "jobs_unavailable", "This process has no jobs. Send the request to one with the role api."
        )
    return api.deps.jobs


def _json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
