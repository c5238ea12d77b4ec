"""The accounts of this installation, by carrier and account name, each built once and closed together."""

from collections.abc import Mapping

from trunkline.telephony.carrier import DEFAULT_ACCOUNT, Carrier
from trunkline.telephony.carriers import CarrierAccount, CarrierConfigError, carrier_for


class CarrierDirectory:
    """Finds the carrier that a number dials through."""

    def __init__(self, accounts: Mapping[tuple[str, str], CarrierAccount]):
        self._accounts = accounts
        self._carriers: dict[tuple[str, str], Carrier] = {}

    def get(self, carrier: str, account: str = DEFAULT_ACCOUNT) -> Carrier:
        key = (carrier, account)
        if key not in self._carriers:
            if key not in self._accounts:
                raise CarrierConfigError(f"no {carrier} account named {account!r} is configured")
            self._carriers[key] = carrier_for(carrier, self._accounts[key])
        return self._carriers[key]

    @property
    def names(self) -> list[tuple[str, str]]:
        return sorted(self._accounts)

    async def aclose(self) -> None:
        for carrier in self._carriers.values():
            await carrier.aclose()
