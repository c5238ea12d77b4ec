import pytest

from trunkline.telephony.accounts import Opened, Unopenable, Vault

CREDENTIALS = {"account_sid": "AC1", "auth_token": "do not show"}


def test_sealed_credentials_open_and_are_not_shown() -> None:
    vault = Vault.from_secrets(["a secret of the tests"])
    sealed = vault.seal("twilio", "default", CREDENTIALS)
    assert b"do not show" not in sealed
    opened = vault.open("twilio", "default", sealed)
    assert opened == Opened(CREDENTIALS, is_stale=False)
    assert "do not show" not in repr(opened)


def test_credentials_of_the_old_key_open_as_stale_while_keys_are_rotated() -> None:
    sealed = Vault.from_secrets(["old"]).seal("twilio", "default", CREDENTIALS)
    both = Vault.from_secrets(["new", "old"])
    assert both.open("twilio", "default", sealed) == Opened(CREDENTIALS, is_stale=True)
    again = both.seal("twilio", "default", CREDENTIALS)
    assert Vault.from_secrets(["new"]).open("twilio", "default", again) == Opened(CREDENTIALS, is_stale=False)
    assert isinstance(Vault.from_secrets(["new"]).open("twilio", "default", sealed), Unopenable)


@pytest.mark.parametrize(("carrier", "account"), [("plivo", "default"), ("twilio", "other")])
def test_credentials_moved_to_another_account_do_not_open(carrier: str, account: str) -> None:
    vault = Vault.from_secrets(["secret"])
    assert isinstance(vault.open(carrier, account, vault.seal("twilio", "default", CREDENTIALS)), Unopenable)


@pytest.mark.parametrize("sealed", [b"", b"nonsense", b"gAAAAA"])
def test_bytes_not_sealed_by_the_vault_do_not_open(sealed: bytes) -> None:
    assert isinstance(Vault.from_secrets(["secret"]).open("twilio", "default", sealed), Unopenable)


@pytest.mark.parametrize("secrets", [[], [""], ["good", ""]])
def test_a_vault_needs_a_secret(secrets: list[str]) -> None:
    with pytest.raises(ValueError, match="secret"):
        Vault.from_secrets(secrets)
