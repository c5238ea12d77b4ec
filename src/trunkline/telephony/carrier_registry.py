"""What is known of every carrier by its name alone: the fields of its accounts, and where carriers differ."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trunkline.errors import TrunklineError
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.carrier import DEFAULT_ACCOUNT


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

    def given(self, *names: str) -> tuple[str, ...]:
        """Those of these credentials that the account has."""
        return tuple(self.credentials[name] for name in names if self.credentials.get(name))


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
    # The previous token during a rotation, and the main account's if this is a subaccount: both sign webhooks.
    "plivo": Needs(("auth_id", "auth_token"), ("previous_auth_token", "main_auth_token"), shown=("auth_id",)),
    "exotel": Needs(
        ("sid", "api_key", "api_token"),
        # `webhook_password` is `off` only for a flow that cannot send user name and password with its URLs.
        ("app_id", "time_zone", "country_code", "webhook_password"),
        shown=("sid", "app_id", "time_zone", "country_code", "webhook_password"),
    ),
    "vapi": Needs(
        ("api_key", "webhook_secret"),
        # With a credential stored at Vapi, messages are signed; without one they carry the secret itself.
        ("previous_webhook_secret", "assistant_id", "credential_id"),
        shown=("assistant_id", "credential_id"),
    ),
}
CARRIERS = tuple(NEEDS)
# Carriers whose webhooks lack the cost of a call.
PRICES_LATER = frozenset({"twilio"})
# Carriers that may send no webhook when a call rings.
SILENT_WHILE_RINGING = frozenset({"exotel"})
