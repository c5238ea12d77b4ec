"""`trunkline pools`: the numbers that a lead may be called from, and their overflow pools.

trunkline pools create acme-main --merchant acme-store --overflow shared --after 5
trunkline pools change acme-main --region-affinity
"""

from typing import Annotated

import typer

from trunkline.cli.control import Context, Limit, connect
from trunkline.cli.resource import Resource, changed_options, without_empty

app = typer.Typer(help="Number pools.", no_args_is_help=True)
app.callback()(connect)

POOLS = Resource(
    "pools",
    (
        "id",
        "name",
        "reseller_id",
        "merchant_id",
        "overflow_pool",
        "overflow_after_s",
        "region_affinity",
        "agents",
    ),
)
POOLS.add_show(app, "One pool.")
POOLS.add_remove(app, "Remove a pool. Refused while anything names it.")

Overflow = Annotated[
    str, typer.Option(help="The pool to use when this one has no channel; `none`: no other.")
]
After = Annotated[float | None, typer.Option(min=0, help="After how many seconds.")]
Affinity = Annotated[
    bool | None,
    typer.Option("--region-affinity/--no-region-affinity", help="Prefer numbers of the callee's region."),
]
Agents = Annotated[str, typer.Option(help="Whose agents take the calls of its leads: `ours` or `elsewhere`.")]


@app.command("list")
def list_pools(ctx: Context, limit: Limit = 50) -> None:
    """Pools, by id."""
    POOLS.list(ctx, limit=limit)


@app.command("create")
def create_pool(
    ctx: Context,
    pool_id: str,
    name: Annotated[str, typer.Option(help="For people. Left out: the id.")] = "",
    reseller: Annotated[str, typer.Option(help="The reseller it belongs to.")] = "",
    merchant: Annotated[str, typer.Option(help="The merchant it belongs to.")] = "",
    overflow: Overflow = "",
    after: After = None,
    region_affinity: Affinity = None,
    agents: Agents = "",
) -> None:
    """Create a pool, of a merchant, of a reseller, or of the platform."""
    POOLS.create(
        ctx,
        id=pool_id,
        name=name or pool_id,
        reseller_id=reseller,
        merchant_id=merchant,
        overflow_pool=overflow,
        overflow_after_s=after,
        region_affinity=region_affinity,
        agents=agents,
    )


@app.command("change")
def change_pool(
    ctx: Context,
    pool_id: str,
    name: Annotated[str, typer.Option()] = "",
    overflow: Overflow = "",
    after: After = None,
    region_affinity: Affinity = None,
    agents: Agents = "",
) -> None:
    """Change a pool."""
    changes = changed_options(overflow_pool=(overflow, overflow), overflow_after_s=(overflow, after))
    POOLS.change(
        ctx, pool_id, without_empty(name=name, region_affinity=region_affinity, agents=agents) | changes
    )
