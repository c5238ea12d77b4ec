import re

from hypothesis import given
from hypothesis import strategies as st

from trunkline.api import key_format


def test_a_minted_key_is_well_formed_and_never_the_same() -> None:
    keys = {key_format.mint() for _ in range(100)}
    assert len(keys) == 100
    assert all(re.fullmatch(r"tl_[0-9A-Za-z]{32}_[0-9A-Za-z]{6}", key) for key in keys)
    assert all(key_format.is_well_formed(key) for key in keys)


@given(st.integers(min_value=0, max_value=40), st.sampled_from("0aZ"))
def test_one_changed_character_breaks_the_checksum(position: int, other: str) -> None:
    key = "tl_abcdefghijklmnopqrstuvwxyzABCDEF_"
    key += key_format._checksum(key[:-1])
    position %= len(key)
    mistyped = key[:position] + other + key[position + 1 :]
    keeps_prefix = mistyped.startswith("tl_")
    assert not keeps_prefix or mistyped == key or not key_format.is_well_formed(mistyped)


def test_an_operators_own_key_needs_length_and_nothing_else() -> None:
    assert key_format.is_well_formed("sixteen-letters!")
    assert not key_format.is_well_formed("fifteen-letters")
    assert not key_format.is_well_formed("x" * 201)
    assert not key_format.is_well_formed("sixteen letters!")
    assert not key_format.is_well_formed("ключ-из-шестнадцати")


def test_what_looks_like_ours_must_be_ours() -> None:
    assert not key_format.is_well_formed("tl_chosen-by-an-operator")


def test_a_hint_shows_no_more_than_four_random_characters() -> None:
    key = key_format.mint()
    assert key_format.hint(key) == f"{key[:7]}…"
    assert "operator-secret" not in key_format.hint("operator-secret-1")
