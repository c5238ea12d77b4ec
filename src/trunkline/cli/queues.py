"""`trunkline queues`: what waits, runs, is done or dead, over the API of a running platform. A queue is the jobs of one
type or the mailboxes of one kind. `trunkline jobs` and `trunkline mailbox` are older commands for the same, and have
what only one of the two has.

trunkline queues list
trunkline queues items mailboxes issue --status dead
trunkline queues replay jobs deliver_webhook --reason "the receiver is repaired"
trunkline jobs enqueue send_report --payload '{"merchant": "acme"}' --unique-key acme
trunkline mailbox set-aside issue 'acme/site#12' 7 --reason "nobody can read it"
"""

from typing import Annotated, Any

import typer

from trunkline.cli.control import Limit, Reason, RemoteContext, api_path, connect, given, json_of
from trunkline.states import JobStatus, MailboxStatus, QueueKind, QueueStatus

app = typer.Typer(
    help="List jobs and mailboxes by their type and kind, replay, pause and cancel them.",
    no_args_is_help=True,
)
jobs = typer.Typer(help="Enqueue, list, retry, cancel, replay and pause jobs.", no_args_is_help=True)
mailbox = typer.Typer(
    help="List mailboxes and their events, append to them, replay them.", no_args_is_help=True
)
for group in (app, jobs, mailbox):
    group.callback()(connect)

Of = Annotated[QueueKind, typer.Argument(metavar="jobs|mailboxes", help="Which of the two.")]
Queue = Annotated[
    str, typer.Argument(metavar="NAME", help="The type of its jobs, or the kind of its mailboxes.")
]
Item = Annotated[str, typer.Argument(metavar="ID", help="The id of a job, or the key of a mailbox.")]
Type = Annotated[str, typer.Option("--type", help="Only jobs of this type.")]
JobId = Annotated[str, typer.Argument(help="The id of a job.")]
Kind = Annotated[str, typer.Argument(help="The kind of mailbox, such as issue.")]
Key = Annotated[str, typer.Argument(help="The entity's name, such as acme/site#12.")]

_QUEUE = ("kind", "name", "waiting", "running", "dead", "paused_reason")
_ITEM = ("kind", "name", "id", "status", "attempts", "due_at", "last_error")
_JOB = ("id", "job_type", "status", "outcome", "attempt_count", "run_at", "last_error_code")
_TYPE = ("job_type", "pending", "dead", "paused_reason")
_SUMMARY = ("kind", "status", "mailboxes", "events", "oldest_s")
_MAILBOX = ("kind", "key", "processing_status", "pending", "failures", "processing_started_at", "last_error")
_EVENT = ("seq", "type", "created_at", "processed_at", "error", "payload")
_KIND = ("kind", "reseller_id", "merchant_id", "secret", "created_at")


# Queues


@app.command("list")
def list_queues(ctx: RemoteContext) -> None:
    """Every queue, with the counts of what is in it, and which are paused."""
    _get(ctx, _QUEUE, "queues")


@app.command()
def items(
    ctx: RemoteContext,
    of: Of,
    name: Queue,
    status: Annotated[QueueStatus | None, typer.Option(help="Only those with this status.")] = None,
    limit: Limit = 50,
) -> None:
    """What is in a queue; with --status dead its dead letters."""
    _get(ctx, _ITEM, "queues", of, name, limit=limit, status=status)


@app.command("show")
def show_item(ctx: RemoteContext, of: Of, name: Queue, item: Item) -> None:
    """Everything about one job, or about one mailbox and its first pending events."""
    _show_one(ctx, "queues", of, name, item)


@app.command("replay")
def replay_queue(
    ctx: RemoteContext,
    of: Of,
    name: Queue,
    reason: Reason,
    item: Annotated[
        str, typer.Argument(metavar="ID", help="One of it. Left out: all its dead letters.")
    ] = "",
) -> None:
    """Replay dead letters, or run a waiting job now."""
    if item:
        _post(ctx, _ITEM, "queues", of, name, item, "replay", reason=reason)
    else:
        _post_until_none(ctx, "queues", of, name, "replay", reason=reason)


@app.command("pause")
def pause_queue(ctx: RemoteContext, name: Queue, reason: Reason) -> None:
    """Pause a queue of jobs: no job of it begins, running ones go on. Mailboxes cannot be paused."""
    _post(ctx, _QUEUE, "queues", QueueKind.JOBS, name, "pause", reason=reason)


@app.command("resume")
def resume_queue(ctx: RemoteContext, name: Queue) -> None:
    """Resume a queue of jobs."""
    _post(ctx, _QUEUE, "queues", QueueKind.JOBS, name, "resume")


