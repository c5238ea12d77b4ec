"""The doctor: checks everything that the platform depends on, and says what to fix.

A carrier signs the URL that it has. If a proxy changes the URL, no signature fits and every webhook is refused; so the
doctor sends a request to the public URL and compares the URL that it sent with the one that the API saw.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import aiohttp

from trunkline.bus import connection as bus_connection
from trunkline.bus import router as bus_router
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys, RouterKeys
from trunkline.bus.router import RouterBus
from trunkline.errors import BusUnavailable, MigrationError, StoreUnavailable
from trunkline.leads.calling_policy import CallingPolicy
from trunkline.leads.rule_packs import Pack, known_packs, named, warnings
from trunkline.model import STREAMLESS
from trunkline.settings import Settings
from trunkline.settings.tiers import COMMON, Tiers, assignment_order
from trunkline.store import accounts as store_accounts
from trunkline.store import agents, migrate, policy, schedule, waiting
from trunkline.store import database as store_database
from trunkline.store.database import CANNOT_CONNECT, Connection, describe
from trunkline.store.driver import NO_SUCH_TABLE, SERVER_ERROR, SingleConnection, connect_single
from trunkline.store.policy import PolicyKey
from trunkline.telephony.accounts import Opened, Vault, accounts_of
from trunkline.telephony.callbacks import CallbackKeys, callback_url
from trunkline.telephony.carrier import Unavailable
from trunkline.telephony.carrier_registry import CarrierAccount, CarrierConfigError
from trunkline.telephony.directory import AccountName, CarrierDirectory
from trunkline.telephony.forms import json_object

# Postgres' clock decides when a lead is due; logs and certificates use this machine's.
CLOCK_DIFFERENCE_MAX_S = 1.0
TIMEOUT_S = 5.0
START_AGENTS = (
    "start an agent (docs/reference/agent.md), or for external agents set AGENTS=elsewhere, "
    "or `agents` of a merchant or a pool"
)
COMMON_TIER = """TIER_CONFIG='{"standard": {"type": "exclusive", "target": 1}}'"""


class Finding(NamedTuple):
    """One line of the report: what was checked, its state, and what to do about it."""

    what: str
    state: Literal["ok", "warning", "problem"]
    detail: str


async def examine(settings: Settings) -> list[Finding]:
    """Every check, also after one has failed."""
    database_url, redis_url = engine_addresses(settings)
    unset = "is unset and no embedded engine runs: set it, or run `trunkline up`"
    return [
        _settings(settings),
        _secret_key(settings),
        *(
            await _postgres(database_url)
            if database_url
            else [Finding("Postgres", "problem", f"DATABASE_URL {unset}")]
        ),
        await _valkey(settings, redis_url)
        if redis_url
        else Finding("Valkey", "problem", f"REDIS_URL {unset}"),
        *([await examine_router(settings, redis_url, database_url)] if redis_url else []),
        *(await examine_packs(settings, database_url) if database_url else []),
        *(await examine_carriers(settings, database_url)),
    ]


def engine_addresses(settings: Settings) -> tuple[str | None, str | None]:
    """The engines that are configured, or the embedded ones if they run."""
    announced: dict[str, str] = {}
    announcement = Path(settings.data_dir) / "engines.json"
    if announcement.exists():
        announced = json.loads(announcement.read_text(encoding="utf-8"))
    return (
        settings.database.session_url or announced.get("database_url"),
        settings.redis.url or announced.get("redis_url"),
    )


def _settings(settings: Settings) -> Finding:
    if settings.warnings:
        return Finding("settings", "warning", "; ".join(settings.warnings))
    return Finding("settings", "ok", "every variable is valid")


def _secret_key(settings: Settings) -> Finding:
    if settings.secret_keys or not settings.database.url:
        return Finding("secret key", "ok", "set" if settings.secret_keys else "stored in the data folder")
    detail = "TRUNKLINE_SECRET_KEY is unset: processes would refuse each other's signed URLs"
    return Finding("secret key", "warning", detail)


async def _postgres(url: str) -> list[Finding]:
    try:
        connection = await connect_single(url, application_name="trunkline doctor", timeout_s=TIMEOUT_S)
    except CANNOT_CONNECT as error:
        return [Finding("Postgres", "problem", f"cannot be reached: {describe(error)}. Check DATABASE_URL")]
    try:
        version, least = connection.get_server_version(), migrate.POSTGRES_MAJOR_MIN
        found = Finding("Postgres", "ok", f"version {version.major}.{version.minor}")
        if version.major < least:
            found = Finding("Postgres", "problem", f"version {version.major}: {least} is needed")
        return [found, await _clock(connection), await _migrations(connection)]
    finally:
        await connection.close()


async def _clock(connection: SingleConnection) -> Finding:
    before = time.time()
    theirs = await schedule.clock_s(connection)
    difference_s = theirs - (before + time.time()) / 2
    if abs(difference_s) > CLOCK_DIFFERENCE_MAX_S:
        detail = f"Postgres is {difference_s:+.1f} s off this machine's clock: set both by NTP"
        return Finding("clock", "warning", detail)
    return Finding("clock", "ok", f"{difference_s * 1000:+.0f} ms between Postgres and this machine")


async def _migrations(connection: SingleConnection) -> Finding:
    try:
        await migrate.require_schema(connection)
    except MigrationError as error:
        return Finding("migrations", "problem", str(error))
    if left := ", ".join(m.name for m in await migrate.pending(connection)):
        detail = f"{left} waits: run `trunkline migrate --post` when no older process is left"
        return Finding("migrations", "warning", detail)
    return Finding("migrations", "ok", "the schema is up to date")


@asynccontextmanager
async def _bus(settings: Settings, url: str) -> AsyncIterator[Bus]:
    bus = bus_connection.connect(url, Keys(settings.domain), cluster=settings.redis.cluster)
    try:
        yield bus
    finally:
        await bus.close()


async def _valkey(settings: Settings, url: str) -> Finding:
    try:
        async with _bus(settings, url) as bus:
            await bus.server_time_s()
            policy = await bus.client.config_get("maxmemory-policy")
    except BusUnavailable as error:
        return Finding("Valkey", "problem", f"{error}. Check REDIS_URL")
    except Exception as error:
        return Finding("Valkey", "warning", f"scripts run, but its configuration cannot be read: {error}")
    if policy.get("maxmemory-policy") != "noeviction":
        return Finding("Valkey", "problem", "Valkey may evict keys: set maxmemory-policy noeviction")
    return Finding("Valkey", "ok", "scripts run, and no keys are evicted")


@asynccontextmanager
async def _connection(url: str) -> AsyncIterator[Connection]:
    database = await store_database.connect(url, pool_size=1)
    try:
        async with database.connection() as conn:
            yield conn
    finally:
        await database.close()


async def examine_router(settings: Settings, redis_url: str, database_url: str | None = None) -> Finding:
    if settings.router.agents == "elsewhere":
        return Finding("pods", "ok", "AGENTS=elsewhere: external agents take the calls")
    if database_url and (overdue := await _leads_without_agent(database_url)):
        detail = f"no pod is registered, and {overdue} overdue leads wait for an agent: {START_AGENTS}"
        return Finding("pods", "problem", detail)
    try:
        async with _bus(settings, redis_url) as bus:
            counts = await bus_router.counts(RouterBus(bus, RouterKeys(settings.router_key_prefix)))
    except BusUnavailable as error:
        return Finding("pods", "problem", f"{error}. Check REDIS_URL")
    return judge_pods({pool.tier: pool.assigned for pool in counts.pools}, settings.router.tiers)


async def _leads_without_agent(database_url: str) -> int:
    """How many overdue leads need an agent, if there is none. Another check reports faults of Postgres."""
    try:
        async with _connection(database_url) as conn:
            if await agents.are_known(conn):
                return 0
            return int(sum(flow.leads for flow in await waiting.flows(conn, STREAMLESS) if flow.needs_agents))
    except (SERVER_ERROR, StoreUnavailable):
        return 0


def judge_pods(pods: Mapping[str, int], tiers: Tiers) -> Finding:
    """`pods`: how many there are of each tier. Every merchant's calls reach standard, overflow and basic."""
    total, common = sum(pods.values()), sum(pods.get(tier, 0) for tier in COMMON)
    if common:
        return Finding("pods", "ok", f"{total} registered, {common} of them in tiers of every merchant")
    if total:
        where = ", ".join(tier for tier, count in sorted(pods.items()) if count)
        count = "one" if total == 1 else total
        detail = f"{count} registered, in {where}: leads of merchants without that tier are not dialled."
        return Finding("pods", "warning", f"{detail} Start more, or set {COMMON_TIER}")
    # Which new pod is the first that every merchant's calls reach, counted from 1.
    order = assignment_order(tiers)
    end = next((place for place, tier in enumerate(order) if tier in COMMON and tiers[tier].target), None)
    first = 1 + sum(tiers[tier].target for tier in order[:end] if tier not in COMMON)
    if first == 1:
        return Finding("pods", "warning", f"no pod is registered, so no lead is dialled: {START_AGENTS}")
    detail = (
        f"no pod is registered, so no lead is dialled. By TIER_CONFIG pod {first} is the first in a tier of "
        "every merchant: start so many"
    )
    return Finding("pods", "warning", f"{detail}, or set {COMMON_TIER}")


