"""Queues, of jobs and of mailboxes alike: counts, lists, dead letters, replay.

A queue is the jobs of one type, or the mailboxes of one kind. `/jobs` and `/mailboxes` are older addresses of the same
operations, and have beside them what only one of the two has: schedules, exports, events that are set aside.
"""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query

from trunkline.api.auth import API_ROOT, AdminKey, ReadKey
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import not_found
from trunkline.api.models import READ_ERRORS, WRITE_ERRORS
from trunkline.api.paging import Items, Page
from trunkline.api.principal import Principal
from trunkline.api.routes import jobs, mailboxes
from trunkline.api.routes.mailboxes import KeyPageQuery, KeyPath
from trunkline.schema.queues import (
    Job,
    JobDetail,
    JobTypeState,
    MailboxDetail,
    MailboxReplay,
    MailboxState,
    QueueCounts,
    QueueItem,
    QueueReason,
    QueueReplayed,
)
from trunkline.states import JOB_STATUSES, MAILBOX_STATUSES, JobStatus, QueueKind, QueueStatus
from trunkline.store.job_admin import StoredJob

router = APIRouter(prefix=f"{API_ROOT}/queues", tags=["queues"])

QueueName = Annotated[
    str, Path(max_length=200, pattern=r"^[^\x00]+$", description="A type of job, or a kind of mailbox.")
]


# Of jobs and of mailboxes.
_STATUS = {str(its): status for table in (JOB_STATUSES, MAILBOX_STATUSES) for status, its in table.items()}


class QueueItemQuery(KeyPageQuery):
    status: QueueStatus | None = None


@router.get("", responses=READ_ERRORS, summary="Count what is in the queues")
async def list_queues(who: ReadKey, api: Deps) -> Items[QueueCounts]:
    """Every type of job, for keys of the platform, and every kind of mailboxes that are not all idle."""
    queues = [_job_queue(state) for state in (await jobs.list_types(who, api)).items]
    counts: dict[str, dict[str, int]] = {}
    for row in (await mailboxes.summarize(who, api)).items:
        counts.setdefault(row.kind, {"waiting": 0, "running": 0, "dead": 0})[_STATUS[row.status]] = (
            row.mailboxes
        )
    for kind, of in counts.items():
        queues.append(QueueCounts(QueueKind.MAILBOXES, kind, paused_reason=None, **of))
    return Items(queues)


@router.get(
    "/{queue_kind}/{queue_name}",
    responses=READ_ERRORS,
    summary="List a queue",
)
async def list_queue_items(
    queue_kind: QueueKind,
    queue_name: QueueName,
    query: Annotated[QueueItemQuery, Query()],
    who: ReadKey,
    api: Deps,
) -> Page[QueueItem]:
    """Jobs newest first, mailboxes by key; `status=dead` are the dead letters."""
    if queue_kind is QueueKind.JOBS:
        statuses = (JOB_STATUSES[query.status],) if query.status else tuple(JobStatus)
        found = await jobs.job_page(api, who, f"queue {queue_name}", query, statuses, queue_name)
        return Page([_job(job) for job in found.items], found.next_cursor)
    status = MAILBOX_STATUSES[query.status] if query.status else None
    boxes = await mailboxes.mailbox_page(api, who, queue_name, query, status)
    return Page([_mailbox(box) for box in boxes.items], boxes.next_cursor)


@router.post(
    "/{queue_kind}/{queue_name}/replay",
    responses=WRITE_ERRORS,
    summary="Replay a queue",
)
async def replay_queue(
    queue_kind: QueueKind, queue_name: QueueName, body: QueueReason, who: AdminKey, api: Deps
) -> QueueReplayed:
    """Puts its dead letters back, with all their attempts again."""
    if queue_kind is QueueKind.JOBS:
        return await jobs.replay(api, who, queue_name, body.reason)
    done = await mailboxes.replay_kind(queue_name, body, who, api)
    return QueueReplayed(replayed=done.replayed, superseded=0)


