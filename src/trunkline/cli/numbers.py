"""`trunkline numbers`: outbound numbers, and the calls on their channels.

trunkline numbers create +14155550100 --pool acme-main --carrier twilio --channels 20
trunkline numbers channels +14155550100
trunkline numbers change 01a1de62-2418-7116-8851-ffd2d6e6e47e --channels 10
"""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from trunkline.cli.control import ROOT, Context, ControlCommandError, Limit, Remote, connect
from trunkline.cli.resource import Resource
from trunkline.client.transport import Transport
from trunkline.schema.numbers import NewNumber, Number, NumberChange

app = typer.Typer(help="Outbound numbers and their channels.", no_args_is_help=True)
app.callback()(connect)

NUMBERS = Resource(
    "numbers",
    Number,
    {
        "max_channels": ("channels", "The maximum of concurrent calls."),
        "starts_per_s": ("pace", "The maximum of starts per second; `none`: only the account limits it."),
    },
    hidden=("reseller_id", "merchant_id", "version", "created_at", "updated_at"),
)
NUMBERS.add_show(app, "One number, with how many of its channels calls hold.")
NUMBERS.add_create(app, NewNumber, "Add a number.")
NUMBERS.add_change(
    app,
    NumberChange,
    "Change a number. Channels and pace take effect within seconds; fewer channels as calls end.",
)
_HOLDER = (
    "channel_no", "state", "direction", "merchant_id", "lead_id", "to_phone", "held_since", "carrier_call_id", "pod",
)  # fmt: skip


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
