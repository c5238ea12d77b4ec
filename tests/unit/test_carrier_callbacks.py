from urllib.parse import parse_qs, urlsplit
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.telephony.callbacks import CallbackKeys, attempt_in, callback_url, verify_callback
from trunkline.telephony.carrier import CallbackKind, CallbackTag, Forged

KEYS = CallbackKeys.from_secrets(["first secret"])
BASE = "https://calls.example.com/base/"
kinds = st.sampled_from(["status", "answer", "inbound", "recording", "machine"])


@given(kinds, st.uuids())
def test_a_signed_callback_url_verifies_to_its_tag(kind: CallbackKind, attempt: UUID) -> None:
    url = callback_url(BASE, "twilio", kind, attempt, KEYS)
    assert url.startswith(f"https://calls.example.com/base/webhooks/twilio/{kind}?attempt={attempt}&sig=")
    assert verify_callback(url, KEYS) == CallbackTag("twilio", kind, attempt)
    assert attempt_in(url) == str(attempt)


def test_a_signed_callback_url_without_an_attempt_verifies() -> None:
    url = callback_url(BASE, "exotel", "inbound", None, KEYS)
    assert verify_callback(url, KEYS) == CallbackTag("exotel", "inbound", None)
    assert attempt_in(url) is None


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_a_resume_url_verifies_with_its_turn(turn: int) -> None:
    attempt = uuid4()
    url = callback_url(BASE, "twilio", "resume", attempt, KEYS, turn=turn)
    assert f"attempt={attempt}&turn={turn}&sig=" in url
    assert verify_callback(url, KEYS) == CallbackTag("twilio", "resume", attempt, turn=turn)


@pytest.mark.parametrize(
    "change",
    [
        lambda url: url.replace("turn=1", "turn=0"),
        lambda url: url.replace("turn=1", "turn=3"),
        lambda url: url.replace("turn=1", "turn=01"),
        lambda url: url.replace("turn=1&", ""),
        lambda url: url + "&turn=1",
        lambda url: url.replace("/resume", "/answer"),
    ],
)
def test_a_changed_turn_is_forged(change: "type[str]") -> None:
    url = callback_url(BASE, "twilio", "resume", uuid4(), KEYS, turn=1)
    assert isinstance(verify_callback(change(url), KEYS), Forged)


def test_a_url_of_an_old_secret_verifies_until_that_is_removed() -> None:
    url = callback_url(BASE, "twilio", "status", uuid4(), CallbackKeys.from_secrets(["old"]))
    assert isinstance(verify_callback(url, CallbackKeys.from_secrets(["new", "old"])), CallbackTag)
    assert isinstance(verify_callback(url, CallbackKeys.from_secrets(["new"])), Forged)


def test_new_urls_are_signed_with_the_first_secret() -> None:
    url = callback_url(BASE, "twilio", "status", uuid4(), CallbackKeys.from_secrets(["new", "old"]))
    assert isinstance(verify_callback(url, CallbackKeys.from_secrets(["new"])), CallbackTag)


@pytest.mark.parametrize(
    "change",
    [
        lambda url: url.replace("/status", "/answer"),
        lambda url: url.replace("/status", "/other"),
        lambda url: url.replace("attempt=", "attempt=f"),
        lambda url: url.split("&sig=")[0],
        lambda url: url + "x",
        lambda url: url + "&sig=again",
        lambda url: url + f"&attempt={uuid4()}",
        lambda url: url.replace("webhooks", "hooks"),
        lambda url: f"https://calls.example.com/status?{urlsplit(url).query}",
    ],
)
def test_a_changed_url_is_forged(change: "type[str]") -> None:
    url = callback_url(BASE, "twilio", "status", uuid4(), KEYS)
    assert isinstance(verify_callback(change(url), KEYS), Forged)


def test_the_signature_of_one_attempt_does_not_fit_another() -> None:
    one, other = (callback_url(BASE, "twilio", "status", uuid4(), KEYS) for _ in range(2))
    borrowed = parse_qs(urlsplit(one).query)["sig"][0]
    own = parse_qs(urlsplit(other).query)["sig"][0]
    assert isinstance(verify_callback(other.replace(own, borrowed), KEYS), Forged)


def test_the_secret_itself_is_not_the_key_and_is_not_shown() -> None:
    assert b"first secret" not in KEYS.keys[0]
    assert "first secret" not in repr(KEYS)
    assert KEYS.keys[0].hex() not in repr(KEYS)


@pytest.mark.parametrize("secrets", [[], [""], ["good", ""]])
def test_callback_keys_need_a_secret(secrets: list[str]) -> None:
    with pytest.raises(ValueError, match="secret"):
        CallbackKeys.from_secrets(secrets)
