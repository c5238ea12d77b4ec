"""`trunkline numbers`, `trunkline pools` and `trunkline merchants`: what is called from, and for whom.

trunkline numbers create +14155550100 --pool acme-main --carrier twilio --channels 20
trunkline numbers change 01a1de62-2418-7116-8851-ffd2d6e6e47e --channels 10
trunkline pools create acme-main --merchant acme-store --overflow shared --after 5
trunkline merchants change acme-store --max-concurrent 50
"""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from trunkline.cli.control import ROOT, Context, Limit, Remote, connect

app = typer.Typer(help="Outbound numbers and their channels.", no_args_is_help=True)
pools = typer.Typer(help="Number pools.", no_args_is_help=True)
merchants = typer.Typer(help="The customers of resellers.", no_args_is_help=True)
for each in (app, pools, merchants):
    each.callback()(connect)

# How an option that can be emptied is emptied.
NONE = "none"

Channels = Annotated[int | None, typer.Option(min=0, max=10_000, help="How many calls it may carry at once.")]
Pace = Annotated[str, typer.Option(help="Calls it may start per second; `none`: as many as its account.")]
Status = Annotated[str, typer.Option(help="active, draining or disabled.")]
Overflow = Annotated[
    str, typer.Option(help="The pool to use when this one has no channel; `none`: no other.")
]
After = Annotated[float | None, typer.Option(min=0, help="After how many seconds.")]
Region = Annotated[str, typer.Option(help="Country of phones without one, for example US; or `none`.")]
Default = Annotated[str, typer.Option(help="The number pool of leads that name none; or `none`.")]
Most = Annotated[str, typer.Option(help="The most calls at once; `none`: no limit.")]
Reseller = Annotated[str, typer.Option(help="The reseller it belongs to.")]
Merchant = Annotated[str, typer.Option(help="The merchant it belongs to.")]

_NUMBER = (
    "id",
    "e164",
    "pool",
    "carrier",
    "account",
    "channels_held",
    "max_channels",
    "starts_per_s",
    "status",
)
_POOL = ("id", "name", "reseller_id", "merchant_id", "overflow_pool", "overflow_after_s")
_MERCHANT = ("id", "name", "reseller_id", "default_region", "default_pool", "weight", "max_concurrent")


@app.command("list")
def list_numbers(
    ctx: Context, pool: Annotated[str, typer.Option(help="Of this pool.")] = "", limit: Limit = 50
) -> None:
    """Numbers, oldest first, with the channels that calls hold."""
    _list(ctx, "numbers", _given(pool=pool, limit=limit), _NUMBER)


@app.command("show")
def show_number(ctx: Context, number_id: str) -> None:
    """One number, with the channels that calls hold."""
    _show(ctx, "numbers", number_id, _NUMBER)


@app.command("create")
def create_number(
    ctx: Context,
    e164: Annotated[str, typer.Argument(help="The number itself, with + and its country code.")],
    pool: Annotated[str, typer.Option(help="The pool it is in.")],
    carrier: Annotated[str, typer.Option(help="twilio, plivo, exotel or vapi.")],
    channels: Annotated[int, typer.Option(min=0, max=10_000, help="How many calls it may carry at once.")],
    account: Annotated[str, typer.Option(help="The carrier's account.")] = "",
    pace: Pace = "",
    status: Status = "",
) -> None:
    """Add a number."""
    body = _given(
        e164=e164,
        pool=pool,
        carrier=carrier,
        max_channels=channels,
        account=account,
        starts_per_s=_number(pace),
        status=status,
    )
    _create(ctx, "numbers", body, _NUMBER)


@app.command("change")
def change_number(
    ctx: Context,
    number_id: str,
    pool: Annotated[str, typer.Option(help="Only while no call is on it.")] = "",
    carrier: Annotated[str, typer.Option(help="Only while no call is on it.")] = "",
    account: Annotated[str, typer.Option(help="Only while no call is on it.")] = "",
    channels: Channels = None,
    pace: Pace = "",
    status: Status = "",
) -> None:
    """Change a number. Channels and pace take effect within seconds; fewer channels as calls end."""
    body = _given(pool=pool, carrier=carrier, account=account, max_channels=channels, status=status)
    _change(ctx, "numbers", number_id, body | _emptied(starts_per_s=(pace, _number(pace))), _NUMBER)


@app.command("remove")
def remove_number(
    ctx: Context,
    number_id: str,
    drain: Annotated[bool, typer.Option("--drain", help="If calls are on it, let it start no more.")] = False,
) -> None:
    """Remove a number. Refused while a call is on it."""
    _remove(ctx, "numbers", number_id, {"drain": "true"} if drain else {}, _NUMBER)


@pools.command("list")
def list_pools(ctx: Context, limit: Limit = 50) -> None:
    """Pools, by id."""
    _list(ctx, "pools", {"limit": limit}, _POOL)


@pools.command("show")
def show_pool(ctx: Context, pool_id: str) -> None:
    """One pool."""
    _show(ctx, "pools", pool_id, _POOL)


