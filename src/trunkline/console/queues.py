"""Queues, of jobs and of mailboxes: what waits, is stuck or dead, and its replay.

One page shows either of them. `/jobs` and `/mailboxes` are older addresses of it."""

from typing import Any

from trunkline.console.api_client import ApiRefused, segment
from trunkline.console.page_request import ActionDone, PageRequest, Shown, at, back, posting
from trunkline.schema.queues import COUNT_MAX
from trunkline.states import JobStatus, MailboxStatus, QueueKind

# Of the dead letters, and of the mailboxes that are claimed for long.
SHOWN = 20
_MAILBOX = "/mailboxes/{kind}/{key}"


async def show(visit: PageRequest) -> Shown:
    is_mailboxes = visit.given("kind") == QueueKind.MAILBOXES
    return await (show_mailboxes(visit) if is_mailboxes else show_jobs(visit))


async def show_jobs(visit: PageRequest) -> Shown:
    types = await visit.get("/jobs/types")
    dead = await visit.get("/jobs/dead", {"limit": SHOWN})
    return _queues(
        visit,
        QueueKind.JOBS,
        **await visit.listed("/jobs", "status", "job_type"),
        types=types["items"],
        dead=dead["items"],
        more_dead=dead["next_cursor"] is not None,
        statuses=[status.value for status in JobStatus],
    )


async def show_mailboxes(visit: PageRequest) -> Shown:
    summary = (await visit.get("/mailboxes"))["items"]
    stuck = (await visit.get("/mailboxes/stuck", {"limit": SHOWN}))["items"]
    dead = [each["kind"] for each in summary if each["status"] == MailboxStatus.DEAD]
    query = {"status": "dead", "limit": SHOWN}
    letters = [await visit.api.get(f"/mailboxes/{segment(kind)}", query) for kind in dead]
    return _queues(
        visit,
        QueueKind.MAILBOXES,
        summary=summary,
        count_max=COUNT_MAX,
        stuck=stuck,
        dead=[mailbox for page in letters for mailbox in page["items"]],
        dead_kinds=dead,
    )


def _queues(visit: PageRequest, kind: QueueKind, **values: Any) -> Shown:
    return Shown("queues.html", {"kind": kind, "kinds": list(QueueKind), "may_act": visit.may(), **values})


async def show_job(visit: PageRequest) -> Shown:
    return Shown("job.html", {"job": await visit.get("/jobs/{job_id}"), "may_act": visit.may()})


pause_type = posting(
    "/jobs/types/{job_type}/pause", "Jobs of the type {job_type} wait.", "reason", to="/jobs"
)
resume_type = posting("/jobs/types/{job_type}/resume", "Jobs of the type {job_type} run again.", to="/jobs")
retry_job = posting(
    "/jobs/{job_id}/retry", "The job runs as soon as a worker has a free slot.", back_to="/jobs"
)
cancel_job = posting(
    "/jobs/{job_id}/cancel",
    "The job is cancelled, or its cancellation was requested.",
    "reason",
    back_to="/jobs",
)


async def replay_dead(visit: PageRequest) -> ActionDone:
    name = visit.form.get("job_type")
    result = await visit.api.post("/jobs/dead/replay", {"job_type": name} if name else {})
    return ActionDone(f"{result['replayed']} dead letters wait for their turn again.", at("/jobs"))


async def show_kind(visit: PageRequest) -> Shown:
    found = await visit.listed("/mailboxes/{kind}", "status")
    values = {"kind": visit.part("kind"), "statuses": [each.value for each in MailboxStatus]}
    return Shown("mailbox_kind.html", found | values)


async def show_mailbox(visit: PageRequest) -> Shown:
    mailbox = await visit.get(_MAILBOX)
    events = await visit.listed(f"{_MAILBOX}/events")
    values = {"mailbox": mailbox, "here": at(visit.path(_MAILBOX)), "may_act": visit.may()}
    return Shown("mailbox.html", events | values)


async def replay_kind(visit: PageRequest) -> ActionDone:
    result = await visit.post("/mailboxes/{kind}/replay", "reason")
    return ActionDone(f"{result['replayed']} mailboxes are queued again.", at("/mailboxes"))


async def replay_mailbox(visit: PageRequest) -> ActionDone:
    """The dead mailbox; or one of its events that was set aside."""
    seq = {"seq": _number(visit.form["seq"])} if "seq" in visit.form else {}
    await visit.post(f"{_MAILBOX}/replay", "reason", **seq)
    return ActionDone("The mailbox is queued again.", back(visit, "/mailboxes"))


async def set_aside(visit: PageRequest) -> ActionDone:
    await visit.post(f"{_MAILBOX}/set-aside", "reason", seq=_number(visit.form.get("seq", "")))
    return ActionDone("The mailbox goes on without this event.", back(visit, "/mailboxes"))


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ApiRefused(422, "invalid_request", "Name the event by its number.")
    return int(text)
