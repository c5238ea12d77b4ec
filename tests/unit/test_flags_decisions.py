"""For whom a flag is on."""

import hashlib
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.control.flags import DEFINITIONS, Because, bucket, decide, translate
from trunkline.schema.flags import Flag


def flag(**more: Any) -> Flag:
    values: dict[str, Any] = {
        "name": "trial",
        "enabled": True,
        "percentage": 0,
        "resellers": {},
        "merchants": {},
        "reason": "r",
        "changed_by": "key:1",
        "changed_at": datetime(2030, 1, 1, tzinfo=UTC),
    }
    return Flag(**values | more)


def on(it: Flag, reseller_id: str | None = "acme", merchant_id: str | None = "shop") -> tuple[bool, Because]:
    return decide(it, reseller_id=reseller_id, merchant_id=merchant_id, key=merchant_id)


def test_a_disabled_flag_is_off_even_for_those_it_names() -> None:
    it = flag(enabled=False, percentage=100, resellers={"acme": True}, merchants={"shop": True})
    assert on(it) == (False, Because.DISABLED)


@pytest.mark.parametrize(("reseller", "merchant"), [(True, False), (False, True)])
def test_a_merchants_entry_takes_precedence_over_its_resellers(reseller: bool, merchant: bool) -> None:
    it = flag(resellers={"acme": reseller}, merchants={"shop": merchant})
    assert on(it) == (merchant, Because.MERCHANT)
    assert on(it, merchant_id="another") == (reseller, Because.RESELLER)


def test_a_merchant_list_works_beside_0_percent() -> None:
    it = flag(percentage=0, merchants={"shop": True})
    assert on(it)[0] is True
    assert on(it, merchant_id="another")[0] is False


def test_a_reseller_can_be_left_out_of_100_percent() -> None:
    it = flag(percentage=100, resellers={"acme": False})
    assert on(it) == (False, Because.RESELLER)
    assert on(it, reseller_id="another") == (True, Because.PERCENTAGE)


@given(key=st.text(min_size=1, max_size=20))
def test_zero_percent_is_off_and_100_percent_is_on_for_every_key(key: str) -> None:
    assert decide(flag(percentage=0), reseller_id=None, merchant_id=None, key=key)[0] is False
    assert decide(flag(percentage=100), reseller_id=None, merchant_id=None, key=key)[0] is True


@given(key=st.text(max_size=20), small=st.integers(0, 100), large=st.integers(0, 100))
def test_a_larger_percentage_turns_the_flag_off_for_no_key(key: str, small: int, large: int) -> None:
    small, large = sorted((small, large))
    answers = [
        decide(flag(percentage=p), reseller_id=None, merchant_id=None, key=key)[0] for p in (small, large)
    ]
    assert answers != [True, False]


def test_the_bucket_is_the_md5_modulo_100() -> None:
    assert bucket("trial", "shop") == int(hashlib.md5(b"trial/shop").hexdigest(), 16) % 100


def test_buckets_are_spread_evenly_and_differ_from_flag_to_flag() -> None:
    keys = [f"merchant-{n}" for n in range(10_000)]
    assert 2300 < sum(bucket("one", key) < 25 for key in keys) < 2700
    both = sum(bucket("one", key) < 50 and bucket("two", key) < 50 for key in keys)
    assert 2300 < both < 2700, "two flags at a half have a quarter in common"


@pytest.mark.parametrize(
    ("old", "ours"),
    [
        ("bb_dispatch_enabled", ("event_dispatch", None)),
        ("bb_dispatch_use_event_path_for_reseller_acme", ("event_dispatch", "acme")),
        ("event_dispatch", ("event_dispatch", None)),
        ("something_else", ("something_else", None)),
    ],
)
def test_old_flag_names_are_translated(old: str, ours: tuple[str, str | None]) -> None:
    assert translate(old) == ours


def test_every_flag_of_the_code_can_be_stored_under_its_name() -> None:
    for name, definition in DEFINITIONS.items():
        assert name == definition.name
        assert name.isidentifier()
        assert name.islower()
