"""`trunkline merchants`: the merchants, and their limits of concurrent calls.

trunkline merchants change acme-store --max-concurrent 50
"""

from typing import Annotated

import typer

from trunkline.cli.control import Context, Limit, connect
from trunkline.cli.resource import Resource, changed_options, number, without_empty

app = typer.Typer(help="The customers of resellers.", no_args_is_help=True)
app.callback()(connect)

MERCHANTS = Resource(
    "merchants",
    ("id", "name", "reseller_id", "default_region", "default_pool", "weight", "max_concurrent", "agents"),
)
MERCHANTS.add_show(app, "One merchant.")
MERCHANTS.add_remove(app, "Remove a merchant. Refused while it still has dependent objects.")

Reseller = Annotated[str, typer.Option(help="The reseller it belongs to.")]
Region = Annotated[str, typer.Option(help="Country of phones without one, for example US; or `none`.")]
Pool = Annotated[str, typer.Option(help="The number pool of leads that name none; or `none`.")]
Weight = Annotated[int | None, typer.Option(min=1, max=1000, help="Its weight relative to other merchants.")]
Agents = Annotated[str, typer.Option(help="Whose agents take its calls: `ours` or `elsewhere`.")]
Most = Annotated[str, typer.Option(help="The maximum of concurrent calls; `none`: no limit.")]


@app.command("list")
def list_merchants(ctx: Context, reseller: Reseller = "", limit: Limit = 50) -> None:
    """Merchants, by id."""
    MERCHANTS.list(ctx, reseller_id=reseller, limit=limit)


@app.command("create")
def create_merchant(
    ctx: Context,
    merchant_id: str,
    name: Annotated[str, typer.Option(help="For people. Left out: the id.")] = "",
    reseller: Reseller = "",
    region: Region = "",
    pool: Pool = "",
    weight: Weight = None,
    max_concurrent: Most = "",
    agents: Agents = "",
) -> None:
    """Create a merchant."""
    MERCHANTS.create(
        ctx,
        id=merchant_id,
        name=name or merchant_id,
        reseller_id=reseller,
        default_region=region,
        default_pool=pool,
        weight=weight,
        max_concurrent=number(max_concurrent, int),
        agents=agents,
    )


@app.command("change")
def change_merchant(
    ctx: Context,
    merchant_id: str,
    name: Annotated[str, typer.Option()] = "",
    region: Region = "",
    pool: Pool = "",
    weight: Weight = None,
    max_concurrent: Most = "",
    agents: Agents = "",
) -> None:
    """Change a merchant."""
    changes = changed_options(
        default_region=(region, region),
        default_pool=(pool, pool),
        max_concurrent=(max_concurrent, number(max_concurrent, int)),
    )
    MERCHANTS.change(ctx, merchant_id, without_empty(name=name, weight=weight, agents=agents) | changes)
