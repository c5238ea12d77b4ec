"""The carriers there are, by name, each built from explicit values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trunkline.errors import TrunklineError
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.carrier import Carrier
from trunkline.telephony.session import CarrierSession, basic
from trunkline.telephony.twilio import BASE_URL as TWILIO_BASE_URL
from trunkline.telephony.twilio import Twilio


class CarrierConfigError(TrunklineError):
    """An account cannot be used as it is configured."""


@dataclass(frozen=True, slots=True)
class CarrierAccount:
    """Credentials by the names the carrier gives them: `account_sid` and `auth_token` for Twilio."""

    credentials: Mapping[str, str] = field(repr=False)
    callback_keys: CallbackKeys = field(repr=False)
    base_url: str | None = None
    request_timeout_s: float = 10.0


def carrier_for(name: str, account: CarrierAccount) -> Carrier:
    if name not in _BUILDERS:
        raise CarrierConfigError(f"unknown carrier {name!r}; there are: {', '.join(sorted(_BUILDERS))}")
    return _BUILDERS[name](account)


def _twilio(account: CarrierAccount) -> Carrier:
    account_sid, auth_token = _required(account, "twilio", "account_sid", "auth_token")
    previous = account.credentials.get("previous_auth_token", "")
    return Twilio(
        account_sid,
        auth_token,
        account.callback_keys,
        base_url=account.base_url or TWILIO_BASE_URL,
        previous_auth_tokens=(previous,) if previous else (),
        session=CarrierSession(basic(account_sid, auth_token), total_timeout_s=account.request_timeout_s),
    )


def _required(account: CarrierAccount, carrier: str, *names: str) -> list[str]:
    missing = [name for name in names if not account.credentials.get(name)]
    if missing:
        raise CarrierConfigError(f"the {carrier} account lacks: {', '.join(missing)}")
    return [account.credentials[name] for name in names]


_BUILDERS: Mapping[str, Callable[[CarrierAccount], Carrier]] = {"twilio": _twilio}
