"""`trunkline router`: pods, calls, drains and merchants' tiers, over the API of a running platform. `trunkline pods`
has those about pods once more.

trunkline router status
trunkline pods find CA5b0be82cb0668b70eb404578f6ea2889
trunkline router drain voice-agent-2
trunkline router tier acme-corp gold
trunkline router tier 9shines dedicated --pool 9shines
"""

from typing import Annotated, Any

import typer

from trunkline.cli.console import out
from trunkline.cli.control import ControlCommandError, RemoteContext, Values, api_path, remote_group
from trunkline.client.transport import Transport

app = remote_group("Pods, the calls that have them, and merchants' tiers.")
of_pods = remote_group("Pods and the calls that have them.")

PAGE = 200

_POD = (
    "pod_name", "tier", "status", "is_draining", "calls", "hanging", "handing_over", "ip", "port", "version",
)  # fmt: skip
_CALL = ("call_sid", "pod_name", "source_pool", "merchant_id", "allocated_at")
_TIER = ("merchant_id", "tier", "pool")
_RESET = ("pod_name", "status", "ended_calls", "still_named", "hanging", "message")
_DRAINED = ("pod_name", "is_draining", "has_active_call", "message")
_POOL = ("tier", "available", "assigned", "free")

Pod = Annotated[str, typer.Argument(help="The pod's name.")]
Most = Annotated[int, typer.Option(min=1, max=1000, help="The maximum number of entries.")]


@app.command()
@of_pods.command()
def status(ctx: RemoteContext) -> None:
    """The pools in numbers."""
    answer = ctx.obj.ask(lambda api: api.get(api_path("status")))
    ctx.obj.show(answer, _POOL, _pools(answer))
    if not ctx.obj.as_json:
        out.print(f"{answer['active_calls']} calls have a pod, {answer['waiting']} wait for one.")


@app.command()
@of_pods.command("list")
def pods(ctx: RemoteContext, limit: Most = 200) -> None:
    """The pods, by name."""
    ctx.obj.get(_POD, "pods", query={"limit": limit})


@app.command()
@of_pods.command()
def calls(ctx: RemoteContext, limit: Most = 200) -> None:
    """The calls that have a pod, oldest first."""
    ctx.obj.get(_CALL, "allocations", query={"limit": limit})


@app.command()
@of_pods.command()
def drain(ctx: RemoteContext, pod: Pod) -> None:
    """Drain a pod: it gets no new calls until DRAINING_TTL has passed. Its live calls go on."""
    ctx.obj.post(_DRAINED, "drain", body={"pod_name": pod})


@app.command()
@of_pods.command()
def undrain(ctx: RemoteContext, pod: Pod) -> None:
    """End the drain of a pod."""
    ctx.obj.delete(_DRAINED, "drain", pod)


@app.command()
def reset(ctx: RemoteContext, pod: Pod) -> None:
    """Free a pod whose agent hangs: ends the allocations of its calls. Prints the calls that it still names, and
    those that hang."""
    ctx.obj.post(_RESET, "pods", pod, "reset")


@app.command()
def tiers(ctx: RemoteContext) -> None:
    """Merchants that have a tier of their own."""
    ctx.obj.get(_TIER, "router", "merchants")


@app.command()
def tier(
    ctx: RemoteContext,
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
    ctx: RemoteContext,
    merchant: Annotated[str, typer.Option(help="The merchant of the calls.")] = "",
    account: Annotated[str, typer.Option(help="The carrier's account.")] = "default",
) -> None:
    """The URLs to enter at carriers that request documents from the router itself. Exotel's URL is secret."""
    query: Values = {"merchant_id": merchant, "account": account}
    answer = ctx.obj.ask(lambda api: api.get(api_path("router", "urls"), query))
    rows = [{"carrier": name, "url": url} for name, url in answer["urls"].items()]
    ctx.obj.show(answer, ("carrier", "url"), rows)


@of_pods.command()
def find(
    ctx: RemoteContext, call: Annotated[str, typer.Argument(help="The carrier's id of a call.")]
) -> None:
    """The pod of a call. Exits with status 1 if it has none."""

    async def search(api: Transport) -> Values | None:
        cursor: str | None = "0"
        while cursor is not None:
            page = await api.get(api_path("allocations"), {"limit": PAGE, "cursor": cursor})
            for each in page["items"]:
                if each["call_sid"] == call:
                    return dict(each)
            cursor = page["next_cursor"]
        return None

    allocation = ctx.obj.ask(search)
    if allocation is None:
        raise ControlCommandError(f"No pod has the call {call} now.")
    ctx.obj.show(allocation, _CALL)


def _pools(answer: dict[str, Any]) -> list[dict[str, Any]]:
    pools = answer["pools"]
    return [
        {
            "tier": name,
            "available": pools[f"{name}:available"],
            "assigned": pools[f"{name}:assigned"],
            "free": answer["free"].get(name, 0),
            "kept": answer["kept_by_tier"].get(name, 0),
        }
        for name in sorted({key.rpartition(":")[0] for key in pools})
    ]
