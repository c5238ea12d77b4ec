"""`trunkline numbers` and `trunkline pools`: outbound numbers, the calls on their channels, and the pools that leads
are called from.

trunkline pools create acme-main --merchant acme-store --overflow shared --after 5
trunkline numbers create +14155550100 --pool acme-main --carrier twilio --channels 20
trunkline numbers channels +14155550100
trunkline numbers import twilio
"""

from typing import Annotated, Any

import typer

from trunkline.cli.console import out
from trunkline.cli.control import ControlCommandError, Limit, RemoteContext, Values, api_path, remote_group
from trunkline.cli.resource import Resource
from trunkline.client.errors import ApiError
from trunkline.client.transport import Transport
from trunkline.schema.numbers import NewNumber, NewPool, Number, NumberChange, Pool, PoolChange

pools = remote_group("Number pools.")
app = remote_group("Outbound numbers and their channels.")

# The name of the reseller, the merchant and the pool of a first call.
DEFAULT = "default"
_HOLDER = (
    "channel_no", "state", "direction", "merchant_id", "lead_id", "to_phone", "held_since", "carrier_call_id", "pod",
)  # fmt: skip
_IMPORTED = ("e164", "result", "pool", "carrier", "account", "max_channels")


def _with_whole_overflow(values: Values) -> Values:
    """Both fields change together: without a pool there is no time."""
    return {"overflow_after_s": None} | values if "overflow_pool" in values else values


POOLS = Resource(
    "pools",
    Pool,
    {
        "overflow_pool": ("overflow", "The pool to use when this one has no channel; `none`: no other."),
        "overflow_after_s": ("after", "After how many seconds."),
    },
)
POOLS.add_list(pools, "Pools, by id.")
POOLS.add_show(pools, "One pool.")
POOLS.add_create(pools, NewPool, "Create a pool, of a merchant, of a reseller, or of the platform.")
POOLS.add_change(pools, PoolChange, "Change a pool.", _with_whole_overflow)
POOLS.add_remove(pools, "Remove a pool. Refused while anything names it.")

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


@app.command("list")
def list_numbers(
    ctx: RemoteContext, pool: Annotated[str, typer.Option(help="Of this pool.")] = "", limit: Limit = 50
) -> None:
    """Numbers, oldest first, with the channels that calls hold."""
    NUMBERS.list(ctx, pool=pool, limit=limit)


@app.command("channels")
def show_channels(
    ctx: RemoteContext, which: Annotated[str, typer.Argument(help="The number itself, or its id.")]
) -> None:
    """The call that holds each channel of a number, and since when."""

    async def read(api: Transport) -> Any:
        number = await _known(api, which) if which.startswith("+") else {"id": which}
        if number is None:
            raise ControlCommandError(f"There is no number {which}.")
        return await api.get(api_path("numbers", number["id"], "channels"))

    answer = ctx.obj.ask(read)
    ctx.obj.show(answer, _HOLDER, answer["holders"])


@app.command("remove")
def remove_number(
    ctx: RemoteContext,
    number_id: str,
    drain: Annotated[
        bool, typer.Option("--drain", help="If the number has live calls, set it to draining.")
    ] = False,
) -> None:
    """Remove a number. Refused while it has a live call."""
    NUMBERS.remove(ctx, number_id, {"drain": "true"} if drain else {})


@app.command("import")
def import_numbers(
    ctx: RemoteContext,
    carrier: Annotated[str, typer.Argument(help="twilio, plivo, exotel or vapi.")],
    only: Annotated[
        list[str] | None, typer.Option("--number", help="Only this one; may be repeated.")
    ] = None,
    pool: Annotated[
        str, typer.Option(help="The pool of the numbers. Left out: `default`, created if needed.")
    ] = "",
    channels: Annotated[
        int, typer.Option(min=0, max=10_000, help="The maximum of concurrent calls of each number.")
    ] = 1,
    account: Annotated[str, typer.Option(help="The carrier's account.")] = DEFAULT,
) -> None:
    """List the numbers of an account at its carrier, and add them. Existing numbers are not changed."""
    remote, source = ctx.obj, {"carrier": carrier, "account": account}

    async def run(api: Transport) -> list[Values]:
        listed = (await api.post(api_path("accounts", "numbers"), source))["numbers"]
        if not pool:
            # A first call needs no tenants: create those of it that are missing, and do not change existing ones.
            named = {"id": DEFAULT, "name": "Default"}
            await _create(api, "resellers", named)
            await _create(api, "pools", named | {"reseller_id": DEFAULT})
            await _create(api, "merchants", named | {"reseller_id": DEFAULT, "default_pool": DEFAULT})
        body = {"pool": pool or DEFAULT, "max_channels": channels} | source
        return [await _import(api, body | {"e164": e164}) for e164 in listed if not only or e164 in only]

    rows = remote.ask(run)
    remote.show({"items": rows}, _IMPORTED)
    if not remote.as_json and not rows:
        out.print(f"{carrier} lists no such number.")
    if not remote.as_json and any((row["carrier"], row["account"]) != (carrier, account) for row in rows):
        out.print("Numbers that another account dials from stay with it: remove them there first.")


async def _create(api: Transport, what: str, body: Values) -> bool:
    """False: it exists already."""
    try:
        await api.post(api_path(what), body)
    except ApiError as error:
        if error.code != "already_exists":
            raise
        return False
    return True


async def _import(api: Transport, number: Values) -> Values:
    """The number as it is in the platform, perhaps in another pool or of another account."""
    if await _create(api, "numbers", number):
        return number | {"result": "imported"}
    known = await _known(api, number["e164"]) or {"e164": number["e164"], "carrier": "", "account": ""}
    return known | {"result": "known"}


async def _known(api: Transport, e164: str) -> Values | None:
    found: list[Values] = (await api.get(api_path("numbers"), {"e164": e164}))["items"]
    return found[0] if found else None
