import pytest

from trunkline.settings import load_settings
from trunkline.settings.reading import SettingsError
from trunkline.telephony.accounts import accounts_of
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.carrier_registry import CARRIERS
from trunkline.telephony.directory import carrier_for

KEYS = CallbackKeys.from_secrets(["secret"])
WHOLE = {
    "TWILIO_ACCOUNT_SID": "AC1",
    "TWILIO_AUTH_TOKEN": "twilio-token",
    "PLIVO_AUTH_ID": "MA1",
    "PLIVO_AUTH_TOKEN": "plivo-token",
    "EXOTEL_SID": "exo",
    "EXOTEL_API_KEY": "exo-key",
    "EXOTEL_API_TOKEN": "exo-token",
    "VAPI_API_KEY": "vapi-key",
    "VAPI_WEBHOOK_SECRET": "vapi-secret",
}


def test_the_environment_names_one_account_for_each_carrier() -> None:
    urls = {f"{name.upper()}_BASE_URL": f"https://{name}.example.com" for name in CARRIERS}
    accounts = accounts_of(load_settings(WHOLE | urls), KEYS)
    assert sorted(accounts) == sorted((carrier, "default") for carrier in CARRIERS)
    for (carrier, _), account in accounts.items():
        assert carrier_for(carrier, account).name == carrier
        assert account.base_url == f"https://{carrier}.example.com"


def test_without_variables_there_is_no_account() -> None:
    assert accounts_of(load_settings({}), KEYS) == {}


def test_each_account_has_its_pace_and_the_carriers_own_by_default() -> None:
    accounts = accounts_of(load_settings(WHOLE | {"PLIVO_CALLS_PER_SECOND": "0.5"}), KEYS)
    assert {carrier: account.starts_per_s for (carrier, _), account in accounts.items()} == {
        "twilio": 1.0,
        "plivo": 0.5,
        "exotel": 3.0,
        "vapi": 10.0,
    }


@pytest.mark.parametrize("missing", WHOLE)
def test_half_an_account_is_named_when_the_settings_are_read(missing: str) -> None:
    with pytest.raises(SettingsError, match=missing):
        load_settings({name: value for name, value in WHOLE.items() if name != missing})
