"""`trunkline reminders`: make, find, skip, pause and cancel reminders, over the API of a running platform.

trunkline reminders create --phone +14155550123 --at 2030-05-01T09:00 --timezone Asia/Kolkata --rrule "FREQ=DAILY"
trunkline reminders upcoming 01a1de62-2409-736d-8c5a-52d9153eecca
trunkline reminders pause 01a1de62-2409-736d-8c5a-52d9153eecca
"""

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from trunkline.cli.control import ROOT, Context, Limit, Remote, connect

app = typer.Typer(help="Create, find, skip, pause and cancel reminders.", no_args_is_help=True)
app.callback()(connect)

ReminderId = Annotated[str, typer.Argument(help="The id of a reminder.")]
Merchant = Annotated[str, typer.Option(help="Of this merchant.")]

_ROW = ("id", "merchant_id", "phone", "status", "timezone", "rrule", "next_wall", "next_at", "message")
_OCCURRENCE = (
    "id", "wall_at", "scheduled_at", "state", "skip_reason", "attempt_count", "next_retry_at", "last_error",
    "external_call_id",
)  # fmt: skip


@app.command()
def create(
    ctx: Context,
    phone: Annotated[str, typer.Option(help="Whom to call, best as E.164.")],
    at: Annotated[str, typer.Option(help="When, as wall time: 2030-05-01T09:00.")],
    timezone: Annotated[str, typer.Option(help="The time zone, for example Asia/Kolkata.")],
    rrule: Annotated[str, typer.Option(help="How it recurs: FREQ=WEEKLY;BYDAY=MO,TH. Left out: once.")] = "",
    merchant: Merchant = "",
    message: Annotated[str, typer.Option(help="What the agent is to say.")] = "",
    assistant: Annotated[str, typer.Option(help="Which assistant is to say it.")] = "",
    payload: Annotated[str, typer.Option(help="What else the agent should know, as JSON.")] = "",
    carrier: Annotated[
        str, typer.Option(help="The carrier of the numbers to call from. Left out: vapi.")
    ] = "",
    pool: Annotated[str, typer.Option(help="The number pool to call from.")] = "",
    request_id: Annotated[
        str, typer.Option(help="Your own id of the request, which makes it safe to repeat.")
    ] = "",
    max_attempts: Annotated[
        int | None, typer.Option(min=1, max=20, help="The maximum number of attempts of each occurrence.")
    ] = None,
    late_minutes: Annotated[
        int | None, typer.Option(min=0, max=1440, help="The maximum lateness of a call after an outage.")
    ] = None,
) -> None:
    """Create a reminder."""
    given = {
        "phone": phone,
        "starts_at": at,
        "timezone": timezone,
        "rrule": rrule,
        "merchant_id": merchant,
        "message": message,
        "assistant_id": assistant,
        "payload": _json(payload),
        "carrier": carrier,
        "pool": pool,
        "request_id": request_id,
        "max_attempts": max_attempts,
        "late_minutes": late_minutes,
    }
    body = {name: value for name, value in given.items() if value not in (None, "")}
    remote: Remote = ctx.obj
    remote.show(remote.ask(lambda api: api.post(f"{ROOT}/reminders", body)), _ROW)


