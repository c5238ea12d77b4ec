"""`trunkline resellers`: the tenants of the platform, reseller by reseller.

trunkline resellers create acme --name "Acme Inc."
"""

from typing import Annotated

import typer

from trunkline.cli.control import Context, Limit, connect
from trunkline.cli.resource import Resource, without_empty

app = typer.Typer(help="The tenants of the platform.", no_args_is_help=True)
app.callback()(connect)

RESELLERS = Resource("resellers", ("id", "name", "created_at"))
RESELLERS.add_show(app, "One reseller.")
RESELLERS.add_remove(app, "Remove a reseller. Refused while it still has dependent objects.")

Name = Annotated[str, typer.Option(help="For people. Left out: the id.")]


@app.command("list")
def list_resellers(ctx: Context, limit: Limit = 50) -> None:
    """Resellers, by id."""
    RESELLERS.list(ctx, limit=limit)


@app.command("create")
def create_reseller(ctx: Context, reseller_id: str, name: Name = "") -> None:
    """Create a reseller."""
    RESELLERS.create(ctx, id=reseller_id, name=name or reseller_id)


@app.command("change")
def change_reseller(
    ctx: Context, reseller_id: str, name: Annotated[str, typer.Option(help="For people.")]
) -> None:
    """Change a reseller's name."""
    RESELLERS.change(ctx, reseller_id, without_empty(name=name))