@router.post(
    "/jobs/{queue_name}/pause",
    responses=WRITE_ERRORS,
    summary="Pause a queue of jobs",
)
async def pause_queue(queue_name: QueueName, body: QueueReason, who: AdminKey, api: Deps) -> QueueCounts:
    """No job of it begins; running ones go on. Needs a key of the platform."""
    return _job_queue(await jobs.pause_type(queue_name, body, who, api))


@router.post(
    "/jobs/{queue_name}/resume",
    responses=WRITE_ERRORS,
    summary="Resume a queue of jobs",
)
async def resume_queue(queue_name: QueueName, who: AdminKey, api: Deps) -> QueueCounts:
    """Needs a key of the platform."""
    return _job_queue(await jobs.resume_type(queue_name, who, api))


@router.post(
    "/jobs/{queue_name}/{job_id}/cancel",
    responses=WRITE_ERRORS,
    summary="Cancel a job of a queue",
)
async def cancel_queue_item(
    queue_name: QueueName, job_id: UUID, body: QueueReason, who: AdminKey, api: Deps
) -> QueueItem:
    """A waiting job ends at once. A running one is cancelled, and may finish first."""
    await _job_of(api, who, queue_name, job_id)
    return _job(await jobs.cancel_job(job_id, body, who, api))


@router.post(
    "/{queue_kind}/{queue_name}/{queue_item:path}/replay",
    responses=WRITE_ERRORS,
    summary="Replay one of a queue",
)
async def replay_queue_item(
    queue_kind: QueueKind,
    queue_name: QueueName,
    queue_item: KeyPath,
    body: QueueReason,
    who: AdminKey,
    api: Deps,
) -> QueueItem:
    """A dead letter. A job that waits runs now instead of later."""
    if queue_kind is QueueKind.JOBS:
        job = await _job_of(api, who, queue_name, _job_id(queue_item))
        return _job(await jobs.retry(api, who, job.id, body.reason))
    whole = MailboxReplay(body.reason)
    return _mailbox(await mailboxes.replay_mailbox(queue_name, queue_item, whole, who, api))


@router.get(
    "/{queue_kind}/{queue_name}/{queue_item:path}",
    responses=READ_ERRORS,
    summary="Get one of a queue",
)
async def get_queue_item(
    queue_kind: QueueKind, queue_name: QueueName, queue_item: KeyPath, who: ReadKey, api: Deps
) -> JobDetail | MailboxDetail:
    """Everything about a job, or about a mailbox and the events that wait in it."""
    if queue_kind is QueueKind.JOBS:
        return jobs.detailed(await _job_of(api, who, queue_name, _job_id(queue_item)))
    return await mailboxes.get_mailbox(queue_name, queue_item, who, api)


async def _job_of(api: Api, who: Principal, name: str, job_id: UUID) -> StoredJob:
    job = await jobs.get_visible(api, who, job_id)
    if job.job_type != name:
        raise not_found("job")
    return job


def _job_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise not_found("job") from None


def _job_queue(state: JobTypeState) -> QueueCounts:
    return QueueCounts(
        kind=QueueKind.JOBS,
        name=state.job_type,
        waiting=state.pending,
        running=None,
        dead=state.dead,
        paused_reason=state.paused_reason,
    )


def _job(job: Job) -> QueueItem:
    return QueueItem(
        kind=QueueKind.JOBS,
        name=job.job_type,
        id=str(job.id),
        status=_STATUS[job.status],
        attempts=job.attempt_count,
        last_error=f"{job.last_error_code}: {job.last_error_message}" if job.last_error_code else None,
        locked_by=job.locked_by,
        due_at=job.lease_expires_at or job.run_at,
        created_at=job.created_at,
    )


def _mailbox(box: MailboxState) -> QueueItem:
    return QueueItem(
        kind=QueueKind.MAILBOXES,
        name=box.kind,
        id=box.key,
        status=_STATUS[box.processing_status],
        attempts=box.failures,
        last_error=box.last_error,
        locked_by=box.locked_by,
        due_at=box.claimable_at,
        created_at=box.created_at,
    )
