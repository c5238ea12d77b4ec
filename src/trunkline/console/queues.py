"""Queues, of jobs and of mailboxes: what waits, is stuck or dead, and its replay.

One page shows either of them. `/jobs` and `/mailboxes` are older addresses of it."""

from typing import Any

from trunkline.console.api_client import ApiRefused, segment
from trunkline.console.page_request import ActionDone, PageRequest, Shown, at, back
from trunkline.states import JobStatus, MailboxStatus, QueueKind
from trunkline.store.mailbox_admin import COUNT_MAX

PAGE = 50
# Of the dead letters, and of the mailboxes that are claimed for long.
SHOWN = 20


async def show(visit: PageRequest) -> Shown:
    is_mailboxes = visit.given("kind") == QueueKind.MAILBOXES
    return await (show_mailboxes(visit) if is_mailboxes else show_jobs(visit))


async def show_jobs(visit: PageRequest) -> Shown:
    types = await visit.api.get("/jobs/types")
    dead = await visit.api.get("/jobs/dead", {"limit": SHOWN})
    filters = {name: visit.given(name) for name in ("status", "job_type")}
    jobs = await visit.api.get("/jobs", {**filters, "cursor": visit.given("cursor"), "limit": PAGE})
    return _queues(
        visit,
        QueueKind.JOBS,
        types=types["items"],
        dead=dead["items"],
        more_dead=dead["next_cursor"] is not None,
        jobs=jobs["items"],
        next_cursor=jobs["next_cursor"],
        filters=filters,
        statuses=[status.value for status in JobStatus],
    )


async def show_mailboxes(visit: PageRequest) -> Shown:
    summary = (await visit.api.get("/mailboxes"))["items"]
    stuck = (await visit.api.get("/mailboxes/stuck", {"limit": SHOWN}))["items"]
    dead = [each["kind"] for each in summary if each["status"] == MailboxStatus.DEAD]
    letters = [await _of_kind(visit, kind, status="dead", limit=SHOWN) for kind in dead]
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
    job = await visit.api.get(_job_path(visit))
    return Shown("job.html", {"job": job, "may_act": visit.may()})


async def pause_type(visit: PageRequest) -> ActionDone:
    name = visit.part("job_type")
    await visit.api.post(f"/jobs/types/{segment(name)}/pause", {"reason": visit.form.get("reason", "")})
    return ActionDone(f"Jobs of the type {name} wait.", at("/jobs"))


async def resume_type(visit: PageRequest) -> ActionDone:
    name = visit.part("job_type")
    await visit.api.post(f"/jobs/types/{segment(name)}/resume")
    return ActionDone(f"Jobs of the type {name} run again.", at("/jobs"))


async def replay_dead(visit: PageRequest) -> ActionDone:
    name = visit.form.get("job_type")
    result = await visit.api.post("/jobs/dead/replay", {"job_type": name} if name else {})
    return ActionDone(f"{result['replayed']} dead letters wait for their turn again.", at("/jobs"))


async def retry_job(visit: PageRequest) -> ActionDone:
    await visit.api.post(f"{_job_path(visit)}/retry")
    return ActionDone("The job runs as soon as a worker has a free slot.", back(visit, "/jobs"))


async def cancel_job(visit: PageRequest) -> ActionDone:
    await visit.api.post(f"{_job_path(visit)}/cancel", {"reason": visit.form.get("reason", "")})
    return ActionDone("The job is cancelled, or its cancellation was requested.", back(visit, "/jobs"))


async def show_kind(visit: PageRequest) -> Shown:
    status = visit.given("status")
    found = await _of_kind(visit, visit.part("kind"), status=status, cursor=visit.given("cursor"), limit=PAGE)
    return Shown(
        "mailbox_kind.html",
        {
            "kind": visit.part("kind"),
            "mailboxes": found["items"],
            "next_cursor": found["next_cursor"],
            "status": status,
            "statuses": [each.value for each in MailboxStatus],
        },
    )


async def show_mailbox(visit: PageRequest) -> Shown:
    mailbox = await visit.api.get(_path(visit))
    events = await visit.api.get(f"{_path(visit)}/events", {"limit": PAGE, "cursor": visit.given("cursor")})
    return Shown(
        "mailbox.html",
        {
            "mailbox": mailbox,
            "events": events["items"],
            "next_cursor": events["next_cursor"],
            "here": _here(visit),
            "may_act": visit.may(),
        },
    )


async def replay_kind(visit: PageRequest) -> ActionDone:
    kind = visit.part("kind")
    result = await visit.api.post(f"/mailboxes/{segment(kind)}/replay", _reason(visit))
    return ActionDone(f"{result['replayed']} mailboxes are queued again.", at("/mailboxes"))


async def replay_mailbox(visit: PageRequest) -> ActionDone:
    """The dead mailbox; or one of its events that was set aside."""
    body = _reason(visit)
    if seq := visit.form.get("seq"):
        body["seq"] = _number(seq)
    await visit.api.post(f"{_path(visit)}/replay", body)
    return ActionDone("The mailbox is queued again.", back(visit, "/mailboxes"))


async def set_aside(visit: PageRequest) -> ActionDone:
    body = _reason(visit) | {"seq": _number(visit.form.get("seq", ""))}
    await visit.api.post(f"{_path(visit)}/set-aside", body)
    return ActionDone("The mailbox goes on without this event.", back(visit, "/mailboxes"))


async def _of_kind(visit: PageRequest, kind: str, **query: object) -> dict[str, Any]:
    found: dict[str, Any] = await visit.api.get(f"/mailboxes/{segment(kind)}", query)
    return found


def _reason(visit: PageRequest) -> dict[str, object]:
    return {"reason": visit.form.get("reason", "")}


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ApiRefused(422, "invalid_request", "Name the event by its number.")
    return int(text)


def _path(visit: PageRequest) -> str:
    return f"/mailboxes/{segment(visit.part('kind'))}/{segment(visit.part('key'))}"


def _here(visit: PageRequest) -> str:
    return at(f"/mailboxes/{segment(visit.part('kind'))}/{segment(visit.part('key'))}")


def _job_path(visit: PageRequest) -> str:
    return f"/jobs/{segment(visit.part('job_id'))}"
