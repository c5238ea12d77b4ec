"""`trunkline reminders`: make, find, skip, pause and cancel reminders, over the API of a running platform.

trunkline reminders create --phone +14155550123 --at 2030-05-01T09:00 --timezone Asia/Kolkata --rrule "FREQ=DAILY"
trunkline reminders upcoming 01a1de62-2409-736d-8c5a-52d9153eecca
trunkline reminders pause 01a1de62-2409-736d-8c5a-52d9153eecca
"""

from typing import Annotated

import typer

from trunkline.cli.control import Limit, RemoteContext, api_path, given, options, payload_of, remote_group

app = remote_group("Create, find, skip, pause and cancel reminders.")

ReminderId = Annotated[str, typer.Argument(help="The id of a reminder.")]
Merchant = Annotated[str, typer.Option("--merchant", help="Of this merchant.")]
Message = Annotated[str, typer.Option(help="What the agent is to say.")]
Assistant = Annotated[str, typer.Option("--assistant", help="Which assistant is to say it.")]
Payload = Annotated[str, typer.Option(help="What else the agent should know, as JSON.")]
Attempts = Annotated[
    int | None, typer.Option(min=1, max=20, help="The maximum number of attempts of each occurrence.")
]
Lateness = Annotated[
    int | None, typer.Option(min=0, max=1440, help="The maximum lateness of a call after an outage.")
]

_ROW = ("id", "merchant_id", "phone", "status", "timezone", "rrule", "next_wall", "next_at", "message")
_OCCURRENCE = (
    "id", "wall_at", "scheduled_at", "state", "skip_reason", "attempt_count", "next_retry_at", "last_error",
    "external_call_id",
)  # fmt: skip


@app.command()
def create(
    ctx: RemoteContext,
    phone: Annotated[str, typer.Option(help="Whom to call, best as E.164.")],
    starts_at: Annotated[str, typer.Option("--at", help="When, as wall time: 2030-05-01T09:00.")],
    timezone: Annotated[str, typer.Option(help="The time zone, for example Asia/Kolkata.")],
    rrule: Annotated[str, typer.Option(help="How it recurs: FREQ=WEEKLY;BYDAY=MO,TH. Left out: once.")] = "",
    merchant_id: Merchant = "",
    message: Message = "",
    assistant_id: Assistant = "",
    payload: Payload = "",
    carrier: Annotated[
        str, typer.Option(help="The carrier of the numbers to call from. Left out: vapi.")
    ] = "",
    pool: Annotated[str, typer.Option(help="The number pool to call from.")] = "",
    request_id: Annotated[
        str, typer.Option(help="Your own id of the request, which makes it safe to repeat.")
    ] = "",
    max_attempts: Attempts = None,
    late_minutes: Lateness = None,
) -> None:
    """Create a reminder."""
    ctx.obj.post(_ROW, "reminders", body=options(ctx) | given(payload=payload_of(payload)))


@app.command()
def change(
    ctx: RemoteContext,
    reminder_id: ReminderId,
    message: Message = "",
    assistant_id: Assistant = "",
    payload: Payload = "",
    priority: Annotated[
        int | None, typer.Option(min=1, max=99, help="A smaller one is called first.")
    ] = None,
    max_attempts: Attempts = None,
    late_minutes: Lateness = None,
) -> None:
    """Change a reminder, except for its schedule: for that, cancel it and create another one."""
    body = options(ctx) | given(payload=payload_of(payload))
    ctx.obj.patch(_ROW, "reminders", body.pop("reminder_id"), body=body)


@app.command("list")
def list_reminders(
    ctx: RemoteContext,
    merchant_id: Merchant = "",
    status: Annotated[str, typer.Option(help="ACTIVE, PAUSED or ENDED.")] = "",
    phone: Annotated[str, typer.Option(help="To this phone, with its country code.")] = "",
    limit: Limit = 50,
) -> None:
    """Reminders, newest first."""
    ctx.obj.get(_ROW, "reminders", query=options(ctx))


@app.command()
def show(ctx: RemoteContext, reminder_id: ReminderId, limit: Limit = 50) -> None:
    """A reminder, and its past occurrences."""
    remote, path = ctx.obj, api_path("reminders", reminder_id)
    reminder = remote.ask(lambda api: api.get(path))
    past = remote.ask(lambda api: api.get(f"{path}/occurrences", {"limit": limit}))
    remote.show(reminder | {"occurrences": past["items"]}, _ROW)
    if not remote.as_json:
        remote.show(past, _OCCURRENCE)


@app.command()
def upcoming(
    ctx: RemoteContext, reminder_id: ReminderId, limit: Annotated[int, typer.Option(min=1, max=100)] = 10
) -> None:
    """The next occurrences."""
    ctx.obj.get(("wall_at", "at", "skipped"), "reminders", reminder_id, "upcoming", query={"limit": limit})


@app.command()
def skip(
    ctx: RemoteContext,
    reminder_id: ReminderId,
    at: Annotated[str, typer.Option(help="The occurrence, as wall time. Left out: the next one.")] = "",
) -> None:
    """Skip one occurrence."""
    ctx.obj.post(_ROW, "reminders", reminder_id, "skip", body=given(wall_at=at))


@app.command("next")
def ring_next(ctx: RemoteContext, reminder_id: ReminderId) -> None:
    """Call the next occurrence now instead of at its time."""
    ctx.obj.post(_ROW, "reminders", reminder_id, "next")


@app.command()
def pause(ctx: RemoteContext, reminder_id: ReminderId) -> None:
    """Pause a reminder: no calls until it is resumed."""
    ctx.obj.post(_ROW, "reminders", reminder_id, "pause")


@app.command()
def resume(ctx: RemoteContext, reminder_id: ReminderId) -> None:
    """Resume a reminder, from its next occurrence on."""
    ctx.obj.post(_ROW, "reminders", reminder_id, "resume")


@app.command()
def cancel(
    ctx: RemoteContext,
    reminder_id: ReminderId,
    hang_up: Annotated[bool, typer.Option("--hang-up", help="Hang up a live call.")] = False,
) -> None:
    """End a reminder for good."""
    ctx.obj.delete(_ROW, "reminders", reminder_id, query={"hang_up": "true" if hang_up else "false"})
