"""The accounts of this installation, by carrier and name: those of the environment, and those kept in Postgres.

A stored account takes the place of the environment's of the same name. What changes is used from the next call on,
without a restart: a carrier is built anew when its account differs from the one it was built from.
"""

import time
from collections.abc import Mapping
from typing import TypeAlias

from trunkline.telephony.carrier import DEFAULT_ACCOUNT, Carrier
from trunkline.telephony.carrier_registry import CarrierAccount, CarrierConfigError, carrier_for

AccountName: TypeAlias = tuple[str, str]


class CarrierDirectory:
    """Finds the carrier that a number dials through."""

    def __init__(self, accounts: Mapping[AccountName, CarrierAccount]):
        self._environment = dict(accounts)
        self._stored: dict[AccountName, CarrierAccount] = {}
        self._built: dict[AccountName, tuple[CarrierAccount, Carrier]] = {}
        # Replaced, and perhaps still in use by a request that began before.
        # With the moment of the loop's clock since which nobody is given it.
        self._retired: list[tuple[float, Carrier]] = []

    def get(self, carrier: str, account: str = DEFAULT_ACCOUNT) -> Carrier:
        name = (carrier, account)
        wanted = self._account(name)
        if wanted is None:
            raise CarrierConfigError(f"no {carrier} account named {account!r} is configured")
        built = self._built.get(name)
        if built is None or built[0] != wanted:
            self._retire(name)
            self._built[name] = (wanted, carrier_for(carrier, wanted))
        return self._built[name][1]

    def starts_per_s(self, carrier: str, account: str) -> float | None:
        """How fast an account may start calls. Ours, so that nothing waits in the carrier's own queue; unless it is
        said, what the carrier allows every account."""
        wanted = self._account((carrier, account))
        if wanted is None or wanted.starts_per_s is not None:
            return wanted.starts_per_s if wanted else None
        try:
            return self.get(carrier, account).limits.starts_per_s
        except CarrierConfigError:
            return None  # nothing can be sent through it

    def media_authorization(self, carrier: str | None, account: str | None, url: str) -> str | None:
        """The account that a call was made with opens its recording, at its carrier's own hosts."""
        if carrier is None or account is None:
            return None
        try:
            return self.get(carrier, account).media_authorization(url)
        except CarrierConfigError:
            return None

    @property
    def names(self) -> list[AccountName]:
        return sorted(self._environment.keys() | self._stored.keys())

    def replace_stored(self, accounts: Mapping[AccountName, CarrierAccount]) -> None:
        """What Postgres has now. Those that are gone are not used any more."""
        self._stored = dict(accounts)
        for name in list(self._built):
            if self._account(name) is None:
                self._retire(name)

    async def close_retired(self, unused_s: float) -> None:
        """Close those that nobody was given for so long: the requests that began before are over."""
        now_s = time.monotonic()
        closing = [carrier for since_s, carrier in self._retired if now_s - since_s >= unused_s]
        self._retired = [each for each in self._retired if each[1] not in closing]
        for carrier in closing:
            await carrier.aclose()

    async def aclose(self) -> None:
        for name in list(self._built):
            self._retire(name)
        await self.close_retired(unused_s=0)

    def _account(self, name: AccountName) -> CarrierAccount | None:
        return self._stored.get(name) or self._environment.get(name)

    def _retire(self, name: AccountName) -> None:
        built = self._built.pop(name, None)
        if built is not None:
            self._retired.append((time.monotonic(), built[1]))
