"""`TIER_CONFIG`: what is right is read, what is wrong stops the process with a line that says why."""

import pytest

from trunkline.settings import SettingsError, load_settings
from trunkline.settings.tiers import DEFAULT, MAX_CONCURRENT_DEFAULT, Tier, assignment_order, parse_tiers


@pytest.mark.parametrize("text", ["", "{}", " {} "])
def test_an_empty_tier_config_is_one_tier_for_every_merchant(text: str) -> None:
    assert parse_tiers(text) == DEFAULT == {"standard": Tier(False, 1)}


def test_a_tiers_config_can_set_its_inbound_reserve() -> None:
    tiers = parse_tiers('{"standard": {"target": 9, "callers": 2}, "gold": {"target": 1}}')
    assert (tiers["standard"].text, tiers["gold"].text) == ("e|9|1|2", "e|1|1")


def test_omitted_tier_fields_have_their_defaults_and_standard_always_exists() -> None:
    tiers = parse_tiers('{"merchant:acme": {"target": 2}, "basic": {"type": "shared", "target": 1}}')
    assert tiers["merchant:acme"] == Tier(False, 2, 1)
    assert tiers["basic"] == Tier(True, 1, MAX_CONCURRENT_DEFAULT)
    assert tiers["standard"] == Tier(False, 0)


def test_the_order_of_assignment_is_the_documented_one() -> None:
    names = ["overflow", "standard", "basic", "gold", "merchant:b", "merchant:a", "silver", "economy"]
    shared = {"basic", "economy"}
    tiers = {name: Tier(name in shared, 1, 3 if name in shared else 1) for name in names}
    assert assignment_order(tiers) == (
        "merchant:a", "merchant:b", "gold", "basic", "economy", "silver", "standard", "overflow",
    )  # fmt: skip


MALFORMED = [
    ("{", "not JSON"),
    ("[]", "not a JSON object"),
    ('"gold"', "not a JSON object"),
    ('{"gold": 1}', "gold: not a JSON object"),
    ('{"gold": {"target": -1}}', "gold: target must be"),
    ('{"gold": {"target": "1"}}', "gold: target must be"),
    ('{"gold": {"target": true}}', "gold: target must be"),
    ('{"gold": {"target": 1.5}}', "gold: target must be"),
    ('{"gold": {"type": "sharded"}}', "gold: type must be"),
    ('{"gold": {"targets": 1}}', "gold: unknown field 'targets'"),
    ('{"gold": {"target": 1, "max_concurrent": 3}}', "gold: max_concurrent is for shared tiers"),
    ('{"basic": {"type": "shared", "max_concurrent": 0}}', "basic: max_concurrent must be"),
    ('{"dedicated": {"target": 1}}', "'dedicated' is no name of a tier"),
    ('{"Gold": {"target": 1}}', "'Gold' is no name of a tier"),
    ('{"merchant:": {"target": 1}}', "'merchant:' is no name of a tier"),
    ('{"#order": {"target": 1}}', "'#order' is no name of a tier"),
    ('{"a b": {"target": 1}}', "'a b' is no name of a tier"),
]


@pytest.mark.parametrize(("text", "why"), MALFORMED)
def test_a_malformed_config_says_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=r".+") as caught:
        parse_tiers(text)
    assert str(caught.value).startswith(why)


@pytest.mark.parametrize("text", [text for text, _ in MALFORMED])
def test_a_malformed_config_stops_the_process_at_its_start_and_names_the_variable(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({}, TIER_CONFIG=text)
    assert "TIER_CONFIG" in str(caught.value)
