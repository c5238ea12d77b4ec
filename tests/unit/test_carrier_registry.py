import pytest

from trunkline.errors import TrunklineError
from trunkline.model import STREAMLESS
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.carrier_registry import CARRIERS, CarrierAccount, CarrierConfigError
from trunkline.telephony.directory import carrier_for
from trunkline.telephony.documents import documents_for

KEYS = CallbackKeys.from_secrets(["secret"])
CREDENTIALS = {"account_sid": "AC1", "auth_token": "do not show"}


def test_a_carrier_is_found_by_its_name() -> None:
    assert carrier_for("twilio", CarrierAccount(CREDENTIALS, KEYS)).name == "twilio"


def test_an_unknown_carrier_is_named_with_the_known_ones() -> None:
    with pytest.raises(CarrierConfigError, match=r"'pigeon'.*twilio"):
        carrier_for("pigeon", CarrierAccount(CREDENTIALS, KEYS))


def test_every_missing_credential_is_named_at_once() -> None:
    with pytest.raises(TrunklineError, match="account_sid, auth_token"):
        carrier_for("twilio", CarrierAccount({"auth_token": ""}, KEYS))


def test_an_account_does_not_show_its_credentials() -> None:
    assert "do not show" not in repr(CarrierAccount(CREDENTIALS, KEYS))


def test_streamless_carriers_are_those_whose_documents_connect_no_stream() -> None:
    written = {name: documents_for(name) for name in CARRIERS}
    assert {name for name, documents in written.items() if documents and not documents.streams} == STREAMLESS
