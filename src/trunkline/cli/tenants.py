"""`trunkline resellers`, `merchants` and `keys`: the tenants of the platform, and their API keys.

trunkline resellers create acme --name "Acme Inc."
trunkline merchants change acme-store --max-concurrent 50
trunkline keys create "shop backend" --scope leads --merchant acme-store
trunkline keys revoke 01a1de62-2409-736d-8c5a-52d9153eecca
"""

from dataclasses import fields
from typing import Annotated

import typer

from trunkline.cli.control import Limit, RemoteContext, options, remote_group
from trunkline.cli.resource import Resource
from trunkline.schema.keys import ApiKey, Me
from trunkline.schema.tenants import (
    Merchant,
    MerchantChange,
    NewMerchant,
    NewReseller,
    Reseller,
    ResellerChange,
)

resellers = remote_group("The tenants of the platform.")
merchants = remote_group("The customers of resellers.")
keys = remote_group("API keys: owners, scopes and expiry.")

RESELLERS = Resource("resellers", Reseller, hidden=())
RESELLERS.add_list(resellers, "Resellers, by id.")
RESELLERS.add_show(resellers, "One reseller.")
RESELLERS.add_create(resellers, NewReseller, "Create a reseller.")
RESELLERS.add_change(resellers, ResellerChange, "Change a reseller's name.")
RESELLERS.add_remove(resellers, "Remove a reseller. Refused while it still has dependent objects.")

MERCHANTS = Resource(
    "merchants",
    Merchant,
    {
        "default_region": ("region", "Country of phones without one, for example US; or `none`."),
        "default_pool": ("pool", "The number pool of leads that name none; or `none`."),
    },
)
MERCHANTS.add_show(merchants, "One merchant.")
MERCHANTS.add_create(merchants, NewMerchant, "Create a merchant.")
MERCHANTS.add_change(merchants, MerchantChange, "Change a merchant.")
MERCHANTS.add_remove(merchants, "Remove a merchant. Refused while it still has dependent objects.")

KEYS = Resource("keys", ApiKey, hidden=("created_at", "created_by"))


@merchants.command("list")
def list_merchants(
    ctx: RemoteContext,
    reseller: Annotated[str, typer.Option(help="The reseller it belongs to.")] = "",
    limit: Limit = 50,
) -> None:
    """Merchants, by id."""
    MERCHANTS.list(ctx, reseller_id=reseller, limit=limit)


@keys.command()
def create(
    ctx: RemoteContext,
    name: Annotated[str, typer.Argument(help="What it is for.")],
    scopes: Annotated[
        list[str], typer.Option("--scope", help="admin, leads, router, read or jobs; may be repeated.")
    ],
    reseller_id: Annotated[
        str, typer.Option("--reseller", help="The owner. Left out: that of your own key.")
    ] = "",
    merchant_id: Annotated[
        str, typer.Option("--merchant", help="The owner. Left out: that of your own key.")
    ] = "",
    expires_at: Annotated[
        str, typer.Option("--expires", help="For example 2030-05-01T00:00:00Z. Left out: never.")
    ] = "",
) -> None:
    """Create a key. Only this output shows it."""
    ctx.obj.post(("id", "name", "scopes", "key"), "keys", body=options(ctx))


KEYS.add_list(keys, "Keys, oldest first, revoked ones too.")


@keys.command()
def revoke(ctx: RemoteContext, key_id: Annotated[str, typer.Argument(help="The id of a key.")]) -> None:
    """Revoke a key, within ten seconds everywhere. It cannot be undone."""
    ctx.obj.delete(KEYS.columns, "keys", key_id)


@keys.command()
def me(ctx: RemoteContext) -> None:
    """The owner and the scopes of the key."""
    ctx.obj.get([each.name for each in fields(Me)], "me")
