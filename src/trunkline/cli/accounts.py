"""`trunkline accounts`: carrier accounts of numbers. A token that is not given as an option is prompted for.

trunkline accounts add twilio --account-sid AC0123…
trunkline accounts list
trunkline accounts urls 01a1de62-30aa-7d05-9c34-0f2f6d1f3b11
"""

from typing import Annotated, Any

import typer

from trunkline.cli.console import out
from trunkline.cli.control import RemoteContext, Values, api_path, options, remote_group
from trunkline.cli.resource import Resource
from trunkline.client.errors import ApiError
from trunkline.client.transport import Transport
from trunkline.schema.accounts import Account

app = remote_group("Accounts at carriers.")
add = typer.Typer(help="Add an account, and check its credentials at the carrier.", no_args_is_help=True)
app.add_typer(add, name="add")

ACCOUNTS = Resource("accounts", Account, hidden=("base_url", "version", "created_at", "updated_at"))
ACCOUNTS.add_list(
    app, "The stored accounts, oldest first. Those of the environment are in `trunkline doctor`."
)

Name = Annotated[str, typer.Option(help="The name by which numbers refer to the account.")]
Pace = Annotated[
    float | None,
    typer.Option("--pace", min=0.01, help="The maximum of calls that the account starts per second."),
]
BaseUrl = Annotated[str, typer.Option(help="The base URL of the carrier's API, if it is not the usual one.")]
AccountId = Annotated[str, typer.Argument(help="The id of an account.")]


def _secret(*variables: str) -> Any:
    return typer.Option(prompt=True, hide_input=True, envvar=list(variables), show_envvar=False)


@add.command()
def twilio(
    ctx: RemoteContext,
    account_sid: Annotated[str, typer.Option(prompt=True)],
    auth_token: Annotated[str, _secret("TWILIO_AUTH_TOKEN")],
    name: Name = "default",
    starts_per_s: Pace = 1.0,
    base_url: BaseUrl = "",
) -> None:
    """A Twilio account or subaccount. Its pace is 1 call per second unless Twilio allows more."""
    _add(ctx, "twilio")


@add.command()
def plivo(
    ctx: RemoteContext,
    auth_id: Annotated[str, typer.Option(prompt=True)],
    auth_token: Annotated[str, _secret("PLIVO_AUTH_TOKEN")],
    main_auth_token: Annotated[str, typer.Option(help="The main account's, if this is a subaccount.")] = "",
    name: Name = "default",
    starts_per_s: Pace = 2.0,
    base_url: BaseUrl = "",
) -> None:
    """A Plivo account or subaccount. Its pace is 2 calls per second unless Plivo allows more."""
    _add(ctx, "plivo")


@add.command()
def exotel(
    ctx: RemoteContext,
    sid: Annotated[str, typer.Option(prompt=True)],
    api_key: Annotated[str, typer.Option(prompt=True)],
    api_token: Annotated[str, _secret("EXOTEL_API_TOKEN")],
    app_id: Annotated[str, typer.Option(help="The flow of outbound calls.")] = "",
    name: Name = "default",
    starts_per_s: Pace = 3.0,
    base_url: BaseUrl = "",
) -> None:
    """An Exotel account. It takes 200 requests a minute."""
    _add(ctx, "exotel")


@add.command()
def vapi(
    ctx: RemoteContext,
    api_key: Annotated[str, _secret("VAPI_API_KEY")],
    webhook_secret: Annotated[str, _secret("VAPI_WEBHOOK_SECRET")],
    assistant_id: Annotated[str, typer.Option(help="The assistant that talks.")] = "",
    credential_id: Annotated[str, typer.Option(help="Vapi's credential that signs webhooks.")] = "",
    name: Name = "default",
    starts_per_s: Pace = 10.0,
    base_url: BaseUrl = "",
) -> None:
    """A Vapi organisation."""
    _add(ctx, "vapi")


@app.command()
def urls(ctx: RemoteContext, account_id: AccountId) -> None:
    """The URLs to enter at the carrier for inbound calls. They are secret."""
    ctx.obj.get(("inbound", "status", "answer"), "accounts", account_id, "urls")


@app.command()
def remove(ctx: RemoteContext, account_id: AccountId) -> None:
    """Remove an account. Refused while a number uses it."""
    ctx.obj.ask(lambda api: api.delete(api_path("accounts", account_id)))
    out.print("Removed.")


def _add(ctx: RemoteContext, carrier: str) -> None:
    """Options that are no fields of an account are its credentials."""
    credentials = options(ctx)
    body = {
        name: credentials.pop(name) for name in ("name", "starts_per_s", "base_url") if name in credentials
    }
    account, known = ctx.obj.ask(
        lambda api: _added(api, body | {"carrier": carrier, "credentials": credentials})
    )
    ctx.obj.show(account, ACCOUNTS.columns)
    if not ctx.obj.as_json:
        out.print(known)


async def _added(api: Transport, body: Values) -> tuple[Any, str]:
    """The account, and the result of its check at the carrier. One that the carrier refuses is removed again."""
    account = await api.post(api_path("accounts"), body)
    try:
        which = {"carrier": body["carrier"], "account": account["name"]}
        listing = await api.post(api_path("accounts", "numbers"), which)
    except ApiError as error:
        if error.code == "carrier_refused":
            await api.delete(api_path("accounts", account["id"]))
            raise
        return account, f"Stored, but not checked: {error.message}"
    return account, f"{body['carrier']} knows it, and has {len(listing['numbers'])} numbers for it."
