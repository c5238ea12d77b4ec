"""`trunkline resellers`: the tenants of the platform, reseller by reseller.

trunkline resellers create acme --name "Acme Inc."
"""

import typer

from trunkline.cli.control import connect
from trunkline.cli.resource import Resource
from trunkline.schema.tenants import NewReseller, Reseller, ResellerChange

app = typer.Typer(help="The tenants of the platform.", no_args_is_help=True)
app.callback()(connect)

RESELLERS = Resource("resellers", Reseller, hidden=())
RESELLERS.add_list(app, "Resellers, by id.")
RESELLERS.add_show(app, "One reseller.")
RESELLERS.add_create(app, NewReseller, "Create a reseller.")
RESELLERS.add_change(app, ResellerChange, "Change a reseller's name.")
RESELLERS.add_remove(app, "Remove a reseller. Refused while it still has dependent objects.")
