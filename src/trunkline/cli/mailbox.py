"""`trunkline mailbox`: what waits, is stuck or dead, over the API of a running platform.

trunkline mailbox summary
trunkline mailbox list issue --status dead
trunkline mailbox show issue 'acme/site#12'
trunkline mailbox replay issue 'acme/site#12' --reason "the handler is mended"
"""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from trunkline.cli.control import ROOT, Context, Limit, Reason, Remote, connect, json_of
from trunkline.states import MailboxStatus

app = typer.Typer(help="List mailboxes and their events, append to them, replay them.", no_args_is_help=True)
app.callback()(connect)

Kind = Annotated[str, typer.Argument(help="The kind of mailbox, such as issue.")]
Key = Annotated[str, typer.Argument(help="The entity's name, such as acme/site#12.")]

_SUMMARY = ("kind", "status", "mailboxes", "events", "oldest_s")
_ROW = ("kind", "key", "processing_status", "pending", "failures", "processing_started_at", "last_error")
_EVENT = ("seq", "type", "created_at", "processed_at", "error", "payload")
_KIND = ("kind", "reseller_id", "merchant_id", "secret", "created_at")


@app.command()
def summary(ctx: Context) -> None:
    """Queued, claimed and dead mailboxes, by kind."""
    _show(ctx, "/mailboxes", {}, _SUMMARY)


@app.command()
def stuck(
    ctx: Context,
    minutes: Annotated[float, typer.Option(min=0, help="Claimed by one worker for at least this long.")] = 10,
    limit: Limit = 50,
) -> None:
    """Mailboxes that a worker has claimed for long."""
    _show(ctx, "/mailboxes/stuck", {"in_hand_for_s": str(minutes * 60), "limit": limit}, _ROW)


@app.command("list")
def list_mailboxes(
    ctx: Context,
    kind: Kind,
    status: Annotated[MailboxStatus | None, typer.Option(help="Only those with this status.")] = None,
    limit: Limit = 50,
) -> None:
    """Mailboxes of a kind, with the number of pending events in each."""
    query: dict[str, str | int] = {"limit": limit, **({"status": status.value} if status else {})}
    _show(ctx, _path(kind), query, _ROW)


@app.command()
def show(ctx: Context, kind: Kind, key: Key) -> None:
    """Everything about one mailbox, and its first pending events."""
    remote = _remote(ctx)
    box = remote.ask(lambda api: api.get(ROOT + _path(kind, key)))
    if remote.as_json:
        remote.show(box, ())
        return
    waiting = box.pop("events")
    fields = [{"field": name, "value": value} for name, value in box.items() if value is not None]
    remote.show({"items": fields}, ("field", "value"))
    remote.show({"items": waiting}, _EVENT)


@app.command()
def events(
    ctx: Context,
    kind: Kind,
    key: Key,
    which: Annotated[str, typer.Option(help="all, unprocessed or parked.")] = "all",
    limit: Limit = 50,
) -> None:
    """The events of a mailbox, in their order."""
    _show(ctx, _path(kind, key, "events"), {"which": which, "limit": limit}, _EVENT)


@app.command()
def append(
    ctx: Context,
    kind: Kind,
    key: Key,
    event_type: Annotated[str, typer.Argument(metavar="TYPE", help="What happened.")],
    payload: Annotated[str, typer.Option(help="A JSON object.")] = "{}",
    dedupe_key: Annotated[str, typer.Option(help="A repeated key is the same event.")] = "",
) -> None:
    """Append an event."""
    body = {"type": event_type, "payload": json_of(payload), "dedupe_key": dedupe_key or None}
    _post(ctx, _path(kind, key, "events"), body, ("kind", "key", "seq", "created"))


@app.command()
def replay(
    ctx: Context,
    kind: Kind,
    reason: Reason,
    key: Annotated[str, typer.Argument(help="The entity's name. Left out: all dead ones of the kind.")] = "",
    seq: Annotated[int | None, typer.Option(min=1, help="One parked event.")] = None,
) -> None:
    """Replay dead mailboxes, or a parked event."""
    if key:
        _post(ctx, _path(kind, key, "replay"), {"reason": reason, "seq": seq}, _ROW)
        return
    if seq is not None:
        raise typer.BadParameter("Name the mailbox of the event too.")
    remote, total = _remote(ctx), 0
    while replayed := remote.ask(lambda api: api.post(ROOT + _path(kind, "replay"), {"reason": reason}))[
        "replayed"
    ]:
        total += replayed
    remote.show({"replayed": total}, ("replayed",))


@app.command()
def rename(
    ctx: Context,
    kind: Annotated[str, typer.Argument(metavar="OLD", help="The old kind.")],
    to: Annotated[str, typer.Argument(metavar="NEW", help="The new kind.")],
    reason: Reason,
) -> None:
    """Move the mailboxes of a kind to another kind."""
    remote, total = _remote(ctx), 0
    while True:
        answer = remote.ask(lambda api: api.post(ROOT + _path(kind, "rename"), {"to": to, "reason": reason}))
        total += answer["renamed"]
        if not answer["renamed"]:
            break
    remote.show({"renamed": total, "left": answer["left"]}, ("renamed", "left"))


@app.command("set-aside")
def set_aside(ctx: Context, kind: Kind, key: Key, seq: int, reason: Reason) -> None:
    """Park an event: the mailbox goes on without it."""
    _post(ctx, _path(kind, key, "set-aside"), {"seq": seq, "reason": reason}, _ROW)


@app.command()
def kinds(ctx: Context, limit: Limit = 50) -> None:
    """Kinds with appends over HTTP, and their owners."""
    _show(ctx, "/mailbox-kinds", {"limit": limit}, _KIND)


@app.command("open")
def open_kind(
    ctx: Context,
    kind: Kind,
    reseller: Annotated[str, typer.Option(help="The owner.")] = "",
    merchant: Annotated[str, typer.Option(help="The owner.")] = "",
) -> None:
    """Open a kind to a tenant. Only this output shows the secret that signs its appends."""
    body = {"kind": kind, "reseller_id": reseller or None, "merchant_id": merchant or None}
    _post(ctx, "/mailbox-kinds", body, _KIND)


@app.command("rotate-secret")
def rotate_secret(ctx: Context, kind: Kind) -> None:
    """Rotate the secret; the old one is valid for another day."""
    _post(ctx, f"/mailbox-kinds/{quote(kind, safe='')}/rotate-secret", {}, _KIND)


@app.command("close")
def close_kind(ctx: Context, kind: Kind) -> None:
    """Close a kind that has no mailboxes."""
    _remote(ctx).ask(lambda api: api.delete(f"{ROOT}/mailbox-kinds/{quote(kind, safe='')}"))


def _show(ctx: Context, path: str, query: dict[str, str | int], columns: tuple[str, ...]) -> None:
    remote = _remote(ctx)
    remote.show(remote.ask(lambda api: api.get(ROOT + path, query)), columns)


def _post(ctx: Context, path: str, body: dict[str, Any], columns: tuple[str, ...]) -> None:
    remote = _remote(ctx)
    remote.show(remote.ask(lambda api: api.post(ROOT + path, body)), columns)


def _remote(ctx: Context) -> Remote:
    remote: Remote = ctx.obj
    return remote


def _path(*parts: str) -> str:
    return "/mailboxes/" + "/".join(quote(part, safe="") for part in parts)