@app.command()
def change(
    ctx: Context,
    reminder_id: ReminderId,
    message: Annotated[str, typer.Option(help="What the agent is to say.")] = "",
    assistant: Annotated[str, typer.Option(help="Which assistant is to say it.")] = "",
    payload: Annotated[str, typer.Option(help="What else the agent should know, as JSON.")] = "",
    priority: Annotated[
        int | None, typer.Option(min=1, max=99, help="A smaller one is called first.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, max=20, help="The maximum number of attempts of each occurrence.")
    ] = None,
    late_minutes: Annotated[
        int | None, typer.Option(min=0, max=1440, help="The maximum lateness of a call after an outage.")
    ] = None,
) -> None:
    """Change a reminder, except for its schedule: for that, cancel it and create another one."""
    wanted = {
        "message": message,
        "assistant_id": assistant,
        "payload": _json(payload),
        "priority": priority,
        "max_attempts": max_attempts,
        "late_minutes": late_minutes,
    }
    body = {name: value for name, value in wanted.items() if value not in (None, "")}
    remote: Remote = ctx.obj
    remote.show(
        remote.ask(lambda api: api.patch(f"{ROOT}/reminders/{quote(reminder_id, safe='')}", body)), _ROW
    )


@app.command("list")
def list_reminders(
    ctx: Context,
    merchant: Merchant = "",
    status: Annotated[str, typer.Option(help="ACTIVE, PAUSED or ENDED.")] = "",
    phone: Annotated[str, typer.Option(help="To this phone, with its country code.")] = "",
    limit: Limit = 50,
) -> None:
    """Reminders, newest first."""
    filters: dict[str, str | int] = {
        "merchant_id": merchant,
        "status": status,
        "phone": phone,
        "limit": limit,
    }
    query = {name: value for name, value in filters.items() if value != ""}
    remote: Remote = ctx.obj
    remote.show(remote.ask(lambda api: api.get(f"{ROOT}/reminders", query)), _ROW)


@app.command()
def show(ctx: Context, reminder_id: ReminderId, limit: Limit = 50) -> None:
    """A reminder, and its past occurrences."""
    remote: Remote = ctx.obj
    reminder = remote.ask(lambda api: api.get(_path(reminder_id)))
    past = remote.ask(lambda api: api.get(_path(reminder_id, "occurrences"), {"limit": limit}))
    if remote.as_json:
        remote.show(reminder | {"occurrences": past["items"]}, ())
        return
    remote.show(reminder, _ROW)
    remote.show(past, _OCCURRENCE)


@app.command()
def upcoming(
    ctx: Context, reminder_id: ReminderId, limit: Annotated[int, typer.Option(min=1, max=100)] = 10
) -> None:
    """The next occurrences."""
    remote: Remote = ctx.obj
    answer = remote.ask(lambda api: api.get(_path(reminder_id, "upcoming"), {"limit": limit}))
    remote.show(answer, ("wall_at", "at", "skipped"))


@app.command()
def skip(
    ctx: Context,
    reminder_id: ReminderId,
    at: Annotated[str, typer.Option(help="The occurrence, as wall time. Left out: the next one.")] = "",
) -> None:
    """Skip one occurrence."""
    _act(ctx, reminder_id, "skip", {"wall_at": at} if at else {})


@app.command("next")
def ring_next(ctx: Context, reminder_id: ReminderId) -> None:
    """Call the next occurrence now instead of at its time."""
    _act(ctx, reminder_id, "next", {})


@app.command()
def pause(ctx: Context, reminder_id: ReminderId) -> None:
    """Pause a reminder: no calls until it is resumed."""
    _act(ctx, reminder_id, "pause", {})


@app.command()
def resume(ctx: Context, reminder_id: ReminderId) -> None:
    """Resume a reminder, from its next occurrence on."""
    _act(ctx, reminder_id, "resume", {})


@app.command()
def cancel(
    ctx: Context,
    reminder_id: ReminderId,
    hang_up: Annotated[bool, typer.Option("--hang-up", help="Hang up a live call.")] = False,
) -> None:
    """End a reminder for good."""
    remote: Remote = ctx.obj
    query: dict[str, str | int] = {"hang_up": "true" if hang_up else "false"}
    remote.show(remote.ask(lambda api: api.delete(_path(reminder_id), query)), _ROW)


def _act(ctx: Context, reminder_id: str, what: str, body: dict[str, Any]) -> None:
    remote: Remote = ctx.obj
    remote.show(remote.ask(lambda api: api.post(_path(reminder_id, what), body)), _ROW)


def _path(reminder_id: str, *more: str) -> str:
    return "/".join((ROOT, "reminders", quote(reminder_id, safe=""), *more))


def _json(text: str) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not JSON.") from None
