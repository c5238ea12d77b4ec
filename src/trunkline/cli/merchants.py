"""`trunkline merchants`: the merchants, and their limits of concurrent calls.

trunkline merchants change acme-store --max-concurrent 50
"""

from typing import Annotated

import typer

from trunkline.cli.control import Context, Limit, connect
from trunkline.cli.resource import Resource
from trunkline.schema.tenants import Merchant, MerchantChange, NewMerchant

app = typer.Typer(help="The customers of resellers.", no_args_is_help=True)
app.callback()(connect)

MERCHANTS = Resource(
    "merchants",
    Merchant,
    {
        "default_region": ("region", "Country of phones without one, for example US; or `none`."),
        "default_pool": ("pool", "The number pool of leads that name none; or `none`."),
    },
)
MERCHANTS.add_show(app, "One merchant.")
MERCHANTS.add_create(app, NewMerchant, "Create a merchant.")
MERCHANTS.add_change(app, MerchantChange, "Change a merchant.")
MERCHANTS.add_remove(app, "Remove a merchant. Refused while it still has dependent objects.")


@app.command("list")
def list_merchants(
    ctx: Context,
    reseller: Annotated[str, typer.Option(help="The reseller it belongs to.")] = "",
    limit: Limit = 50,
) -> None:
    """Merchants, by id."""
    MERCHANTS.list(ctx, reseller_id=reseller, limit=limit)
