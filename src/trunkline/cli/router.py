"""`trunkline router`: pods, calls, drains and merchants' tiers, over the API of a running platform.

trunkline router status
trunkline router drain voice-agent-2
trunkline router tier acme-corp gold
trunkline router tier 9shines dedicated --pool 9shines
"""

from typing import Annotated, Any

import typer

from trunkline.cli.console import out
from trunkline.cli.control import Context, Values, api_path, connect

app = typer.Typer(help="Pods, the calls that have them, and merchants' tiers.", no_args_is_help=True)
app.callback()(connect)

_POD = (
    "pod_name", "tier", "status", "is_draining", "calls", "hanging", "handing_over", "ip", "port", "version",
)  # fmt: skip
CALL = ("call_sid", "pod_name", "source_pool", "merchant_id", "allocated_at")
_TIER = ("merchant_id", "tier", "pool")
_RESET = ("pod_name", "status", "ended_calls", "still_named", "hanging", "message")
_DRAINED = ("pod_name", "is_draining", "has_active_call", "message")
_POOL = ("tier", "available", "assigned", "free")

Pod = Annotated[str, typer.Argument(help="The pod's name.")]
Most = Annotated[int, typer.Option(min=1, max=1000, help="The maximum number of entries.")]


@app.command()
def status(ctx: Context) -> None:
    """The pools in numbers."""
    remote = ctx.obj
    answer = remote.ask(lambda api: api.get(api_path("status")))
    remote.show(answer if remote.as_json else {"items": _pools(answer)}, _POOL)
    if not remote.as_json:
        out.print(f"{answer['active_calls']} calls have a pod, {answer['waiting']} wait for one.")


@app.command()
def pods(ctx: Context, limit: Most = 200) -> None:
    """The pods, by name."""
    ctx.obj.get(_POD, "pods", query={"limit": limit})


@app.command()
def calls(ctx: Context, limit: Most = 200) -> None:
    """The calls that have a pod, oldest first."""
    ctx.obj.get(CALL, "allocations", query={"limit": limit})


@app.command()
def drain(ctx: Context, pod: Pod) -> None:
    """Drain a pod: it gets no new calls until DRAINING_TTL has passed. Its live calls go on."""
    ctx.obj.post(_DRAINED, "drain", body={"pod_name": pod})


@app.command()
def undrain(ctx: Context, pod: Pod) -> None:
    """End the drain of a pod."""
    ctx.obj.delete(_DRAINED, "drain", pod)


@app.command()
def reset(ctx: Context, pod: Pod) -> None:
    """Free a pod whose agent hangs: ends the allocations of its calls. Prints the calls that it still names, and
    those that hang."""
    ctx.obj.post(_RESET, "pods", pod, "reset")


@app.command()
def tiers(ctx: Context) -> None:
    """Merchants that have a tier of their own."""
    ctx.obj.get(_TIER, "router", "merchants")


@app.command()
def tier(
    ctx: Context,
    merchant: Annotated[str, typer.Argument(help="The merchant.")],
    name: Annotated[str, typer.Argument(help="gold, standard, dedicated, or what TIER_CONFIG names.")] = "",
    pool: Annotated[str, typer.Option(help="With `dedicated`: the pool. Left out: the merchant's own.")] = "",
    remove: Annotated[bool, typer.Option("--remove", help="Back to standard.")] = False,
) -> None:
    """Set the tier of a merchant. It takes effect with the next call."""
    if remove:
        ctx.obj.ask(lambda api: api.delete(api_path("router", "merchants", merchant)))
        out.print(f"{merchant} has the standard tier.")
        return
    if not name:
        raise typer.BadParameter("name a tier, or --remove")
    ctx.obj.put(_TIER, "router", "merchants", merchant, body={"tier": name, "pool": pool})


@app.command()
def urls(
    ctx: Context,
    merchant: Annotated[str, typer.Option(help="The merchant of the calls.")] = "",
    account: Annotated[str, typer.Option(help="The carrier's account.")] = "default",
) -> None:
    """The URLs to enter at carriers that request documents from the router itself. Exotel's URL is secret."""
    remote = ctx.obj
    query: Values = {"merchant_id": merchant, "account": account}
    answer = remote.ask(lambda api: api.get(api_path("router", "urls"), query))
    rows = [{"carrier": name, "url": url} for name, url in answer["urls"].items()]
    remote.show(answer if remote.as_json else {"items": rows}, ("carrier", "url"))


def _pools(answer: dict[str, Any]) -> list[dict[str, Any]]:
    pools = answer["pools"]
    names = sorted({key.rpartition(":")[0] for key in pools})
    return [
        {
            "tier": name,
            "available": pools[f"{name}:available"],
            "assigned": pools[f"{name}:assigned"],
            "free": answer["free"].get(name, 0),
            "kept": answer["kept_by_tier"].get(name, 0),
        }
        for name in names
    ]