@pools.command("create")
def create_pool(
    ctx: Context,
    pool_id: str,
    name: Annotated[str, typer.Option(help="For people. Left out: the id.")] = "",
    reseller: Reseller = "",
    merchant: Merchant = "",
    overflow: Overflow = "",
    after: After = None,
) -> None:
    """Create a pool, of a merchant, of a reseller, or of the platform."""
    body = _given(
        id=pool_id,
        name=name or pool_id,
        reseller_id=reseller,
        merchant_id=merchant,
        overflow_pool=overflow,
        overflow_after_s=after,
    )
    _create(ctx, "pools", body, _POOL)


@pools.command("change")
def change_pool(
    ctx: Context,
    pool_id: str,
    name: Annotated[str, typer.Option()] = "",
    overflow: Overflow = "",
    after: After = None,
) -> None:
    """Change a pool."""
    changes = _emptied(overflow_pool=(overflow, overflow), overflow_after_s=(overflow, after))
    _change(ctx, "pools", pool_id, _given(name=name) | changes, _POOL)


@pools.command("remove")
def remove_pool(ctx: Context, pool_id: str) -> None:
    """Remove a pool. Refused while anything names it."""
    _remove(ctx, "pools", pool_id, {}, _POOL)


@merchants.command("list")
def list_merchants(ctx: Context, reseller: Reseller = "", limit: Limit = 50) -> None:
    """Merchants, by id."""
    _list(ctx, "merchants", _given(reseller_id=reseller, limit=limit), _MERCHANT)


@merchants.command("show")
def show_merchant(ctx: Context, merchant_id: str) -> None:
    """One merchant."""
    _show(ctx, "merchants", merchant_id, _MERCHANT)


@merchants.command("create")
def create_merchant(
    ctx: Context,
    merchant_id: str,
    name: Annotated[str, typer.Option(help="For people. Left out: the id.")] = "",
    reseller: Reseller = "",
    region: Region = "",
    pool: Default = "",
    weight: Annotated[int | None, typer.Option(min=1, max=1000, help="Its share beside others.")] = None,
    max_concurrent: Most = "",
) -> None:
    """Create a merchant."""
    body = _given(
        id=merchant_id,
        name=name or merchant_id,
        reseller_id=reseller,
        default_region=region,
        default_pool=pool,
        weight=weight,
        max_concurrent=_number(max_concurrent, int),
    )
    _create(ctx, "merchants", body, _MERCHANT)


@merchants.command("change")
def change_merchant(
    ctx: Context,
    merchant_id: str,
    name: Annotated[str, typer.Option()] = "",
    region: Region = "",
    pool: Default = "",
    weight: Annotated[int | None, typer.Option(min=1, max=1000, help="Its share beside others.")] = None,
    max_concurrent: Most = "",
) -> None:
    """Change a merchant."""
    changes = _emptied(
        default_region=(region, region),
        default_pool=(pool, pool),
        max_concurrent=(max_concurrent, _number(max_concurrent, int)),
    )
    _change(ctx, "merchants", merchant_id, _given(name=name, weight=weight) | changes, _MERCHANT)


@merchants.command("remove")
def remove_merchant(ctx: Context, merchant_id: str) -> None:
    """Remove a merchant. Refused while anything hangs below it."""
    _remove(ctx, "merchants", merchant_id, {}, _MERCHANT)


def _list(ctx: Context, what: str, query: dict[str, Any], columns: tuple[str, ...]) -> None:
    remote = _remote(ctx)
    remote.show(remote.ask(lambda api: api.get(f"{ROOT}/{what}", query)), columns)


def _show(ctx: Context, what: str, key: str, columns: tuple[str, ...]) -> None:
    remote = _remote(ctx)
    remote.show(remote.ask(lambda api: api.get(_path(what, key))), columns)


def _create(ctx: Context, what: str, body: dict[str, Any], columns: tuple[str, ...]) -> None:
    remote = _remote(ctx)
    remote.show(remote.ask(lambda api: api.post(f"{ROOT}/{what}", body)), columns)


def _change(ctx: Context, what: str, key: str, body: dict[str, Any], columns: tuple[str, ...]) -> None:
    remote = _remote(ctx)
    remote.show(remote.ask(lambda api: api.patch(_path(what, key), body)), columns)


def _remove(ctx: Context, what: str, key: str, query: dict[str, Any], columns: tuple[str, ...]) -> None:
    remote = _remote(ctx)
    left = remote.ask(lambda api: api.delete(_path(what, key), query))
    remote.show(left or {"items": []}, columns)


def _path(what: str, key: str) -> str:
    return f"{ROOT}/{what}/{quote(key, safe='')}"


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, "")}


def _emptied(**options: tuple[str, Any]) -> dict[str, Any]:
    """Of options as they were written and what they mean: those that were given, `none` as null."""
    return {name: None if text == NONE else value for name, (text, value) in options.items() if text}


def _number(text: str, kind: type[int] | type[float] = float) -> float | None:
    if text in ("", NONE):
        return None
    try:
        return kind(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number.") from None


def _remote(ctx: Context) -> Remote:
    remote: Remote = ctx.obj
    return remote
