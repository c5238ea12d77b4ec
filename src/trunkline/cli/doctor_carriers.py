"""The doctor's checks of carriers: are the credentials valid, can carriers reach the API, and do their signatures fit.

A carrier signs the URL that it has. If a proxy changes the URL, no signature fits and every webhook is refused; so the
doctor sends a request to the public URL and compares the URL that it sent with the one that the API saw.
"""

import asyncio
import secrets
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from trunkline.cli.doctor_finding import Finding
from trunkline.settings import Settings
from trunkline.store import accounts as store_accounts
from trunkline.store import database as store_database
from trunkline.store.database import CANNOT_CONNECT
from trunkline.store.driver import NO_SUCH_TABLE
from trunkline.telephony.callbacks import CallbackKeys, callback_url
from trunkline.telephony.carrier import NumbersUnavailable
from trunkline.telephony.carrier_registry import CarrierAccount, CarrierConfigError
from trunkline.telephony.credentials import Opened, Vault
from trunkline.telephony.directory import AccountName, CarrierDirectory
from trunkline.telephony.environment import accounts_of
from trunkline.telephony.forms import json_object

TIMEOUT_S = 5.0


async def examine_carriers(settings: Settings, database_url: str | None) -> list[Finding]:
    known = known_secrets(settings)
    # Without the platform's key stored credentials cannot be opened and URLs not signed; the rest can be checked.
    keys = CallbackKeys.from_secrets(known or [secrets.token_urlsafe()])
    accounts = accounts_of(settings, keys)
    stored, findings = await _stored(database_url, known, keys) if database_url else ({}, [])
    accounts |= stored
    if not accounts:
        hint = "none is configured: `trunkline accounts add twilio`, or set TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN"
        return [*findings, Finding("carriers", "warning", hint)]
    directory = CarrierDirectory(accounts)
    try:
        findings += await asyncio.gather(*(_account(directory, name) for name in directory.names))
    finally:
        await directory.aclose()
    findings.append(await _public_url(settings, accounts, keys, can_sign=bool(known)))
    fallback = settings.http.fallback_base_url
    if fallback:  # used only when the other one fails, so nothing else detects that it is wrong
        findings.append(
            await _tried("FALLBACK_BASE_URL", fallback, min(accounts), keys, can_sign=bool(known))
        )
    return findings


def known_secrets(settings: Settings) -> list[str]:
    if settings.secret_keys:
        return [key.get_secret_value() for key in settings.secret_keys]
    file = Path(settings.data_dir) / "secret.key"
    return [file.read_text(encoding="utf-8").strip()] if file.is_file() else []


async def _stored(
    database_url: str, known: list[str], keys: CallbackKeys
) -> tuple[dict[AccountName, CarrierAccount], list[Finding]]:
    try:
        database = await store_database.connect(database_url, pool_size=1)
    except CANNOT_CONNECT:
        return {}, []  # the check of Postgres reports it
    try:
        async with database.connection() as conn:
            rows = await store_accounts.active(conn)
    except NO_SUCH_TABLE:
        return {}, []  # the check of migrations reports it
    finally:
        await database.close()
    found: dict[AccountName, CarrierAccount] = {}
    findings = []
    for row in rows:
        opened = Vault.from_secrets(known).open(row.carrier, row.name, row.credentials) if known else None
        if isinstance(opened, Opened):
            found[row.carrier, row.name] = CarrierAccount(
                opened.credentials, keys, row.base_url, TIMEOUT_S, name=row.name
            )
        else:
            hint = "encrypted with another TRUNKLINE_SECRET_KEY: set that one, or enter its credentials again"
            findings.append(Finding(_name((row.carrier, row.name)), "problem", hint))
    return found, findings


async def _account(directory: CarrierDirectory, name: AccountName) -> Finding:
    """One request to the carrier, the list of numbers, which costs nothing."""
    try:
        found = await directory.get(*name).own_numbers()
    except CarrierConfigError as error:
        return Finding(_name(name), "problem", str(error))
    match found:
        case NumbersUnavailable(reason=reason, is_unauthorized=True):
            hint = f"the carrier rejects these credentials ({reason}); its webhooks would be refused too"
            return Finding(_name(name), "problem", hint)
        case NumbersUnavailable(reason=reason):
            return Finding(
                _name(name), "problem", f"cannot be reached: {reason}. Check the network and the base URL"
            )
        case []:
            return Finding(_name(name), "warning", "the credentials are valid; the account has no number")
        case numbers:
            return Finding(_name(name), "ok", f"the credentials are valid; {len(numbers)} numbers")


def _name(name: AccountName) -> str:
    carrier, account = name
    return carrier if account == "default" else f"{carrier} {account}"


async def _public_url(
    settings: Settings, accounts: dict[AccountName, CarrierAccount], keys: CallbackKeys, *, can_sign: bool
) -> Finding:
    base_url = settings.http.public_base_url
    if not base_url:
        return _without_public_url(settings, accounts)
    return await _tried("PUBLIC_BASE_URL", base_url, min(accounts), keys, can_sign=can_sign)


async def _tried(
    what: str, base_url: str, name: AccountName, keys: CallbackKeys, *, can_sign: bool
) -> Finding:
    if not can_sign:
        return Finding(what, "warning", "not checked: TRUNKLINE_SECRET_KEY is not set here")
    carrier, account = name
    url = callback_url(base_url, carrier, "status", None, keys, account)
    try:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.get(url, allow_redirects=False) as answer,
        ):
            status, body = answer.status, await answer.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return Finding(what, "problem", f"{base_url} cannot be reached: {type(error).__name__}")
    return _compared(what, base_url, url, status, json_object(body))


def _without_public_url(settings: Settings, accounts: dict[AccountName, CarrierAccount]) -> Finding:
    own = f"http://{settings.http.host}:{settings.http.port}"
    if all(_is_here(account.base_url) for account in accounts.values()):
        return Finding("PUBLIC_BASE_URL", "ok", f"unset; carriers on this machine reach {own}")
    hint = f"unset: carriers would use {own}, which they cannot reach. Set it to the https:// URL of this API"
    return Finding("PUBLIC_BASE_URL", "problem", hint)


def _is_here(base_url: str | None) -> bool:
    host = urlsplit(base_url or "").hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _compared(what: str, base_url: str, url: str, status: int, reply: Mapping[str, object]) -> Finding:
    """Compare the URL that a carrier would sign with the one that the API sees."""
    if status == 403:
        hint = f"{base_url} refuses our own URL: it has another TRUNKLINE_SECRET_KEY, or a proxy changes the query"
        return Finding(what, "problem", hint)
    seen = reply.get("urls")
    if status != 200 or not isinstance(seen, list):
        hint = f"{base_url} responds with {status}: not this API, or a proxy does not forward /webhooks/"
        return Finding(what, "problem", hint)
    if url in seen:
        return Finding(what, "ok", f"{base_url} reaches this API, and signatures fit the URL that it sees")
    shown = ", ".join(str(each).partition("?")[0] for each in seen)
    hint = (
        f"signatures would fail: a carrier signs {url.partition('?')[0]}, this server sees {shown}."
        f" Set {what}={base_url} for the server too"
    )
    if reply.get("is_trusted") is False:
        hint += f", or TRUSTED_PROXIES={reply.get('from')} so that the API trusts the proxy"
    return Finding(what, "problem", hint)
