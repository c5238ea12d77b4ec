"""The accounts of this installation, by carrier and name: those of the environment, and those stored in Postgres.

A stored account replaces the environment's of the same name. A change takes effect without a restart: the directory
builds a carrier again when its account differs from the one it was built from.
"""

import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

from trunkline.telephony.carrier import DEFAULT_ACCOUNT, Carrier
from trunkline.telephony.carrier_registry import NEEDS, CarrierAccount, CarrierConfigError
from trunkline.telephony.exotel import Exotel
from trunkline.telephony.plivo import Plivo
from trunkline.telephony.twilio import Twilio
from trunkline.telephony.vapi import Vapi

AccountName: TypeAlias = tuple[str, str]

_CARRIERS: Mapping[str, Callable[[CarrierAccount], Carrier]] = {
    "twilio": Twilio,
    "plivo": Plivo,
    "exotel": Exotel,
    "vapi": Vapi,
}


def carrier_for(name: str, account: CarrierAccount) -> Carrier:
    if name not in _CARRIERS:
        raise CarrierConfigError(f"unknown carrier {name!r}; there are: {', '.join(sorted(_CARRIERS))}")
    missing = [needed for needed in NEEDS[name].required if not account.credentials.get(needed)]
    if missing:
        raise CarrierConfigError(f"the {name} account lacks: {', '.join(missing)}")
    return _CARRIERS[name](account)


class CarrierDirectory:
    """Finds the carrier that a number dials through. It is built when its account is read: no call waits for that."""

    def __init__(self, accounts: Mapping[AccountName, CarrierAccount]):
        self._environment = dict(accounts)
        # Each with the account that it was built from; a text: why it cannot be built.
        self._built: dict[AccountName, tuple[CarrierAccount, Carrier | str]] = {}
        # Replaced, and perhaps still in use by a request that began before; with the time since which the directory
        # does not return it.
        self._retired: list[tuple[float, Carrier]] = []
        self.replace_stored({})

    def get(self, carrier: str, account: str = DEFAULT_ACCOUNT) -> Carrier:
        built = self._built.get((carrier, account))
        if built is None:
            raise CarrierConfigError(f"no {carrier} account named {account!r} is configured")
        if isinstance(built[1], str):
            raise CarrierConfigError(built[1])
        return built[1]

    def find(self, carrier: str, account: str) -> Carrier | None:
        """None: no such account is configured, or nothing can be sent through it."""
        try:
            return self.get(carrier, account)
        except CarrierConfigError:
            return None

    def starts_per_s(self, carrier: str, account: str) -> float | None:
        """How fast the platform starts calls of an account, so that none waits in the carrier's own queue; by default
        the carrier's limit for every account."""
        built = self._built.get((carrier, account))
        if built is None or built[0].starts_per_s is not None:
            return built[0].starts_per_s if built else None
        return None if isinstance(built[1], str) else built[1].limits.starts_per_s

    def media_authorization(self, carrier: str | None, account: str | None, url: str) -> str | None:
        """The account that a call was made with opens its recording, at its carrier's own hosts."""
        if carrier is None or account is None:
            return None
        found = self.find(carrier, account)
        return found.media_authorization(url) if found else None

    @property
    def names(self) -> list[AccountName]:
        return sorted(self._built)

    def replace_stored(self, accounts: Mapping[AccountName, CarrierAccount]) -> None:
        """Use the accounts that Postgres has now, and no longer those that it has not."""
        wanted = self._environment | dict(accounts)
        for name, (account, _) in list(self._built.items()):
            if wanted.get(name) != account:
                self._retire(name)
        for name, account in wanted.items():
            if name not in self._built:
                try:
                    self._built[name] = account, carrier_for(name[0], account)
                except CarrierConfigError as error:
                    self._built[name] = account, str(error)

    async def close_retired(self, unused_s: float) -> None:
        """Close carriers that the directory has not returned for `unused_s`: their last requests have ended."""
        now_s = time.monotonic()
        closing = [carrier for since_s, carrier in self._retired if now_s - since_s >= unused_s]
        self._retired = [each for each in self._retired if each[1] not in closing]
        for carrier in closing:
            await carrier.aclose()

    async def aclose(self) -> None:
        for name in list(self._built):
            self._retire(name)
        await self.close_retired(unused_s=0)

    def _retire(self, name: AccountName) -> None:
        _, carrier = self._built.pop(name)
        if not isinstance(carrier, str):
            self._retired.append((time.monotonic(), carrier))
