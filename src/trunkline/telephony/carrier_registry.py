"""All carriers, by name, each built from explicit values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from trunkline.errors import TrunklineError
from trunkline.telephony import exotel, plivo, twilio, vapi
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.carrier import DEFAULT_ACCOUNT, Carrier
from trunkline.telephony.exotel_webhooks import INDIA, Locale
from trunkline.telephony.session import CarrierSession, basic


class CarrierConfigError(TrunklineError):
    """An account cannot be used as it is configured."""


@dataclass(frozen=True, slots=True)
class CarrierAccount:
    """Credentials under the carrier's own names: `account_sid` and `auth_token` for Twilio."""

    credentials: Mapping[str, str] = field(repr=False)
    callback_keys: CallbackKeys = field(repr=False)
    base_url: str | None = None
    request_timeout_s: float = 10.0
    name: str = DEFAULT_ACCOUNT
    starts_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Needs:
    """The fields of an account of a carrier. Those in `shown` are no secrets."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return self.required + self.optional


NEEDS: Mapping[str, Needs] = {
    "twilio": Needs(("account_sid", "auth_token"), ("previous_auth_token",), shown=("account_sid",)),
    "plivo": Needs(("auth_id", "auth_token"), ("previous_auth_token", "main_auth_token"), shown=("auth_id",)),
    "exotel": Needs(
        ("sid", "api_key", "api_token"),
        ("app_id", "time_zone", "country_code", "webhook_password"),
        shown=("sid", "app_id", "time_zone", "country_code", "webhook_password"),
    ),
    "vapi": Needs(
        ("api_key", "webhook_secret"),
        ("previous_webhook_secret", "assistant_id", "credential_id"),
        shown=("assistant_id", "credential_id"),
    ),
}
CARRIERS = tuple(NEEDS)
# Carriers whose webhooks lack the cost of a call.
PRICES_LATER = frozenset({"twilio"})
# Carriers that may send no webhook when a call rings.
SILENT_WHILE_RINGING = frozenset({"exotel"})
# Carriers that run the agent themselves: their calls need no pod.
STREAMLESS = frozenset(
    carrier.name for carrier in (twilio.Twilio, plivo.Plivo, exotel.Exotel, vapi.Vapi) if not carrier.streams
)


def carrier_for(name: str, account: CarrierAccount) -> Carrier:
    if name not in _BUILDERS:
        raise CarrierConfigError(f"unknown carrier {name!r}; there are: {', '.join(sorted(_BUILDERS))}")
    missing = [needed for needed in NEEDS[name].required if not account.credentials.get(needed)]
    if missing:
        raise CarrierConfigError(f"the {name} account lacks: {', '.join(missing)}")
    return _BUILDERS[name](account)


def _twilio(account: CarrierAccount) -> Carrier:
    given = account.credentials
    account_sid, auth_token = given["account_sid"], given["auth_token"]
    return twilio.Twilio(
        account_sid,
        auth_token,
        account.callback_keys,
        base_url=account.base_url or twilio.BASE_URL,
        previous_auth_tokens=_present(given, "previous_auth_token"),
        session=_session(account, basic(account_sid, auth_token)),
    )


def _plivo(account: CarrierAccount) -> Carrier:
    given = account.credentials
    auth_id, auth_token = given["auth_id"], given["auth_token"]
    return plivo.Plivo(
        auth_id,
        auth_token,
        account.callback_keys,
        base_url=account.base_url or plivo.BASE_URL,
        other_auth_tokens=_present(given, "previous_auth_token", "main_auth_token"),
        session=_session(account, basic(auth_id, auth_token)),
    )


def _exotel(account: CarrierAccount) -> Carrier:
    given = account.credentials
    return exotel.Exotel(
        given["sid"],
        given["api_key"],
        given["api_token"],
        account.callback_keys,
        app_id=given.get("app_id", ""),
        base_url=account.base_url or exotel.BASE_URL,
        account=account.name,
        asks_password=given.get("webhook_password") != "off",
        locale=Locale(_zone(given.get("time_zone", "")), given.get("country_code") or "91"),
        session=_session(account, basic(given["api_key"], given["api_token"])),
    )


def _vapi(account: CarrierAccount) -> Carrier:
    given = account.credentials
    return vapi.Vapi(
        given["api_key"],
        _present(given, "webhook_secret", "previous_webhook_secret"),
        account.callback_keys,
        assistant_id=given.get("assistant_id", ""),
        credential_id=given.get("credential_id", ""),
        base_url=account.base_url or vapi.BASE_URL,
        session=_session(account, f"Bearer {given['api_key']}"),
    )


def _session(account: CarrierAccount, authorization: str) -> CarrierSession:
    return CarrierSession(authorization, total_timeout_s=account.request_timeout_s)


def _present(given: Mapping[str, str], *names: str) -> tuple[str, ...]:
    return tuple(given[name] for name in names if given.get(name))


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name) if name else INDIA
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise CarrierConfigError(f"there is no time zone {name!r}") from error


_BUILDERS: Mapping[str, Callable[[CarrierAccount], Carrier]] = {
    "twilio": _twilio,
    "plivo": _plivo,
    "exotel": _exotel,
    "vapi": _vapi,
}
