"""`trunkline jobs`: what waits, runs, is done or dead, over the API of a running platform.

trunkline jobs list --status PENDING --type deliver_webhook
trunkline jobs enqueue send_report --payload '{"merchant": "acme"}' --unique-key acme
trunkline jobs retry 01a1de62-2409-736d-8c5a-52d9153eecca
trunkline jobs dead --replay --type deliver_webhook
trunkline jobs pause deliver_webhook --reason "the receiver is being repaired"
"""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from trunkline.cli.control import ROOT, Context, Limit, Reason, Remote, connect, json_of
from trunkline.states import JobStatus

app = typer.Typer(help="Enqueue, list, retry, cancel, replay and pause jobs.", no_args_is_help=True)
app.callback()(connect)

Type = Annotated[str, typer.Option("--type", help="Only jobs of this type.")]
JobId = Annotated[str, typer.Argument(help="The id of a job.")]

_ROW = ("id", "job_type", "status", "outcome", "attempt_count", "run_at", "last_error_code")
_TYPE = ("job_type", "pending", "dead", "paused_reason")


@app.command("list")
def list_jobs(
    ctx: Context,
    status: Annotated[JobStatus | None, typer.Option(help="Only jobs with this status.")] = None,
    job_type: Type = "",
    limit: Limit = 50,
) -> None:
    """Jobs, newest first."""
    _show(ctx, "/jobs", _query(limit, status=status, job_type=job_type))


@app.command()
def show(ctx: Context, job_id: JobId) -> None:
    """Everything about one job."""
    remote = _remote(ctx)
    job = remote.ask(lambda api: api.get(_path(job_id)))
    if remote.as_json:
        remote.show(job, ())
    else:
        items = [{"field": name, "value": value} for name, value in job.items() if value is not None]
        remote.show({"items": items}, ("field", "value"))


@app.command()
def enqueue(
    ctx: Context,
    job_type: Annotated[str, typer.Argument(metavar="TYPE", help="A type that allows it.")],
    payload: Annotated[str, typer.Option(help="The payload as JSON, as the job type declares it.")] = "{}",
    unique_key: Annotated[
        str,
        typer.Option(
            help="The unique key: while a job of this type and key waits, no other one is enqueued."
        ),
    ] = "",
    concurrency_key: Annotated[
        str, typer.Option(help="The concurrency key: the type limits how many jobs of one key run at once.")
    ] = "",
    run_at: Annotated[
        str, typer.Option(help="When to run, for example 2030-05-01T09:30:00Z. Left out: now.")
    ] = "",
    priority: Annotated[int | None, typer.Option(min=1, max=99, help="1 runs first, 99 last.")] = None,
    merchant_id: Annotated[
        str, typer.Option("--merchant", help="The owner. Left out: that of the key.")
    ] = "",
) -> None:
    """Enqueue a job. Needs the scope jobs."""
    body = {
        "job_type": job_type,
        "payload": json_of(payload),
        "unique_key": unique_key or None,
        "concurrency_key": concurrency_key or None,
        "run_at": run_at or None,
        "priority": priority,
        "merchant_id": merchant_id or None,
    }
    _post(ctx, f"{ROOT}/jobs", {name: value for name, value in body.items() if value is not None})


@app.command()
def retry(ctx: Context, job_id: JobId) -> None:
    """Run a waiting job now, or replay a dead one."""
    _post(ctx, _path(job_id, "retry"), {})


@app.command()
def cancel(ctx: Context, job_id: JobId, reason: Reason) -> None:
    """Cancel a waiting or running job."""
    _post(ctx, _path(job_id, "cancel"), {"reason": reason})


@app.command()
def dead(
    ctx: Context,
    job_type: Type = "",
    replay: Annotated[bool, typer.Option("--replay", help="Replay all dead letters.")] = False,
    limit: Limit = 50,
) -> None:
    """Jobs that failed too often."""
    if not replay:
        _show(ctx, "/jobs/dead", _query(limit, job_type=job_type))
        return
    remote = _remote(ctx)
    total = {"replayed": 0, "superseded": 0}
    while True:
        body = {"job_type": job_type or None}
        done = remote.ask(lambda api, body=body: api.post(f"{ROOT}/jobs/dead/replay", body))  # type: ignore[misc]
        total = {name: count + done[name] for name, count in total.items()}
        if not any(done.values()):
            break
    remote.show(total, tuple(total))


@app.command()
def types(ctx: Context) -> None:
    """Counts of jobs by type, and which types are paused."""
    _show(ctx, "/jobs/types", None, _TYPE)


@app.command()
def pause(ctx: Context, job_type: str, reason: Reason) -> None:
    """Pause a type of job: no job of it begins, running ones go on."""
    _post(ctx, f"{ROOT}/jobs/types/{quote(job_type, safe='')}/pause", {"reason": reason}, _TYPE)


@app.command()
def resume(ctx: Context, job_type: str) -> None:
    """Resume a type of job."""
    _post(ctx, f"{ROOT}/jobs/types/{quote(job_type, safe='')}/resume", {}, _TYPE)


def _show(
    ctx: Context, path: str, query: dict[str, str | int] | None, columns: tuple[str, ...] = _ROW
) -> None:
    remote = _remote(ctx)
    remote.show(remote.ask(lambda api: api.get(ROOT + path, query)), columns)


def _post(ctx: Context, path: str, body: dict[str, Any], columns: tuple[str, ...] = _ROW) -> None:
    remote = _remote(ctx)
    remote.show(remote.ask(lambda api: api.post(path, body)), columns)


def _remote(ctx: Context) -> Remote:
    remote: Remote = ctx.obj
    return remote


def _path(job_id: str, action: str = "") -> str:
    return f"{ROOT}/jobs/{quote(job_id, safe='')}" + (f"/{action}" if action else "")


def _query(limit: int, **filters: str | None) -> dict[str, str | int]:
    return {"limit": limit, **{name: str(value) for name, value in filters.items() if value}}
