"""Accounts at carriers. Tenants cannot see them; and a secret, once written, is never shown again.

The account `default` of each carrier may also come from the environment; one of the same name here replaces it.
"""

from collections.abc import Mapping
from typing import Annotated
from uuid import UUID

from fastapi import Query
from pydantic import Field

from trunkline.api.auth import AdminKey, ReadKey, require_platform
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import ApiError, conflict, invalid, not_found
from trunkline.api.models import (
    WRITE_ERRORS,
    ErrorOut,
    Responses,
    created,
    require_found,
)
from trunkline.api.ownership import record
from trunkline.api.paging import Page, PageQuery
from trunkline.api.principal import Principal
from trunkline.api.resources import Routes, Sent, extended, get_one, list_page
from trunkline.control.raising import clear_alarm
from trunkline.dispatch.cooldowns import ALARM, alarm_subject
from trunkline.leads.ingest import FieldProblem
from trunkline.model import new_id
from trunkline.schema.accounts import (
    Account,
    AccountChange,
    AccountUrls,
    CarrierName,
    CarrierNumbers,
    NewAccount,
    WhichAccount,
)
from trunkline.store import accounts, cooldowns
from trunkline.store.accounts import ACCOUNTS, StoredAccount
from trunkline.store.tenants import PLATFORM
from trunkline.telephony.accounts import KNOWN_IN_S, AccountService, Unopenable
from trunkline.telephony.carrier import Unavailable
from trunkline.telephony.carrier_registry import NEEDS, CarrierConfigError

router = Routes("/accounts", "accounts")

# When one of these changes, webhooks signed with the previous one are accepted until the next change.
_PREVIOUS = {"auth_token": "previous_auth_token", "webhook_secret": "previous_webhook_secret"}

_CARRIER_ERRORS: Responses = {
    409: {"model": ErrorOut, "description": "There is no such account, or it cannot be used."},
    502: {"model": ErrorOut, "description": "The carrier refused, or did not answer."},
}


class AccountQuery(PageQuery):
    carrier: CarrierName | None = Field(None, description="Only accounts at this carrier.")


@router.post("", status_code=201, summary="Add an account")
async def create_account(body: NewAccount, who: AdminKey, api: Deps) -> Account:
    """Needs a key of the platform with the scope `admin`. It is in use everywhere within seconds."""
    require_platform(who, "add accounts")
    service = _service(api)
    credentials = _checked(service, body.carrier, body.name, body.credentials, body.base_url)
    sealed = service.vault.seal(body.carrier, body.name, credentials)
    async with api.store.writing() as tx:
        inserted = await ACCOUNTS.insert(tx, body, id=new_id(), credentials=sealed)
        account = created(inserted, f"The {body.carrier} account", body.name)
        await record(tx, who, "account.created", account.id, PLATFORM, carrier=body.carrier, name=body.name)
    await service.refresh()
    return _shown(service, account)


@router.get("", summary="List accounts")
async def list_accounts(query: Annotated[AccountQuery, Query()], who: ReadKey, api: Deps) -> Page[Account]:
    """Oldest first, for a key of the platform. Those of the environment are not among them."""
    page = await list_page(api, who, ACCOUNTS, query, query.carrier, name="accounts")
    return Page([_shown(_service(api), row) for row in page.items], page.next_cursor)


@router.get("/{account_id}", summary="Get an account")
async def get_account(account_id: UUID, who: ReadKey, api: Deps) -> Account:
    return _shown(_service(api), await get_one(api, who, ACCOUNTS, account_id, "account"))


@router.get("/{account_id}/urls", responses=WRITE_ERRORS, summary="Get the URLs to enter at the carrier")
async def get_account_urls(account_id: UUID, who: AdminKey, api: Deps) -> AccountUrls:
    """The URLs for inbound calls. Their signatures are valid for this account only."""
    account = await get_one(api, who, ACCOUNTS, account_id, "account")
    service = _service(api)
    await service.refresh()
    try:
        return AccountUrls(**service.urls(account.carrier, account.name))
    except CarrierConfigError as error:
        raise conflict("account_not_usable", f"{error}.") from None