async def examine_packs(settings: Settings, database_url: str) -> list[Finding]:
    """None if no policy names a pack, or policies cannot be read, which another check reports."""
    try:
        async with _connection(database_url) as conn:
            rows = await policy.read(conn, [PolicyKey("platform", "")])
            names = await policy.packs_named(conn)
    except (SERVER_ERROR, StoreUnavailable):
        return []
    edited = CallingPolicy.model_validate(rows[0].policy).edited_packs if rows else ()
    known = known_packs(edited or ())
    packs = [named(name, known) for name in names]
    return judge_packs(packs, settings.carrier.ring_timeout_s, datetime.now(UTC).date())


def judge_packs(packs: Sequence[Pack], ring_timeout_s: float, today: date) -> list[Finding]:
    texts = list(warnings(packs, today))
    for pack in packs:
        least_s = pack.abandoned_calls.ring_min_s if pack.abandoned_calls else None
        if least_s is not None and ring_timeout_s < least_s:
            texts.append(
                f"{pack.name} requires phones to ring for {least_s} s: RING_TIMEOUT is {ring_timeout_s:g} s"
            )
    if packs and not texts:
        return [Finding("packs", "ok", f"{len(packs)} named, each compared with the law within a year")]
    return [Finding("packs", "warning", text) for text in texts]


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
    public, fallback = settings.http.public_base_url, settings.http.fallback_base_url
    if not public:
        findings.append(_without_public_url(settings, accounts))
    # The second is used only when the first one fails, so nothing else detects that it is wrong.
    for what, base_url in (("PUBLIC_BASE_URL", public), ("FALLBACK_BASE_URL", fallback)):
        if base_url and known:
            findings.append(await _tried(what, base_url, min(accounts), keys))
        elif base_url:
            findings.append(Finding(what, "warning", "not checked: TRUNKLINE_SECRET_KEY is not set here"))
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
        async with _connection(database_url) as conn:
            rows = await store_accounts.active(conn)
    except (StoreUnavailable, NO_SUCH_TABLE):
        return {}, []  # the checks of Postgres and of migrations report it
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
        case Unavailable(reason=reason, is_unauthorized=True):
            hint = f"the carrier rejects these credentials ({reason}); its webhooks would be refused too"
            return Finding(_name(name), "problem", hint)
        case Unavailable(reason=reason):
            hint = f"cannot be reached: {reason}. Check the network and the base URL"
            return Finding(_name(name), "problem", hint)
        case []:
            return Finding(_name(name), "warning", "the credentials are valid; the account has no number")
        case numbers:
            return Finding(_name(name), "ok", f"the credentials are valid; {len(numbers)} numbers")


def _name(name: AccountName) -> str:
    carrier, account = name
    return carrier if account == "default" else f"{carrier} {account}"


async def _tried(what: str, base_url: str, name: AccountName, keys: CallbackKeys) -> Finding:
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
