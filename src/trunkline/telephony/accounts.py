"""Builds carriers from stored accounts, and reads the accounts again every few seconds in every process."""

from collections.abc import Mapping
from dataclasses import dataclass

from trunkline.loops.base import Loop
from trunkline.store import accounts
from trunkline.store.accounts import StoredAccount
from trunkline.store.database import Connection, Database
from trunkline.telemetry import get_logger
from trunkline.telephony.callbacks import CallbackKeys, callback_url
from trunkline.telephony.carrier import CallbackKind
from trunkline.telephony.carrier_registry import CarrierAccount, CarrierConfigError
from trunkline.telephony.credentials import Opened, Unopenable, Vault
from trunkline.telephony.directory import CarrierDirectory, carrier_for

log = get_logger(__name__)

# The callbacks that an operator enters at a carrier for inbound calls.
ENTERED: tuple[CallbackKind, ...] = ("inbound", "status", "answer")


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


INTERVAL_S = 5.0
# After a change every process has read it within this time.
KNOWN_IN_S = INTERVAL_S + 1.0
# Reading a call list takes a few requests, one after the other.
UNUSED_REQUESTS = 6


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
