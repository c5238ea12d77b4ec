"""Jobs: waiting and dead ones, and their replay."""

from trunkline.console.api_client import segment
from trunkline.console.page_request import ActionDone, PageRequest, Shown, at, back
from trunkline.states import JobStatus

PAGE = 50
DEAD_SHOWN = 20


async def show(visit: PageRequest) -> Shown:
    types = await visit.api.get("/jobs/types")
    dead = await visit.api.get("/jobs/dead", {"limit": DEAD_SHOWN})
    filters = {name: visit.given(name) for name in ("status", "job_type")}
    jobs = await visit.api.get("/jobs", {**filters, "cursor": visit.given("cursor"), "limit": PAGE})
    return Shown(
        "jobs.html",
        {
            "types": types["items"],
            "dead": dead["items"],
            "more_dead": dead["next_cursor"] is not None,
            "jobs": jobs["items"],
            "next_cursor": jobs["next_cursor"],
            "filters": filters,
            "statuses": [status.value for status in JobStatus],
            "may_act": visit.may(),
        },
    )


async def show_one(visit: PageRequest) -> Shown:
    job = await visit.api.get(_path(visit))
    return Shown("job.html", {"job": job, "may_act": visit.may()})


async def pause(visit: PageRequest) -> ActionDone:
    name = visit.part("job_type")
    await visit.api.post(f"/jobs/types/{segment(name)}/pause", {"reason": visit.form.get("reason", "")})
    return ActionDone(f"Jobs of the type {name} wait.", at("/jobs"))


async def resume(visit: PageRequest) -> ActionDone:
    name = visit.part("job_type")
    await visit.api.post(f"/jobs/types/{segment(name)}/resume")
    return ActionDone(f"Jobs of the type {name} run again.", at("/jobs"))


async def replay_dead(visit: PageRequest) -> ActionDone:
    name = visit.form.get("job_type")
    result = await visit.api.post("/jobs/dead/replay", {"job_type": name} if name else {})
    return ActionDone(f"{result['replayed']} dead letters wait for their turn again.", at("/jobs"))


async def retry(visit: PageRequest) -> ActionDone:
    await visit.api.post(f"{_path(visit)}/retry")
    return ActionDone("The job runs as soon as a worker has a free slot.", back(visit, "/jobs"))


async def cancel(visit: PageRequest) -> ActionDone:
    await visit.api.post(f"{_path(visit)}/cancel", {"reason": visit.form.get("reason", "")})
    return ActionDone("The job is cancelled, or its cancellation was requested.", back(visit, "/jobs"))


def _path(visit: PageRequest) -> str:
    return f"/jobs/{segment(visit.part('job_id'))}"
