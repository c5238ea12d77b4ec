import pytest

from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.carrier_registry import CarrierAccount, CarrierConfigError
from trunkline.telephony.directory import CarrierDirectory

KEYS = CallbackKeys.from_secrets(["secret"])


def account(token: str = "token", **more: object) -> CarrierAccount:
    return CarrierAccount({"account_sid": "AC1", "auth_token": token}, KEYS, **more)  # type: ignore[arg-type]


def test_the_directory_builds_a_carrier_once() -> None:
    directory = CarrierDirectory({("twilio", "default"): account()})
    assert directory.get("twilio") is directory.get("twilio", "default")


def test_a_stored_account_is_found_beside_the_environments_and_takes_its_place() -> None:
    directory = CarrierDirectory({("twilio", "default"): account("of the environment")})
    before = directory.get("twilio")
    directory.replace_stored({("twilio", "second"): account("second")})
    assert directory.names == [("twilio", "default"), ("twilio", "second")]
    assert directory.get("twilio") is before
    assert directory.get("twilio", "second") is not before
    directory.replace_stored({("twilio", "default"): account("stored")})
    assert directory.get("twilio") is not before


def test_a_changed_account_is_used_from_the_next_call_on_and_an_equal_one_changes_nothing() -> None:
    directory = CarrierDirectory({})
    directory.replace_stored({("twilio", "a"): account("old")})
    old = directory.get("twilio", "a")
    directory.replace_stored({("twilio", "a"): account("old")})
    assert directory.get("twilio", "a") is old
    directory.replace_stored({("twilio", "a"): account("new")})
    assert directory.get("twilio", "a") is not old


def test_the_directory_names_a_missing_account() -> None:
    directory = CarrierDirectory({})
    directory.replace_stored({("twilio", "a"): account()})
    directory.get("twilio", "a")
    directory.replace_stored({})
    with pytest.raises(CarrierConfigError, match="no twilio account named 'a'"):
        directory.get("twilio", "a")


async def test_a_replaced_carrier_is_closed_after_it_was_unused_for_a_while() -> None:
    directory = CarrierDirectory({})
    directory.replace_stored({("twilio", "a"): account("old")})
    old = directory.get("twilio", "a")
    closed: list[object] = []

    async def close() -> None:
        closed.append(old)

    old.aclose = close  # type: ignore[method-assign]
    directory.replace_stored({("twilio", "a"): account("new")})
    directory.get("twilio", "a")
    assert closed == []
    await directory.close_retired(unused_s=3600)
    assert closed == [], "a request that began before the change may still be under way"
    await directory.close_retired(unused_s=0)
    assert closed == [old]
    await directory.aclose()
    assert closed == [old]


def test_the_directory_returns_an_accounts_own_starts_per_s() -> None:
    directory = CarrierDirectory({("twilio", "default"): account(starts_per_s=7.5)})
    assert directory.starts_per_s("twilio", "default") == 7.5
    assert directory.starts_per_s("twilio", "unknown") is None


async def test_an_account_without_a_pace_has_its_carriers_own() -> None:
    directory = CarrierDirectory({})
    broken = CarrierAccount({"account_sid": "AC1"}, KEYS)
    directory.replace_stored({("twilio", "a"): account(), ("twilio", "b"): broken})
    assert directory.starts_per_s("twilio", "a") == directory.get("twilio", "a").limits.starts_per_s
    assert directory.starts_per_s("twilio", "b") is None, "it can start nothing"
    await directory.aclose()
