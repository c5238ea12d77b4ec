"""`trunkline reminders`: make, find, skip, pause and cancel reminders, over the API of a running platform.

trunkline reminders create --phone +14155550123 --at 2030-05-01T09:00 --timezone Asia/Kolkata --rrule "FREQ=DAILY"
trunkline reminders upcoming 01a1de62-2409-736d-8c5a-52d9153eecca
trunkline reminders pause 01a1de62-2409-736d-8c5a-52d9153eecca
"""

from typing import Annotated

import typer

from trunkline.cli.control import Context, Limit, api_path, connect, given, payload_of

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
    body = given(
        phone=phone,
        starts_at=at,
        timezone=timezone,
        rrule=rrule,
        merchant_id=merchant,
        message=message,
        assistant_id=assistant,
        payload=payload_of(payload),
        carrier=carrier,
        pool=pool,
        request_id=request_id,
        max_attempts=max_attempts,
        late_minutes=late_minutes,
    )
    ctx.obj.post(_ROW, "reminders", body=body)


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
    body = given(
        message=message,
        assistant_id=assistant,
        payload=payload_of(payload),
        priority=priority,
        max_attempts=max_attempts,
        late_minutes=late_minutes,
    )
    ctx.obj.patch(_ROW, "reminders", reminder_id, body=body)


@app.command("list")
def list_reminders(
    ctx: Context,
    merchant: Merchant = "",
    status: Annotated[str, typer.Option(help="ACTIVE, PAUSED or ENDED.")] = "",
    phone: Annotated[str, typer.Option(help="To this phone, with its country code.")] = "",
    limit: Limit = 50,
) -> None:
    """Reminders, newest first."""
    query = given(merchant_id=merchant, status=status, phone=phone, limit=limit)
    ctx.obj.get(_ROW, "reminders", query=query)


@app.command()
def show(ctx: Context, reminder_id: ReminderId, limit: Limit = 50) -> None:
    """A reminder, and its past occurrences."""
    remote, path = ctx.obj, api_path("reminders", reminder_id)
    reminder = remote.ask(lambda api: api.get(path))
    past = remote.ask(lambda api: api.get(f"{path}/occurrences", {"limit": limit}))
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
    ctx.obj.get(("wall_at", "at", "skipped"), "reminders", reminder_id, "upcoming", query={"limit": limit})


@app.command()
def skip(
    ctx: Context,
    reminder_id: ReminderId,
    at: Annotated[str, typer.Option(help="The occurrence, as wall time. Left out: the next one.")] = "",
) -> None:
    """Skip one occurrence."""
    ctx.obj.post(_ROW, "reminders", reminder_id, "skip", body=given(wall_at=at))


@app.command("next")
def ring_next(ctx: Context, reminder_id: ReminderId) -> None:
    """Call the next occurrence now instead of at its time."""
    ctx.obj.post(_ROW, "reminders", reminder_id, "next")


@app.command()
def pause(ctx: Context, reminder_id: ReminderId) -> None:
    """Pause a reminder: no calls until it is resumed."""
    ctx.obj.post(_ROW, "reminders", reminder_id, "pause")


@app.command()
def resume(ctx: Context, reminder_id: ReminderId) -> None:
    """Resume a reminder, from its next occurrence on."""
    ctx.obj.post(_ROW, "reminders", reminder_id, "resume")


@app.command()
def cancel(
    ctx: Context,
    reminder_id: ReminderId,
    hang_up: Annotated[bool, typer.Option("--hang-up", help="Hang up a live call.")] = False,
) -> None:
    """End a reminder for good."""
    ctx.obj.delete(_ROW, "reminders", reminder_id, query={"hang_up": "true" if hang_up else "false"})
