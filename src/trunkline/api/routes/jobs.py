"""Jobs: pending, running, done and dead ones, and the operations of an operator."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import FileResponse
from pydantic import AwareDatetime, ConfigDict, Field

from trunkline.api.auth import API_ROOT, AdminKey, JobsKey, LeadsKey, ReadKey
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import ApiError, conflict, invalid, not_found
from trunkline.api.models import READ_ERRORS, WRITE_ERRORS, Body, Out, require_found
from trunkline.api.ownership import owner_of, record
from trunkline.api.paging import LAST_ID, Cursors, Page, PageOut, PageQuery
from trunkline.api.principal import Principal
from trunkline.api.routes.controls import Reason
from trunkline.jobs.platform.catalogue import JobsApi
from trunkline.jobs.platform.exports import EXPORT, Export
from trunkline.jobs.registry import KEY_MAX, InvalidJob, PayloadRefused
from trunkline.jobs.wakeups import CANCELLED
from trunkline.leads.ingest import FieldProblem, ObjectId, Text
from trunkline.states import JobStatus, LeadStatus
from trunkline.store import job_admin, job_schedules
from trunkline.store.job_admin import Cancelled, Job, TypeState
from trunkline.store.job_schedules import Schedule
from trunkline.store.tenants import PLATFORM

router = APIRouter(prefix=f"{API_ROOT}/jobs", tags=["jobs"])

TypeName = Annotated[str, Path(max_length=50, description="A type of job.")]


class JobOut(Out):
    id: UUID
    job_type: str
    status: JobStatus
    outcome: str | None = Field(description="How it ended: succeeded, cancelled, superseded or dead.")
    priority: int = Field(description="1 runs first, 99 last, within a type.")
    run_at: datetime | None = Field(description="When it runs at the earliest; null once it has ended.")
    created_at: datetime
    started_at: datetime | None = Field(description="When its last run began.")
    finished_at: datetime | None
    attempt_count: int
    max_attempts: int
    locked_by: str | None = Field(description="The worker of its last run.")
    lease_expires_at: datetime | None
    unique_key: str | None
    concurrency_key: str | None
    cancel_requested: bool
    last_error_code: str | None
    last_error_message: str | None
    reseller_id: str | None
    merchant_id: str | None


class JobDetailOut(JobOut):
    payload: Any = Field(description="null once it is done.")
    result: Any
    progress: float | None = Field(description="From 0 to 1, as the job reports it.")
    note: str | None


class JobProgressOut(Out):
    id: UUID
    status: JobStatus
    progress: float | None
    note: str | None
    result: Any


class JobQuery(PageQuery):
    status: JobStatus | None = None
    job_type: Text | None = Field(None, max_length=50)


class DeadQuery(PageQuery):
    job_type: Text | None = Field(None, max_length=50)


class TypeOut(Out):
    job_type: str
    pending: int = Field(description=f"Counted up to {job_admin.COUNT_MAX} of a kind.")
    dead: int
    paused_reason: str | None = Field(description="null: it is not paused.")
    paused_by: str | None
    paused_at: datetime | None


class TypesOut(Out):
    items: list[TypeOut]


class ScheduleOut(Out):
    name: str
    job_type: str
    rule: str
    timezone: str
    next_at: datetime
    last_at: datetime | None


class SchedulesOut(Out):
    items: list[ScheduleOut]


class ReasonIn(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "The receiver is being repaired"}]})

    reason: Reason = Field(description="The reason, for the audit log.")


class ReplayJobsIn(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"job_type": "deliver_webhook"}]})

    job_type: Text | None = Field(None, max_length=50, description="Only dead letters of this type.")


class ReplayOut(Out):
    replayed: int = Field(description=f"At most {job_admin.REPLAY_MAX} per request: repeat it until it is 0.")
    superseded: int = Field(description="Ended, because a newer job with the same unique key waits.")


class JobIn(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"job_type": "send_report", "payload": {"merchant": "acme"}, "unique_key": "acme"}]
        }
    )

    job_type: Text = Field(min_length=1, max_length=50, description="A type that allows it: `over_http`.")
    payload: Any = Field(default_factory=dict, description="As the job type declares it.")
    run_at: AwareDatetime | None = Field(None, description="Run not before this time. In the past: now.")
    priority: int | None = Field(
        None, ge=1, le=99, description="1 runs first, 99 last. Left out: the type's priority."
    )
    unique_key: Text | None = Field(
        None,
        min_length=1,
        max_length=KEY_MAX,
        description="The item of the job, `item_id` in log lines. While a job of this type and key waits, no "
        "other one is enqueued.",
    )
    concurrency_key: Text | None = Field(
        None,
        min_length=1,
        max_length=KEY_MAX,
        description="The concurrency key: the type limits how many jobs of one key run at once.",
    )
    max_attempts: int | None = Field(
        None, ge=1, le=1000, description="The maximum number of runs. Left out: the type's."
    )
    reseller_id: ObjectId | None = Field(None, description="The owner. Left out: that of the key.")
    merchant_id: ObjectId | None = Field(None, description="The owner. Left out: that of the key.")


class ExportIn(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "FINISHED"}]})

    merchant_id: ObjectId | None = Field(None, description="Only leads of this merchant.")
    status: LeadStatus | None = Field(None, description="Only leads with this status.")
    campaign_id: UUID | None = Field(None, description="Only leads of this campaign.")


@router.get("", response_model=PageOut[JobOut], responses=READ_ERRORS, summary="List jobs")
async def list_jobs(query: Annotated[JobQuery, Query()], who: ReadKey, api: Deps) -> Page[Job]:
    """Newest first: waiting, running, done (for a week) or dead."""
    statuses = tuple(JobStatus) if query.status is None else (query.status,)
    return await job_page(api, who, "jobs", query, statuses, query.job_type)


@router.post(
    "",
    status_code=201,
    response_model=JobOut,
    responses=WRITE_ERRORS
    | {200: {"model": JobOut, "description": "A job with this unique key waits already."}},
    summary="Enqueue a job",
)
async def enqueue_job(body: JobIn, who: JobsKey, api: Deps, response: Response) -> Job:
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
        job = require_found(await job_admin.get(tx, who.tenant, enqueued.id), "job")
    jobs_deps.outbox.wake(enqueued)
    if not enqueued.is_new:
        response.status_code = 200
    return job


@router.get("/dead", response_model=PageOut[JobOut], responses=READ_ERRORS, summary="List dead letters")
async def list_dead(query: Annotated[DeadQuery, Query()], who: ReadKey, api: Deps) -> Page[Job]:
    """Jobs that failed too often, newest first, until they are replayed or their retention ends."""
    return await job_page(api, who, "dead jobs", query, (JobStatus.FAILED,), query.job_type)


@router.post("/dead/replay", response_model=ReplayOut, responses=WRITE_ERRORS, summary="Replay dead letters")
async def replay_dead(body: ReplayJobsIn, who: AdminKey, api: Deps) -> ReplayOut:
    """Oldest first, with all their attempts again."""
    return await replay(api, who, body.job_type)


@router.get("/types", response_model=TypesOut, responses=READ_ERRORS, summary="Count jobs by type")
async def list_types(who: ReadKey, api: Deps) -> TypesOut:
    """For keys of the platform, since the counts are over all tenants; for others the list is empty."""
    if not who.tenant.is_platform:
        return TypesOut(items=[])
    async with api.store.reading() as connection:
        states = await job_admin.types(connection, [job_type.name for job_type in jobs_api(api).registry])
    return TypesOut(items=[TypeOut.model_validate(state) for state in states])


@router.post(
    "/types/{job_type}/pause", response_model=TypeOut, responses=WRITE_ERRORS, summary="Pause a type of job"
)
async def pause_type(job_type: TypeName, body: ReasonIn, who: AdminKey, api: Deps) -> TypeState:
    """No job of it begins; running ones go on. Needs a key of the platform."""
    _require_type(api, who, job_type)
    async with api.store.writing() as tx:
        await job_admin.pause(tx, job_type, body.reason, who.actor)
        await record(tx, who, "jobs.paused", job_type, PLATFORM, reason=body.reason)
        [state] = await job_admin.types(tx, [job_type])
    return state


@router.post(
    "/types/{job_type}/resume", response_model=TypeOut, responses=WRITE_ERRORS, summary="Resume a type of job"
)
async def resume_type(job_type: TypeName, who: AdminKey, api: Deps) -> TypeState:
    """Needs a key of the platform."""
    _require_type(api, who, job_type)
    async with api.store.writing() as tx:
        if await job_admin.resume(tx, job_type):
            await record(tx, who, "jobs.resumed", job_type, PLATFORM)
        [state] = await job_admin.types(tx, [job_type])
    jobs_api(api).notifier.broadcast("")
    return state


@router.get("/schedules", response_model=SchedulesOut, responses=READ_ERRORS, summary="List recurring jobs")
async def list_schedules(who: ReadKey, api: Deps) -> SchedulesOut:
    """For keys of the platform; for others the list is empty."""
    if not who.tenant.is_platform:
        return SchedulesOut(items=[])
    async with api.store.reading() as connection:
        schedules: list[Schedule] = await job_schedules.list_schedules(connection)
    return SchedulesOut(items=[ScheduleOut.model_validate(schedule) for schedule in schedules])


@router.post(
    "/exports", status_code=202, response_model=JobOut, responses=WRITE_ERRORS, summary="Export leads as CSV"
)
async def create_export(body: ExportIn, who: LeadsKey, api: Deps) -> Job:
    """Follow its progress; when it is done, `GET /api/v1/jobs/{job_id}/file` is the file."""
    jobs_deps = jobs_api(api)
    async with api.store.writing() as tx:
        owner = await owner_of(tx, who, None, body.merchant_id)
        wanted = Export(owner.merchant_id, body.status, body.campaign_id)
        enqueued = await jobs_deps.outbox.enqueue(tx, EXPORT, wanted, concurrency_key="export", tenant=owner)
        await record(tx, who, "export.requested", enqueued.id, owner)
        job = require_found(await job_admin.get(tx, who.tenant, enqueued.id), "job")
    jobs_deps.outbox.wake(enqueued)
    return job


@router.get("/{job_id}", response_model=JobDetailOut, responses=READ_ERRORS, summary="Get a job")
async def get_job(job_id: UUID, who: ReadKey, api: Deps) -> JobDetailOut:
    """With its payload while it waits, its progress, and its result when it is done."""
    return detailed(await get_visible(api, who, job_id))


@router.get(
    "/{job_id}/progress",
    response_model=JobProgressOut,
    responses=READ_ERRORS,
    summary="Get the progress of a job",
)
async def get_progress(job_id: UUID, who: ReadKey, api: Deps) -> JobProgressOut:
    job = await get_visible(api, who, job_id)
    return JobProgressOut(
        id=job.id, status=job.status, progress=job.fraction, note=job.note, result=_json(job.result)
    )


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


@router.post("/{job_id}/retry", response_model=JobOut, responses=WRITE_ERRORS, summary="Run a job now")
async def retry_job(job_id: UUID, who: AdminKey, api: Deps) -> Job:
    """A waiting job runs now instead of later; a dead one is replayed. One that runs or is done: 409."""
    return await retry(api, who, job_id)


@router.post("/{job_id}/cancel", response_model=JobOut, responses=WRITE_ERRORS, summary="Cancel a job")
async def cancel_job(job_id: UUID, body: ReasonIn, who: AdminKey, api: Deps) -> Job:
    """A waiting job ends at once. A running one is cancelled, and may finish first."""
    async with api.store.writing() as tx:
        before = require_found(await job_admin.get(tx, who.tenant, job_id), "job")
        cancelled = await job_admin.cancel(tx, who.tenant, job_id, body.reason)
        if cancelled is None:
            raise conflict("job_ended", "This job has ended. There is nothing to cancel.")
        await record(tx, who, "job.cancelled", job_id, before.tenant, reason=body.reason)
        job = require_found(await job_admin.get(tx, who.tenant, job_id), "job")
    if cancelled is Cancelled.ASKED:
        jobs_api(api).notifier.broadcast(CANCELLED)
    return job


async def replay(api: Api, who: Principal, job_type: str | None, reason: str | None = None) -> ReplayOut:
    jobs_deps = jobs_api(api)
    async with api.store.writing() as tx:
        count, back = await job_admin.replay(tx, who.tenant, job_type=job_type)
        await record(tx, who, "jobs.replayed", job_type or "all", who.tenant, reason=reason, count=count)
    jobs_deps.outbox.wake(*back)
    return ReplayOut(replayed=len(back), superseded=count - len(back))


async def retry(api: Api, who: Principal, job_id: UUID, reason: str | None = None) -> Job:
    jobs_deps = jobs_api(api)
    async with api.store.writing() as tx:
        before = require_found(await job_admin.get(tx, who.tenant, job_id), "job")
        if before.status is JobStatus.FAILED:
            _, back = await job_admin.replay(tx, who.tenant, job_id=job_id)
        else:
            woken = await job_admin.run_now(tx, who.tenant, job_id)
            if woken is None:
                raise conflict("job_not_waiting", "This job runs or has ended. There is nothing to retry.")
            back = [woken]
        await record(tx, who, "job.retried", job_id, before.tenant, reason=reason)
        job = require_found(await job_admin.get(tx, who.tenant, job_id), "job")
    jobs_deps.outbox.wake(*back)
    return job


async def job_page(
    api: Api,
    who: Principal,
    name: str,
    query: PageQuery,
    statuses: tuple[JobStatus, ...],
    job_type: str | None,
) -> Page[Job]:
    cursors = Cursors(name, who, query)
    before = cursors.start_id(LAST_ID)
    async with api.store.reading() as connection:
        rows = await job_admin.list_jobs(
            connection,
            who.tenant,
            statuses=statuses,
            job_type=job_type,
            before=before,
            limit=cursors.fetch_limit,
        )
    return cursors.page(rows, lambda job: job.id)


async def get_visible(api: Api, who: Principal, job_id: UUID) -> Job:
    async with api.store.reading() as connection:
        return require_found(await job_admin.get(connection, who.tenant, job_id), "job")


def detailed(job: Job) -> JobDetailOut:
    return JobDetailOut(
        payload=_json(job.payload),
        result=_json(job.result),
        progress=job.fraction,
        note=job.note,
        **JobOut.model_validate(job).model_dump(),
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