@app.command("cancel")
def cancel_item(ctx: RemoteContext, name: Queue, job_id: JobId, reason: Reason) -> None:
    """Cancel a waiting or running job."""
    _post(ctx, _ITEM, "queues", QueueKind.JOBS, name, job_id, "cancel", reason=reason)


# Jobs


@jobs.command("list")
def list_jobs(
    ctx: RemoteContext,
    status: Annotated[JobStatus | None, typer.Option(help="Only jobs with this status.")] = None,
    job_type: Type = "",
    limit: Limit = 50,
) -> None:
    """Jobs, newest first."""
    _get(ctx, _JOB, "jobs", limit=limit, status=status, job_type=job_type)


@jobs.command()
def show(ctx: RemoteContext, job_id: JobId) -> None:
    """Everything about one job."""
    _show_one(ctx, "jobs", job_id)


@jobs.command()
def enqueue(
    ctx: RemoteContext,
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
    options = given(
        unique_key=unique_key,
        concurrency_key=concurrency_key,
        run_at=run_at,
        priority=priority,
        merchant_id=merchant_id,
    )
    _post(ctx, _JOB, "jobs", job_type=job_type, payload=json_of(payload), **options)


@jobs.command()
def retry(ctx: RemoteContext, job_id: JobId) -> None:
    """Run a waiting job now, or replay a dead one."""
    _post(ctx, _JOB, "jobs", job_id, "retry")


@jobs.command()
def cancel(ctx: RemoteContext, job_id: JobId, reason: Reason) -> None:
    """Cancel a waiting or running job."""
    _post(ctx, _JOB, "jobs", job_id, "cancel", reason=reason)


@jobs.command()
def dead(
    ctx: RemoteContext,
    job_type: Type = "",
    replay: Annotated[bool, typer.Option("--replay", help="Replay all dead letters.")] = False,
    limit: Limit = 50,
) -> None:
    """Jobs that failed too often."""
    if replay:
        _post_until_none(ctx, "jobs", "dead", "replay", job_type=job_type or None)
    else:
        _get(ctx, _JOB, "jobs", "dead", limit=limit, job_type=job_type)


@jobs.command()
def types(ctx: RemoteContext) -> None:
    """Counts of jobs by type, and which types are paused."""
    _get(ctx, _TYPE, "jobs", "types")


@jobs.command()
def pause(ctx: RemoteContext, job_type: str, reason: Reason) -> None:
    """Pause a type of job: no job of it begins, running ones go on."""
    _post(ctx, _TYPE, "jobs", "types", job_type, "pause", reason=reason)


@jobs.command()
def resume(ctx: RemoteContext, job_type: str) -> None:
    """Resume a type of job."""
    _post(ctx, _TYPE, "jobs", "types", job_type, "resume")


# Mailboxes


@mailbox.command()
def summary(ctx: RemoteContext) -> None:
    """Queued, claimed and dead mailboxes, by kind."""
    _get(ctx, _SUMMARY, "mailboxes")


@mailbox.command()
def stuck(
    ctx: RemoteContext,
    minutes: Annotated[float, typer.Option(min=0, help="Claimed by one worker for at least this long.")] = 10,
    limit: Limit = 50,
) -> None:
    """Mailboxes that a worker has claimed for long."""
    _get(ctx, _MAILBOX, "mailboxes", "stuck", in_hand_for_s=str(minutes * 60), limit=limit)


@mailbox.command("list")
def list_mailboxes(
    ctx: RemoteContext,
    kind: Kind,
    status: Annotated[MailboxStatus | None, typer.Option(help="Only those with this status.")] = None,
    limit: Limit = 50,
) -> None:
    """Mailboxes of a kind, with the number of pending events in each."""
    _get(ctx, _MAILBOX, "mailboxes", kind, limit=limit, status=status)


@mailbox.command("show")
def show_mailbox(ctx: RemoteContext, kind: Kind, key: Key) -> None:
    """Everything about one mailbox, and its first pending events."""
    _show_one(ctx, "mailboxes", kind, key)


@mailbox.command()
def events(
    ctx: RemoteContext,
    kind: Kind,
    key: Key,
    which: Annotated[str, typer.Option(help="all, unprocessed or parked.")] = "all",
    limit: Limit = 50,
) -> None:
    """The events of a mailbox, in their order."""
    _get(ctx, _EVENT, "mailboxes", kind, key, "events", which=which, limit=limit)


@mailbox.command()
def append(
    ctx: RemoteContext,
    kind: Kind,
    key: Key,
    event_type: Annotated[str, typer.Argument(metavar="TYPE", help="What happened.")],
    payload: Annotated[str, typer.Option(help="A JSON object.")] = "{}",
    dedupe_key: Annotated[str, typer.Option(help="A repeated key is the same event.")] = "",
) -> None:
    """Append an event."""
    body = {"type": event_type, "payload": json_of(payload), "dedupe_key": dedupe_key or None}
    _post(ctx, ("kind", "key", "seq", "created"), "mailboxes", kind, key, "events", **body)


@mailbox.command()
def replay(
    ctx: RemoteContext,
    kind: Kind,
    reason: Reason,
    key: Annotated[str, typer.Argument(help="The entity's name. Left out: all dead ones of the kind.")] = "",
    seq: Annotated[int | None, typer.Option(min=1, help="One parked event.")] = None,
) -> None:
    """Replay dead mailboxes, or a parked event."""
    if key:
        _post(ctx, _MAILBOX, "mailboxes", kind, key, "replay", reason=reason, seq=seq)
    elif seq is not None:
        raise typer.BadParameter("Name the mailbox of the event too.")
    else:
        _post_until_none(ctx, "mailboxes", kind, "replay", reason=reason)


@mailbox.command()
def rename(
    ctx: RemoteContext,
    kind: Annotated[str, typer.Argument(metavar="OLD", help="The old kind.")],
    to: Annotated[str, typer.Argument(metavar="NEW", help="The new kind.")],
    reason: Reason,
) -> None:
    """Move the mailboxes of a kind to another kind."""
    _post_until_none(ctx, "mailboxes", kind, "rename", to=to, reason=reason)


@mailbox.command("set-aside")
def set_aside(ctx: RemoteContext, kind: Kind, key: Key, seq: int, reason: Reason) -> None:
    """Park an event: the mailbox goes on without it."""
    _post(ctx, _MAILBOX, "mailboxes", kind, key, "set-aside", seq=seq, reason=reason)


@mailbox.command()
def kinds(ctx: RemoteContext, limit: Limit = 50) -> None:
    """Kinds with appends over HTTP, and their owners."""
    _get(ctx, _KIND, "mailbox-kinds", limit=limit)


@mailbox.command("open")
def open_kind(
    ctx: RemoteContext,
    kind: Kind,
    reseller: Annotated[str, typer.Option(help="The owner.")] = "",
    merchant: Annotated[str, typer.Option(help="The owner.")] = "",
) -> None:
    """Open a kind to a tenant. Only this output shows the secret that signs its appends."""
    owner = {"reseller_id": reseller or None, "merchant_id": merchant or None}
    _post(ctx, _KIND, "mailbox-kinds", kind=kind, **owner)


@mailbox.command("rotate-secret")
def rotate_secret(ctx: RemoteContext, kind: Kind) -> None:
    """Rotate the secret; the old one is valid for another day."""
    _post(ctx, _KIND, "mailbox-kinds", kind, "rotate-secret")


@mailbox.command("close")
def close_kind(ctx: RemoteContext, kind: Kind) -> None:
    """Close a kind that has no mailboxes."""
    ctx.obj.ask(lambda api: api.delete(api_path("mailbox-kinds", kind)))


def _get(ctx: RemoteContext, columns: tuple[str, ...], *path: str, **query: str | int | None) -> None:
    ctx.obj.get(columns, *path, query=given(**query))


def _post(ctx: RemoteContext, columns: tuple[str, ...], *path: str, **body: Any) -> None:
    ctx.obj.post(columns, *path, body=body)


def _post_until_none(ctx: RemoteContext, *path: str, **body: Any) -> None:
    """The API does a thousand at a time: ask again until it did none, and show the sums."""
    remote = ctx.obj
    total: dict[str, Any] = {}
    while True:
        done: dict[str, Any] = remote.ask(lambda api: api.post(api_path(*path), body))
        # Whether some are left is true or false, and the last answer counts.
        total = {
            name: each if isinstance(each, bool) else total.get(name, 0) + each for name, each in done.items()
        }
        if not any(each for each in done.values() if not isinstance(each, bool)):
            break
    remote.show(total, tuple(total))


def _show_one(ctx: RemoteContext, *path: str) -> None:
    remote = ctx.obj
    found = remote.ask(lambda api: api.get(api_path(*path)))
    if remote.as_json:
        remote.show(found, ())
        return
    waiting = found.pop("events", None)
    fields = [{"field": name, "value": value} for name, value in found.items() if value is not None]
    remote.show({"items": fields}, ("field", "value"))
    if waiting is not None:
        remote.show({"items": waiting}, _EVENT)
