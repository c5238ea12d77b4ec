"""Signatures that the standard's own library accepts, and secrets that only our key opens."""

from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks.webhooks import Webhook as Judge
from standardwebhooks.webhooks import WebhookVerificationError

from trunkline.jobs.platform import signing
from trunkline.jobs.platform.webhooks import RETRIES_S, retry_after_s
from trunkline.sealing import SealBroken, Sealer

NOW = datetime(2025, 1, 1, tzinfo=UTC)
BODY = '{"type":"lead.finished","name":"Zoë"}'.encode()


def headers(*keys: str, body: bytes = BODY) -> dict[str, str]:
    return signing.signed_headers("msg_1", int(datetime.now(UTC).timestamp()), body, keys)


def test_the_standardwebhooks_library_verifies_our_signature() -> None:
    key = signing.new_secret()
    assert Judge(key).verify(BODY, headers(key)) == {"type": "lead.finished", "name": "Zoë"}


def test_the_standardwebhooks_library_makes_the_same_signature() -> None:
    key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    at = datetime(2022, 11, 3, 20, 26, 10, tzinfo=UTC)
    ours = signing.signed_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", int(at.timestamp()), BODY, [key])
    assert ours["webhook-signature"] == Judge(key).sign("msg_p5jXN8AQM9LWM0D4loKWxJek", at, BODY.decode())


def test_while_a_secret_is_rotated_either_one_verifies() -> None:
    new, old = signing.new_secret(), signing.new_secret()
    for key in (new, old):
        Judge(key).verify(BODY, headers(new, old))


def test_the_standardwebhooks_library_refuses_another_body_and_another_secret() -> None:
    key = signing.new_secret()
    with pytest.raises(WebhookVerificationError):
        Judge(key).verify(BODY + b" ", headers(key))
    with pytest.raises(WebhookVerificationError):
        Judge(signing.new_secret()).verify(BODY, headers(key))


def test_a_sealed_secret_opens_under_its_key_also_while_keys_rotate() -> None:
    old, new = "o" * 32, "n" * 32
    sealed = Sealer.from_secrets([old]).seal("whsec_x")
    assert b"whsec" not in sealed
    assert Sealer.from_secrets([new, old]).open(sealed) == "whsec_x"
    with pytest.raises(SealBroken, match="TRUNKLINE_SECRET_KEY"):
        Sealer.from_secrets([new]).open(sealed)


def test_webhook_retries_go_on_for_three_days() -> None:
    assert timedelta(days=3) < timedelta(seconds=sum(RETRIES_S)) < timedelta(days=4)


@pytest.mark.parametrize(
    ("value", "wait_s"),
    [
        ("120", 120.0),
        ("Wed, 01 Jan 2025 00:01:00 GMT", 60.0),
        ("0", None),
        ("-5", None),
        ("99999999", None),
        ("soon", None),
        ("Wed, 01 Jan 2020 00:00:00 GMT", None),
        (None, None),
    ],
)
def test_retry_after_is_understood_or_left_aside(value: str | None, wait_s: float | None) -> None:
    assert retry_after_s(value, NOW) == wait_s
