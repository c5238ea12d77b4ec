"""The accounts that the environment names: one for each carrier, under the name `default`."""

from collections.abc import Iterator

from pydantic import SecretStr

from trunkline.settings import Settings
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.carrier import DEFAULT_ACCOUNT
from trunkline.telephony.carrier_registry import NEEDS, CarrierAccount
from trunkline.telephony.directory import AccountName

Given = dict[str, str | SecretStr | None]


def accounts_of(settings: Settings, keys: CallbackKeys) -> dict[AccountName, CarrierAccount]:
    """The complete ones. The settings refuse an incomplete account."""
    return {
        (carrier, DEFAULT_ACCOUNT): CarrierAccount(
            {name: _plain(value) for name, value in given.items() if value},
            keys,
            base_url=base_url,
            request_timeout_s=settings.carrier.request_timeout_s,
            starts_per_s=starts_per_s,
        )
        for carrier, base_url, starts_per_s, given in _given(settings)
        if all(given[name] for name in NEEDS[carrier].required)
    }


def _given(settings: Settings) -> Iterator[tuple[str, str, float, Given]]:
    twilio, plivo, exotel, vapi = settings.twilio, settings.plivo, settings.exotel, settings.vapi
    named: Given = {"account_sid": twilio.account_sid, "auth_token": twilio.auth_token}
    yield "twilio", twilio.base_url, twilio.starts_per_s, named
    named = {"auth_id": plivo.auth_id, "auth_token": plivo.auth_token}
    yield "plivo", plivo.base_url, plivo.starts_per_s, named
    named = {
        "sid": exotel.sid,
        "api_key": exotel.api_key,
        "api_token": exotel.api_token,
        "app_id": exotel.app_id,
        "time_zone": exotel.time_zone,
    }
    yield "exotel", exotel.base_url, exotel.starts_per_s, named
    named = {
        "api_key": vapi.api_key,
        "webhook_secret": vapi.webhook_secret,
        "assistant_id": vapi.assistant_id,
    }
    yield "vapi", vapi.base_url, vapi.starts_per_s, named


def _plain(value: str | SecretStr | None) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else value or ""
