"""The credentials of an account go to its carrier's own hosts and to no others, whatever a webhook says."""

import pytest

from trunkline.http.connections import basic
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.carrier import Carrier
from trunkline.telephony.carrier_registry import CarrierAccount
from trunkline.telephony.exotel import Exotel
from trunkline.telephony.plivo import Plivo
from trunkline.telephony.twilio import Twilio
from trunkline.telephony.vapi import Vapi

KEYS = CallbackKeys.from_secrets(["a secret of the tests"])
CARRIERS: dict[str, Carrier] = {
    "twilio": Twilio(CarrierAccount({"account_sid": "AC1", "auth_token": "token"}, KEYS)),
    "plivo": Plivo(CarrierAccount({"auth_id": "MA1", "auth_token": "token"}, KEYS)),
    "exotel": Exotel(CarrierAccount({"sid": "exo", "api_key": "key", "api_token": "token"}, KEYS)),
    "vapi": Vapi(CarrierAccount({"api_key": "key", "webhook_secret": "secret"}, KEYS)),
}


@pytest.mark.parametrize(
    ("carrier", "url", "proof"),
    [
        ("twilio", "https://api.twilio.com/2010-04-01/Accounts/AC1/Recordings/RE1", basic("AC1", "token")),
        (
            "twilio",
            "https://api.dublin.ie1.twilio.com/2010-04-01/Accounts/AC1/Recordings/RE1",
            basic("AC1", "token"),
        ),
        ("plivo", "https://media.plivo.com/v1/Account/MA1/Recording/1.mp3", basic("MA1", "token")),
        ("exotel", "https://recordings.exotel.com/exotelrecordings/exo/1.mp3", basic("key", "token")),
    ],
)
def test_media_of_the_carriers_own_hosts_is_fetched_with_credentials(
    carrier: str, url: str, proof: str
) -> None:
    assert CARRIERS[carrier].media_authorization(url) == proof


@pytest.mark.parametrize("carrier", sorted(CARRIERS))
@pytest.mark.parametrize(
    "url",
    [
        "https://s3.amazonaws.com/recordings/1.mp3",
        "https://twilio.com.evil.example/1",
        "https://eviltwilio.com/1",
        "http://media.plivo.com/1",
        "http://recordings.exotel.com/1",
        "http://api.twilio.com/1",
        "https://api.twilio.com:bad/1",
        "https://[half/1",
        "",
    ],
)
def test_media_of_other_hosts_is_fetched_without_credentials(carrier: str, url: str) -> None:
    assert CARRIERS[carrier].media_authorization(url) is None
