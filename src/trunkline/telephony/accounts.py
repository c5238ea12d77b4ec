"""The accounts of carriers: of the environment, and stored in Postgres with sealed credentials.

A sealed text names its account: copied to another row, it does not open there. Every process reads all stored accounts
every five seconds. In between, one process may dial with an account whose webhooks another would refuse, and then the
carrier hangs up on the person. So before a process refuses a webhook whose URL the platform signed, but whose account
or signature it cannot verify, it reads the accounts once more (`AccountRefresher`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from pydantic import SecretStr

from trunkline.loops.base import Loop
from trunkline.sealing import SecretBox
from trunkline.settings import Settings
from trunkline.store import accounts
from trunkline.store.accounts import StoredAccount
from trunkline.store.database import Connection, Database
from trunkline.telemetry import get_logger, metrics
from trunkline.telephony.callbacks import CallbackKeys, callback_url
from trunkline.telephony.carrier import DEFAULT_ACCOUNT, CallbackKind
from trunkline.telephony.carrier_registry import NEEDS, CarrierAccount, CarrierConfigError
from trunkline.telephony.directory import AccountName, CarrierDirectory, carrier_for

log = get_logger(__name__)

# The callbacks that an operator enters at a carrier for inbound calls.
ENTERED: tuple[CallbackKind, ...] = ("inbound", "status", "answer")
INTERVAL_S = 5.0
# After a change every process has read it within this time.
KNOWN_IN_S = INTERVAL_S + 1.0
# Reading a call list takes a few requests, one after the other.
UNUSED_REQUESTS = 6
REFRESH_INTERVAL_S = 0.25
# A part of the 1.2 s within which an answer webhook gets its response.
REFRESH_WAIT_MAX_S = 0.5
REFRESH_SHARE_MAX = 0.2

RefreshResult = Literal["looked", "unavailable"]


def accounts_of(settings: Settings, keys: CallbackKeys) -> dict[AccountName, CarrierAccount]:
    """Those that the environment names: one for each carrier, under the name `default`. The settings refuse an
    incomplete account."""
    twilio, plivo, exotel, vapi = settings.twilio, settings.plivo, settings.exotel, settings.vapi
    given: dict[str, dict[str, str | SecretStr | None]] = {
        "twilio": {"account_sid": twilio.account_sid, "auth_token": twilio.auth_token},
        "plivo": {"auth_id": plivo.auth_id, "auth_token": plivo.auth_token},
        "exotel": {
            "sid": exotel.sid,
            "api_key": exotel.api_key,
            "api_token": exotel.api_token,
            "app_id": exotel.app_id,
            "time_zone": exotel.time_zone,
        },
        "vapi": {
            "api_key": vapi.api_key,
            "webhook_secret": vapi.webhook_secret,
            "assistant_id": vapi.assistant_id,
        },
    }
    base_urls = twilio.base_url, plivo.base_url, exotel.base_url, vapi.base_url
    paces = twilio.starts_per_s, plivo.starts_per_s, exotel.starts_per_s, vapi.starts_per_s
    found = {}
    for carrier, base_url, starts_per_s in zip(given, base_urls, paces, strict=True):
        credentials = {
            name: value.get_secret_value() if isinstance(value, SecretStr) else value
            for name, value in given[carrier].items()
            if value
        }
        if credentials.keys() >= set(NEEDS[carrier].required):
            found[carrier, DEFAULT_ACCOUNT] = CarrierAccount(
                credentials, keys, base_url, settings.carrier.request_timeout_s, starts_per_s=starts_per_s
            )
    return found


@dataclass(frozen=True, slots=True)
class Opened:
    credentials: Mapping[str, str] = field(repr=False)
    # Sealed under the old key during a rotation: seal it again.
    is_stale: bool


@dataclass(frozen=True, slots=True)
class Unopenable:
    """Sealed under an unknown key, for another account, or not by this platform."""

    reason: str


class _Content(msgspec.Struct, frozen=True):
    carrier: str
    account: str
    credentials: dict[str, str]


class Vault:
    def __init__(self, box: SecretBox) -> None:
        self._box = box

    @classmethod
    def from_secrets(cls, secrets: Sequence[str]) -> "Vault":
        return cls(SecretBox(secrets, b"trunkline carrier credentials 1"))

    def seal(self, carrier: str, account: str, credentials: Mapping[str, str]) -> bytes:
        return self._box.seal(msgspec.json.encode(_Content(carrier, account, dict(credentials))))

    def open(self, carrier: str, account: str, sealed: bytes) -> Opened | Unopenable:
        opened = self._box.open(sealed)
        if opened is None:
            return Unopenable("its key is not among TRUNKLINE_SECRET_KEY")
        try:
            content = msgspec.json.decode(opened.content, type=_Content)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return Unopenable("not the credentials of an account")
        if (content.carrier, content.account) != (carrier, account):
            return Unopenable("sealed for another account")
        return Opened(content.credentials, opened.is_stale)


@dataclass(frozen=True, slots=True)
class AccountService:
    """Operations on accounts: sealing, checking, their URLs, and refreshing the directory."""

    database: Database
    directory: CarrierDirectory
    vault: Vault
    keys: CallbackKeys
    public_base_url: str
    request_timeout_s: float = 10.0

    async def refresh(self) -> int:
        """Read every account and use it from now on. Returns how many there are."""
        async with self.database.connection() as conn:
            stored = await accounts.active(conn)
            opened = {(row.carrier, row.name): await self._opened(conn, row) for row in stored}
        known = {name: account for name, account in opened.items() if account}
        self.directory.replace_stored(known)
        return len(known)

    def credentials(self, account: StoredAccount) -> Mapping[str, str] | Unopenable:
        opened = self.vault.open(account.carrier, account.name, account.credentials)
        return opened.credentials if isinstance(opened, Opened) else opened

    def problem(
        self, carrier: str, name: str, credentials: Mapping[str, str], base_url: str | None
    ) -> str | None:
        """Why an account cannot be used; None if it can."""
        try:
            carrier_for(carrier, CarrierAccount(credentials, self.keys, base_url, name=name))
        except CarrierConfigError as error:
            return str(error)
        return None

    def urls(self, carrier: str, name: str) -> dict[str, str]:
        """The URLs to enter at the carrier. They are signed: a request with one of them is accepted."""
        entered = self.directory.get(carrier, name).entry_url
        return {
            kind: entered(callback_url(self.public_base_url, carrier, kind, None, self.keys, name))
            for kind in ENTERED
        }

    async def _opened(self, conn: Connection, row: StoredAccount) -> CarrierAccount | None:
        opened = self.vault.open(row.carrier, row.name, row.credentials)
        if isinstance(opened, Unopenable):
            log.error("account.unopenable", carrier=row.carrier, account=row.name, reason=opened.reason)
            return None
        if opened.is_stale:
            sealed = self.vault.seal(row.carrier, row.name, opened.credentials)
            await accounts.reseal(conn, row.id, row.credentials, sealed)
            log.info("account.resealed", carrier=row.carrier, account=row.name)
        return CarrierAccount(
            opened.credentials,
            self.keys,
            row.base_url,
            self.request_timeout_s,
            name=row.name,
            starts_per_s=row.starts_per_s,
        )


class AccountsRefresh(Loop):
    """Every process that talks to carriers runs it. The first run comes before the first dial."""

    name = "accounts"

    def __init__(self, service: AccountService, interval_s: float = INTERVAL_S):
        super().__init__(interval_s)
        self._service = service

    async def run_once(self) -> int:
        await self._service.directory.close_retired(
            unused_s=UNUSED_REQUESTS * self._service.request_timeout_s
        )
        await self._service.refresh()
        return 0


class AccountRefresher:
    """Reads the accounts again on demand: one may have been added, or its token replaced. All webhooks that wait share
    one reading; the next follows after 0.25 s at the earliest, and readings take at most 20 % of the time."""

    def __init__(
        self,
        refresh: Callable[[], Awaitable[object]],
        *,
        interval_s: float = REFRESH_INTERVAL_S,
        wait_max_s: float = REFRESH_WAIT_MAX_S,
    ):
        self._refresh = refresh
        self._interval_s = interval_s
        self._wait_max_s = wait_max_s
        self._next_s = 0.0
        self._reading: asyncio.Task[RefreshResult] | None = None
        # The reading that has not begun yet: it serves callers that come now; one that is under way does not.
        self._due: asyncio.Task[RefreshResult] | None = None

    async def again(self) -> RefreshResult:
        """Returns after a new reading of the accounts, or after the timeout."""
        due = self._due
        if due is None:
            due = self._due = asyncio.create_task(self._read())
        await asyncio.wait({due}, timeout=self._wait_max_s)
        result: RefreshResult = due.result() if due.done() and not due.cancelled() else "unavailable"
        metrics.ACCOUNT_LOOKS.labels(result).inc()
        return result

    async def _read(self) -> RefreshResult:
        loop = asyncio.get_running_loop()
        before = self._reading
        if before is not None:
            await asyncio.wait({before})
        await asyncio.sleep(max(0.0, self._next_s - loop.time()))
        self._reading, self._due = self._due, None
        began_s = loop.time()
        try:
            await self._refresh()
            return "looked"
        except Exception as error:  # whatever it is, the webhook is verified by the accounts read before
            log.warning("account.refresh_failed", error=str(error) or type(error).__name__)
            return "unavailable"
        finally:
            took_s = loop.time() - began_s
            self._next_s = began_s + max(self._interval_s, took_s / REFRESH_SHARE_MAX)
            self._reading = None