@router.patch("/{account_id}", summary="Change an account")
async def update_account(account_id: UUID, body: Sent[AccountChange], who: AdminKey, api: Deps) -> Account:
    """Omitted fields do not change. Webhooks signed with a replaced token are accepted until the next change."""
    _require_sight(who)
    service = _service(api)
    async with api.store.writing() as tx:
        before = require_found(await accounts.lock(tx, account_id), "account")
        changes = body.fields() | {"credentials": _merged(service, before, body)}
        account = require_found(await ACCOUNTS.update(tx, account_id, changes), "account")
        if body.value.credentials is not None or "base_url" in body.names:
            over = await cooldowns.renew_account(tx, (account.carrier, account.name), known_in_s=KNOWN_IN_S)
            for subject in over:
                await clear_alarm(tx, ALARM, alarm_subject(subject), "account changed")
        changed = sorted({*body.names - {"credentials"}, *(body.value.credentials or {})})
        await record(tx, who, "account.changed", account.id, PLATFORM, changed=changed)
    await service.refresh()
    return _shown(service, account)


@router.delete("/{account_id}", status_code=204, summary="Remove an account")
async def delete_account(account_id: UUID, who: AdminKey, api: Deps) -> None:
    """Refused while a number dials with it."""
    _require_sight(who)
    async with api.store.writing() as tx:
        account = require_found(await accounts.lock(tx, account_id), "account")
        if not await accounts.remove(tx, account_id):
            raise conflict("in_use", "Numbers use this account. Move them to another account first.")
        await record(tx, who, "account.removed", account.id, PLATFORM)
    await _service(api).refresh()


@router.post("/numbers", responses=_CARRIER_ERRORS, summary="List an account's numbers at its carrier")
async def ask_for_numbers(body: WhichAccount, who: AdminKey, api: Deps) -> CarrierNumbers:
    """Queries the carrier itself, so it also checks the credentials. For a key of the platform."""
    require_platform(who, "ask carriers")
    service = _service(api)
    await service.refresh()
    try:
        numbers = await service.directory.get(body.carrier, body.account).own_numbers()
    except CarrierConfigError as error:
        raise conflict("account_not_usable", f"{error}.") from None
    if not isinstance(numbers, Unavailable):
        return CarrierNumbers(body.carrier, body.account, numbers)
    if numbers.is_unauthorized:
        message = f"{body.carrier} rejects these credentials ({numbers.reason}). Enter them again."
        raise ApiError(502, "carrier_refused", message)
    raise ApiError(502, "carrier_unavailable", f"{body.carrier} did not answer: {numbers.reason}.")


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


def _merged(service: AccountService, before: StoredAccount, body: Sent[AccountChange]) -> bytes | None:
    given = body.value.credentials
    if given is None:
        return None
    known = service.credentials(before)
    old = {} if isinstance(known, Unopenable) else known
    merged = {**old, **given}
    for current, previous in _PREVIOUS.items():
        is_replaced = current in given and old.get(current) not in (None, given[current])
        if is_replaced and previous in NEEDS[before.carrier].names and previous not in given:
            merged[previous] = old[current]
    base_url = body.value.base_url if "base_url" in body.names else before.base_url
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


def _shown(service: AccountService, account: StoredAccount) -> Account:
    opened = service.credentials(account)
    known = {} if isinstance(opened, Unopenable) else opened
    shown = NEEDS[account.carrier].shown if account.carrier in NEEDS else ()
    return extended(
        Account,
        account,
        credentials={key: value for key, value in known.items() if key in shown},
        secrets=sorted(key for key in known if key not in shown),
        usable=not isinstance(opened, Unopenable),
    )
