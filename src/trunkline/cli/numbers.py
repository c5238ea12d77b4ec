"""`trunkline numbers`: outbound numbers, and the calls on their channels.

trunkline numbers create +14155550100 --pool acme-main --carrier twilio --channels 20
trunkline numbers channels +14155550100
trunkline numbers change 01a1de62-2418-7116-8851-ffd2d6e6e47e --channels 10
"""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from trunkline.cli.control import ROOT, Context, ControlCommandError, Limit, Remote, connect
from trunkline.cli.resource import Resource, changed_options, number, without_empty
from trunkline.client.transport import Transport

app = typer.Typer(help="Outbound numbers and their channels.", no_args_is_help=True)
app.callback()(connect)

NUMBERS = Resource(
    "numbers",
    ("id", "e164", "pool", "carrier", "account", "channels_held", "max_channels", "starts_per_s", "status"),
)
NUMBERS.add_show(app, "One number, with how many of its channels calls hold.")
_HOLDER = (
    "channel_no", "state", "direction", "merchant_id", "lead_id", "to_phone", "held_since", "carrier_call_id", "pod",
)  # fmt: skip

Channels = Annotated[int | None, typer.Option(min=0, max=10_000, help="The maximum of concurrent calls.")]
Pace = Annotated[
    str, typer.Option(help="The maximum of starts per second; `none`: only the account limits it.")
]
Status = Annotated[str, typer.Option(help="active, draining or disabled.")]


@app.command("list")
def list_numbers(
    ctx: Context, pool: Annotated[str, typer.Option(help="Of this pool.")] = "", limit: Limit = 50
) -> None:
    """Numbers, oldest first, with the channels that calls hold."""
    NUMBERS.list(ctx, pool=pool, limit=limit)


@app.command("channels")
def show_channels(
    ctx: Context, which: Annotated[str, typer.Argument(help="The number itself, or its id.")]
) -> None:
    """The call that holds each channel of a number, and since when."""
    remote: Remote = ctx.obj
    answer = remote.ask(lambda api: _channels(api, which))
    remote.show(answer if remote.as_json else {"items": answer["holders"]}, _HOLDER)


async def _channels(api: Transport, which: str) -> Any:
    if which.startswith("+"):
        numbers = (await api.get(f"{ROOT}/numbers", {"e164": which}))["items"]
        if not numbers:
            raise ControlCommandError(f"There is no number {which}.")
        which = numbers[0]["id"]
    return await api.get(f"{ROOT}/numbers/{quote(which, safe='')}/channels")


@app.command("create")
def create_number(
    ctx: Context,
    e164: Annotated[str, typer.Argument(help="The number itself, with + and its country code.")],
    pool: Annotated[str, typer.Option(help="The pool it is in.")],
    carrier: Annotated[str, typer.Option(help="twilio, plivo, exotel or vapi.")],
    channels: Annotated[int, typer.Option(min=0, max=10_000, help="The maximum of concurrent calls.")],
    account: Annotated[str, typer.Option(help="The carrier's account.")] = "",
    pace: Pace = "",
    status: Status = "",
) -> None:
    """Add a number."""
    NUMBERS.create(
        ctx,
        e164=e164,
        pool=pool,
        carrier=carrier,
        max_channels=channels,
        account=account,
        starts_per_s=number(pace),
        status=status,
    )


@app.command("change")
def change_number(
    ctx: Context,
    number_id: str,
    pool: Annotated[str, typer.Option(help="Only while the number has no live call.")] = "",
    carrier: Annotated[str, typer.Option(help="Only while the number has no live call.")] = "",
    account: Annotated[str, typer.Option(help="Only while the number has no live call.")] = "",
    channels: Channels = None,
    pace: Pace = "",
    status: Status = "",
) -> None:
    """Change a number. Channels and pace take effect within seconds; fewer channels as calls end."""
    body = without_empty(pool=pool, carrier=carrier, account=account, max_channels=channels, status=status)
    NUMBERS.change(ctx, number_id, body | changed_options(starts_per_s=(pace, number(pace))))


@app.command("remove")
def remove_number(
    ctx: Context,
    number_id: str,
    drain: Annotated[
        bool, typer.Option("--drain", help="If the number has live calls, set it to draining.")
    ] = False,
) -> None:
    """Remove a number. Refused while it has a live call."""
    NUMBERS.remove(ctx, number_id, {"drain": "true"} if drain else {})
