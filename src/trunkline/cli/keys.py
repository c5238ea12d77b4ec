"""`trunkline keys`: API keys, made, listed and revoked over the API of a running platform.

trunkline keys create "shop backend" --scope leads --merchant acme-store
trunkline keys list
trunkline keys revoke 01a1de62-2409-736d-8c5a-52d9153eecca
"""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from trunkline.cli.control import ROOT, Context, Limit, Remote, connect

app = typer.Typer(help="API keys: owners, scopes and expiry.", no_args_is_help=True)
app.callback()(connect)

_KEY = ("id", "hint", "name", "scopes", "reseller_id", "merchant_id", "expires_at", "revoked_at")
_NEW = ("id", "name", "scopes", "key")
_ME = ("key_id", "name", "scopes", "reseller_id", "merchant_id", "expires_at")


@app.command()
def create(
    ctx: Context,
    name: Annotated[str, typer.Argument(help="What it is for.")],
    scope: Annotated[list[str], typer.Option(help="admin, leads, router, read or jobs; may be repeated.")],
    reseller: Annotated[str, typer.Option(help="The owner. Left out: that of your own key.")] = "",
    merchant: Annotated[str, typer.Option(help="The owner. Left out: that of your own key.")] = "",
    expires: Annotated[str, typer.Option(help="For example 2030-05-01T00:00:00Z. Left out: never.")] = "",
) -> None:
    """Create a key. Only this output shows it."""
    given = {"reseller_id": reseller, "merchant_id": merchant, "expires_at": expires}
    body: dict[str, Any] = {"name": name, "scopes": scope, **{k: v for k, v in given.items() if v}}
    remote: Remote = ctx.obj
    remote.show(remote.ask(lambda api: api.post(f"{ROOT}/keys", body)), _NEW)


@app.command("list")
def list_keys(ctx: Context, limit: Limit = 50) -> None:
    """Keys, oldest first, revoked ones too."""
    remote: Remote = ctx.obj
    remote.show(remote.ask(lambda api: api.get(f"{ROOT}/keys", {"limit": limit})), _KEY)


@app.command()
def revoke(ctx: Context, key_id: Annotated[str, typer.Argument(help="The id of a key.")]) -> None:
    """Revoke a key, within ten seconds everywhere. It cannot be undone."""
    remote: Remote = ctx.obj
    remote.show(remote.ask(lambda api: api.delete(f"{ROOT}/keys/{quote(key_id, safe='')}")), _KEY)


@app.command()
def me(ctx: Context) -> None:
    """The owner and the scopes of the key."""
    remote: Remote = ctx.obj
    remote.show(remote.ask(lambda api: api.get(f"{ROOT}/me")), _ME)
