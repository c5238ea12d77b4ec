"""`trunkline accounts`: carrier accounts of numbers. A token that is not given as an option is prompted for.

trunkline accounts add twilio --account-sid AC0123…
trunkline accounts list
trunkline accounts urls 01a1de62-30aa-7d05-9c34-0f2f6d1f3b11
"""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from trunkline.cli.console import out
from trunkline.cli.control import ROOT, Context, Limit, Remote, connect
from trunkline.client.errors import ApiError
from trunkline.client.transport import Transport

app = typer.Typer(help="Accounts at carriers.", no_args_is_help=True)
add = typer.Typer(help="Add an account, and check its credentials at the carrier.", no_args_is_help=True)
app.callback()(connect)
app.add_typer(add, name="add")

_ACCOUNT = ("id", "carrier", "name", "credentials", "secrets", "usable", "starts_per_s", "status")
_URLS = ("inbound", "status", "answer")

Name = Annotated[str, typer.Option(help="The name by which numbers refer to the account.")]
Pace = Annotated[
    float | None, typer.Option(min=0.01, help="The maximum of calls that the account starts per second.")
]
BaseUrl = Annotated[str, typer.Option(help="The base URL of the carrier's API, if it is not the usual one.")]
AccountId = Annotated[str, typer.Argument(help="The id of an account.")]


def _secret(*variables: str) -> Any:
    return typer.Option(prompt=True, hide_input=True, envvar=list(variables), show_envvar=False)


@add.command()
def twilio(
    ctx: Context,
    account_sid: Annotated[str, typer.Option(prompt=True)],
    auth_token: Annotated[str, _secret("TWILIO_AUTH_TOKEN")],
    name: Name = "default",
    pace: Pace = 1.0,
    base_url: BaseUrl = "",
) -> None:
    """A Twilio account or subaccount. Its pace is 1 call per second unless Twilio allows more."""
    _add(ctx, "twilio", {"account_sid": account_sid, "auth_token": auth_token}, name, pace, base_url)


@add.command()
def plivo(
    ctx: Context,
    auth_id: Annotated[str, typer.Option(prompt=True)],
    auth_token: Annotated[str, _secret("PLIVO_AUTH_TOKEN")],
    main_auth_token: Annotated[str, typer.Option(help="The main account's, if this is a subaccount.")] = "",
    name: Name = "default",
    pace: Pace = 2.0,
    base_url: BaseUrl = "",
) -> None:
    """A Plivo account or subaccount. Its pace is 2 calls per second unless Plivo allows more."""
    credentials = {"auth_id": auth_id, "auth_token": auth_token, "main_auth_token": main_auth_token}
    _add(ctx, "plivo", credentials, name, pace, base_url)


@add.command()
def exotel(
    ctx: Context,
    sid: Annotated[str, typer.Option(prompt=True)],
    api_key: Annotated[str, typer.Option(prompt=True)],
    api_token: Annotated[str, _secret("EXOTEL_API_TOKEN")],
    app_id: Annotated[str, typer.Option(help="The flow of outbound calls.")] = "",
    name: Name = "default",
    pace: Pace = 3.0,
    base_url: BaseUrl = "",
) -> None:
    """An Exotel account. It takes 200 requests a minute."""
    credentials = {"sid": sid, "api_key": api_key, "api_token": api_token, "app_id": app_id}
    _add(ctx, "exotel", credentials, name, pace, base_url)


@add.command()
def vapi(
    ctx: Context,
    api_key: Annotated[str, _secret("VAPI_API_KEY")],
    webhook_secret: Annotated[str, _secret("VAPI_WEBHOOK_SECRET")],
    assistant_id: Annotated[str, typer.Option(help="The assistant that talks.")] = "",
    credential_id: Annotated[str, typer.Option(help="Vapi's credential that signs webhooks.")] = "",
    name: Name = "default",
    pace: Pace = 10.0,
    base_url: BaseUrl = "",
) -> None:
    """A Vapi organisation."""
    credentials = {
        "api_key": api_key,
        "webhook_secret": webhook_secret,
        "assistant_id": assistant_id,
        "credential_id": credential_id,
    }
    _add(ctx, "vapi", credentials, name, pace, base_url)


@app.command("list")
def list_accounts(ctx: Context, limit: Limit = 50) -> None:
    """The stored accounts, oldest first. Those of the environment are in `trunkline doctor`."""
    remote = _remote(ctx)
    remote.show(remote.ask(lambda api: api.get(f"{ROOT}/accounts", {"limit": limit})), _ACCOUNT)


@app.command()
def urls(ctx: Context, account_id: AccountId) -> None:
    """The URLs to enter at the carrier for inbound calls. They are secret."""
    remote = _remote(ctx)
    path = f"{ROOT}/accounts/{quote(account_id, safe='')}/urls"
    remote.show(remote.ask(lambda api: api.get(path)), _URLS)


@app.command()
def remove(ctx: Context, account_id: AccountId) -> None:
    """Remove an account. Refused while a number uses it."""
    _remote(ctx).ask(lambda api: api.delete(f"{ROOT}/accounts/{quote(account_id, safe='')}"))
    out.print("Removed.")


def _add(
    ctx: Context, carrier: str, credentials: dict[str, str], name: str, pace: float | None, base_url: str
) -> None:
    body: dict[str, Any] = {
        "carrier": carrier,
        "name": name,
        "credentials": {key: value for key, value in credentials.items() if value},
        "starts_per_s": pace,
        "base_url": base_url or None,
    }
    remote = _remote(ctx)
    account, known = remote.ask(lambda api: _added(api, body))
    remote.show(account, _ACCOUNT)
    if not remote.as_json:
        out.print(known)


async def _added(api: Transport, body: dict[str, Any]) -> tuple[Any, str]:
    """The account, and the result of its check at the carrier. One that the carrier refuses is removed again."""
    account = await api.post(f"{ROOT}/accounts", body)
    try:
        listing = await api.post(
            f"{ROOT}/accounts/numbers", {"carrier": body["carrier"], "account": body["name"]}
        )
    except ApiError as error:
        if error.code == "carrier_refused":
            await api.delete(f"{ROOT}/accounts/{account['id']}")
            raise
        return account, f"Stored, but not checked: {error.message}"
    return account, f"{body['carrier']} knows it, and has {len(listing['numbers'])} numbers for it."


def _remote(ctx: Context) -> Remote:
    remote: Remote = ctx.obj
    return remote
