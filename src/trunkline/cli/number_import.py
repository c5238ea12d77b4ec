"""`trunkline numbers import`: imports the numbers of a carrier account. A first call needs no tenants: the numbers come
into a pool of a default merchant and reseller."""

from typing import Annotated, Any

import typer

from trunkline.cli.console import out
from trunkline.cli.control import Context, api_path
from trunkline.client.errors import ApiError
from trunkline.client.transport import Transport

# The name of the reseller, the merchant and the pool of a first call.
DEFAULT = "default"
_ROW = ("e164", "result", "pool", "carrier", "account", "max_channels")


def import_numbers(
    ctx: Context,
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
    remote = ctx.obj
    body = {"pool": pool or DEFAULT, "carrier": carrier, "account": account, "max_channels": channels}
    rows = remote.ask(lambda api: _import(api, body, set(only or ()), make_pool=not pool))
    remote.show({"items": rows}, _ROW)
    if not remote.as_json and not rows:
        out.print(f"{carrier} lists no such number.")
    if not remote.as_json and any((row["carrier"], row["account"]) != (carrier, account) for row in rows):
        out.print("Numbers that another account dials from stay with it: remove them there first.")


async def _import(
    api: Transport, body: dict[str, Any], only: set[str], *, make_pool: bool
) -> list[dict[str, Any]]:
    which = {"carrier": body["carrier"], "account": body["account"]}
    listed = (await api.post(api_path("accounts", "numbers"), which))["numbers"]
    if make_pool:
        await _ensure_first_tenant(api)
    return [await _take(api, body | {"e164": e164}) for e164 in listed if not only or e164 in only]


async def _ensure_first_tenant(api: Transport) -> None:
    """Create those that are missing, and do not change existing ones."""
    reseller = {"id": DEFAULT, "name": "Default"}
    pool = reseller | {"reseller_id": DEFAULT}
    for what, body in (
        ("resellers", reseller),
        ("pools", pool),
        ("merchants", pool | {"default_pool": DEFAULT}),
    ):
        await _create(api, what, body)


async def _create(api: Transport, what: str, body: dict[str, Any]) -> bool:
    """False: it exists already."""
    try:
        await api.post(api_path(what), body)
    except ApiError as error:
        if error.code != "already_exists":
            raise
        return False
    return True


async def _take(api: Transport, number: dict[str, Any]) -> dict[str, Any]:
    if await _create(api, "numbers", number):
        return number | {"result": "imported"}
    return await _known(api, number["e164"]) | {"result": "known"}


async def _known(api: Transport, e164: str) -> dict[str, Any]:
    """The existing number, perhaps in another pool or of another account."""
    page = await api.get(api_path("numbers"), {"e164": e164})
    return dict(page["items"][0]) if page["items"] else {"e164": e164, "carrier": "", "account": ""}
