"""Accounts at carriers. Tenants cannot see them; and a secret, once written, is never shown again.

The account `default` of each carrier may also come from the environment; one of the same name here replaces it.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field, StringConstraints

from trunkline.api.auth import API_ROOT, AdminKey, ReadKey, require_platform
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import ApiError, conflict, invalid, not_found
from trunkline.api.models import DELETE_ERRORS, READ_ERRORS, WRITE_ERRORS, Body, Out, created, require_found
from trunkline.api.ownership import record
from trunkline.api.paging import FIRST_ID, Cursors, Page, PageOut, PageQuery
from trunkline.api.principal import Principal
from trunkline.control.raising import clear_alarm
from trunkline.dispatch.cooldowns import ALARM, alarm_subject
from trunkline.leads.ingest import FieldProblem
from trunkline.model import new_id
from trunkline.store import accounts, cooldowns
from trunkline.store.accounts import AccountChange, NewAccount, StoredAccount
from trunkline.store.tenants import PLATFORM
from trunkline.telephony.accounts import KNOWN_IN_S, AccountService
from trunkline.telephony.carrier_registry import NEEDS, CarrierConfigError
from trunkline.telephony.credentials import Unopenable

router = APIRouter(prefix=f"{API_ROOT}/accounts", tags=["accounts"])

CarrierName = Literal["twilio", "plivo", "exotel", "vapi"]
AccountName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
CredentialName = Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,40}$")]
Credential = Annotated[str, StringConstraints(max_length=500, pattern=r"^[\x20-\x7e]*$")]
BaseUrl = Annotated[
    str, StringConstraints(pattern=r"^https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[\x21-\x7e]*)?$")
]

_CREDENTIALS = "By the carrier's own names; docs/reference/carriers.md lists them. Written, never read again."
_PACE = "The maximum of calls that the account starts per second. Left out: only the carrier limits it."
_STATUS = "A disabled account is not used: its numbers do not dial, its webhooks are refused."
# When one of these changes, webhooks signed with the previous one are accepted until the next change.
_PREVIOUS = {"auth_token": "previous_auth_token", "webhook_secret": "previous_webhook_secret"}


class AccountIn(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "carrier": "twilio",
                    "name": "acme",
                    "credentials": {
                        "account_sid": "AC00000000000000000000000000000001",
                        "auth_token": "the-account-s-token",
                    },
                    "starts_per_s": 1,
                }
            ]
        }
    )

    carrier: CarrierName
    name: AccountName = Field("default", description="The name by which numbers refer to the account.")
    credentials: dict[CredentialName, Credential] = Field(max_length=20, description=_CREDENTIALS)
    base_url: BaseUrl | None = Field(
        None, description="The base URL of the carrier's API, if it is not the usual one."
    )
    starts_per_s: float | None = Field(None, gt=0, le=10_000, description=_PACE)
    status: Literal["active", "disabled"] = Field("active", description=_STATUS)


class AccountPatch(Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"credentials": {"auth_token": "the-account-s-token"}}]}
    )

    credentials: dict[CredentialName, Credential] | None = Field(
        None,
        max_length=20,
        description=f"The credentials to change; an empty value removes one. {_CREDENTIALS}",
    )
    base_url: BaseUrl | None = Field(None, description="null: the carrier's usual base URL.")
    starts_per_s: float | None = Field(None, gt=0, le=10_000, description=_PACE)
    status: Literal["active", "disabled"] | None = Field(None, description=_STATUS)


class AccountOut(Out):
    id: UUID
    carrier: str
    name: str
    credentials: dict[str, str] = Field(description="The credentials that are not secret.")
    secrets: list[str] = Field(description="The names of the secret credentials.")
    usable: bool = Field(
        description="false: the credentials were encrypted with a key that is no longer set. "
        "Enter them again."
    )
    base_url: str | None
    starts_per_s: float | None
    status: str
    version: int
    created_at: datetime
    updated_at: datetime


class AccountUrls(Out):
    """They are signed: share them with the carrier only."""

    inbound: str = Field(description="The carrier requests the document of an inbound call here.")
    status: str = Field(description="The carrier reports the end of an inbound call here.")
    answer: str = Field(description="Exotel: the URL for the Voicebot applet of the flow of outbound calls.")


class AccountQuery(PageQuery):
    carrier: CarrierName | None = Field(None, description="Only accounts at this carrier.")


@router.post("", status_code=201, response_model=AccountOut, responses=WRITE_ERRORS, summary="Add an account")
async def create_account(body: AccountIn, who: AdminKey, api: Deps) -> AccountOut:
    """Needs a key of the platform with the scope `admin`. It is in use everywhere within seconds."""
    require_platform(who, "add accounts")
    service = _service(api)
    credentials = _checked(service, body.carrier, body.name, body.credentials, body.base_url)
    new = NewAccount(
        id=new_id(),
        carrier=body.carrier,
        name=body.name,
        credentials=service.vault.seal(body.carrier, body.name, credentials),
        base_url=body.base_url,
        starts_per_s=body.starts_per_s,
        status=body.status,
    )
    async with api.store.writing() as tx:
        account = created(await accounts.insert(tx, new), f"The {body.carrier} account", body.name)
        await record(tx, who, "account.created", account.id, PLATFORM, carrier=body.carrier, name=body.name)
    await service.refresh()
    return _shown(service, account)


@router.get("", response_model=PageOut[AccountOut], responses=READ_ERRORS, summary="List accounts")
async def list_accounts(query: Annotated[AccountQuery, Query()], who: ReadKey, api: Deps) -> Page[AccountOut]:
    """Oldest first, for a key of the platform. Those of the environment are not among them."""
    cursors = Cursors("accounts", who, query)
    after = cursors.start_id(FIRST_ID)
    if not who.tenant.is_platform:
        return cursors.page([], lambda account: account.id)
    async with api.store.reading() as connection:
        rows = await accounts.list_accounts(
            connection, carrier=query.carrier, after=after, limit=cursors.fetch_limit
        )
    return cursors.page([_shown(_service(api), row) for row in rows], lambda account: account.id)


@router.get("/{account_id}", response_model=AccountOut, responses=READ_ERRORS, summary="Get an account")
async def get_account(account_id: UUID, who: ReadKey, api: Deps) -> AccountOut:
    _require_sight(who)
    async with api.store.reading() as connection:
        return _shown(_service(api), require_found(await accounts.get(connection, account_id), "account"))


@router.get(
    "/{account_id}/urls",
    response_model=AccountUrls,
    responses=WRITE_ERRORS,
    summary="Get the URLs to enter at the carrier",
)
async def get_account_urls(account_id: UUID, who: AdminKey, api: Deps) -> AccountUrls:
    """The URLs for inbound calls. Their signatures are valid for this account only."""
    _require_sight(who)
    async with api.store.reading() as connection:
        account = require_found(await accounts.get(connection, account_id), "account")
    service = _service(api)
    await service.refresh()
    try:
        return AccountUrls.model_validate(service.urls(account.carrier, account.name))
    except CarrierConfigError as error:
        raise conflict("account_not_usable", f"{error}.") from None


@router.patch("/{account_id}", response_model=AccountOut, responses=WRITE_ERRORS, summary="Change an account")
async def update_account(account_id: UUID, body: AccountPatch, who: AdminKey, api: Deps) -> AccountOut:
    """Omitted fields do not change. Webhooks signed with a replaced token are accepted until the next change."""
    _require_sight(who)
    service = _service(api)
    async with api.store.writing() as tx:
        before = require_found(await accounts.lock(tx, account_id), "account")
        change = AccountChange(
            credentials=_merged(service, before, body),
            set_base_url="base_url" in body.model_fields_set,
            base_url=body.base_url,
            set_starts_per_s="starts_per_s" in body.model_fields_set,
            starts_per_s=body.starts_per_s,
            status=body.status,
        )
        account = require_found(await accounts.update(tx, account_id, change), "account")
        if change.credentials is not None or change.set_base_url:
            over = await cooldowns.renew_account(tx, (account.carrier, account.name), known_in_s=KNOWN_IN_S)
            for subject in over:
                await clear_alarm(tx, ALARM, alarm_subject(subject), "account changed")
        changed = sorted({*body.model_fields_set - {"credentials"}, *(body.credentials or {})})
        await record(tx, who, "account.changed", account.id, PLATFORM, changed=changed)
    await service.refresh()
    return _shown(service, account)


@router.delete("/{account_id}", status_code=204, responses=DELETE_ERRORS, summary="Remove an account")
async def delete_account(account_id: UUID, who: AdminKey, api: Deps) -> None:
    """Refused while a number dials with it."""
    _require_sight(who)
    async with api.store.writing() as tx:
        account = require_found(await accounts.lock(tx, account_id), "account")
        if not await accounts.remove(tx, account_id):
            raise conflict("in_use", "Numbers use this account. Move them to another account first.")
        await record(tx, who, "account.removed", account.id, PLATFORM)
    await _service(api).refresh()


def _require_sight(who: Principal) -> None:
    if not who.tenant.is_platform:
        raise not_found("account")


def _service(api: Api) -> AccountService:
    if api.deps.accounts is None:
        raise ApiError(
            503,
            "accounts_unavailable",
            "This process has no accounts. Send the request to one with the role api.",
        )
    return api.deps.accounts


def _merged(service: AccountService, before: StoredAccount, body: AccountPatch) -> bytes | None:
    if body.credentials is None:
        return None
    known = service.credentials(before)
    old = {} if isinstance(known, Unopenable) else known
    merged = {**old, **body.credentials}
    for current, previous in _PREVIOUS.items():
        is_replaced = current in body.credentials and old.get(current) not in (
            None,
            body.credentials[current],
        )
        if is_replaced and previous in NEEDS[before.carrier].names and previous not in body.credentials:
            merged[previous] = old[current]
    base_url = body.base_url if "base_url" in body.model_fields_set else before.base_url
    checked = _checked(service, before.carrier, before.name, merged, base_url)
    return service.vault.seal(before.carrier, before.name, checked)


def _checked(
    service: AccountService, carrier: str, name: str, credentials: Mapping[str, str], base_url: str | None
) -> dict[str, str]:
    """The credentials, or an error for every unknown name."""
    kept = {key: value for key, value in credentials.items() if value}
    needs = NEEDS[carrier]
    problems = [
        FieldProblem(
            f"credentials.{key}", f"Not a credential of {carrier}. There are: {', '.join(needs.names)}."
        )
        for key in kept
        if key not in needs.names
    ]
    problems += [FieldProblem(f"credentials.{key}", "Needed.") for key in needs.required if key not in kept]
    if problems:
        raise invalid(*problems)
    problem = service.problem(carrier, name, kept, base_url)
    if problem:
        raise invalid(FieldProblem("credentials", problem))
    return kept


def _shown(service: AccountService, account: StoredAccount) -> AccountOut:
    opened = service.credentials(account)
    known = {} if isinstance(opened, Unopenable) else opened
    shown = NEEDS[account.carrier].shown if account.carrier in NEEDS else ()
    return AccountOut(
        id=account.id,
        carrier=account.carrier,
        name=account.name,
        credentials={key: value for key, value in known.items() if key in shown},
        secrets=sorted(key for key in known if key not in shown),
        usable=not isinstance(opened, Unopenable),
        base_url=account.base_url,
        starts_per_s=account.starts_per_s,
        status=account.status,
        version=account.version,
        created_at=account.created_at,
        updated_at=account.updated_at,
    )
