"""Which pods change their tier or maximum when the config says otherwise."""

from trunkline.router.pool_rules import changes
from trunkline.routing import Pod
from trunkline.settings.tiers import parse_tiers

GOLD = '{"gold": {"target": 2}, "standard": {"target": 1}}'


def pod(name: str, tier: str = "standard", **more: object) -> Pod:
    known: dict[str, object] = {
        "name": name, "incarnation": 1, "tier": tier, "calls_max": 1, "base_url": "", "ip": "", "port": 0,
        "version": "", "boot_id": "b", "past_boots": (), "uid": "", "sequence": 1, "named": (), "reset_calls": (),
        "interval_s": 5.0, "hanging": [], "is_ready": True, "is_leaving": False, "is_changing": False, "unheard_s": 0.0,
        "drain_left_s": 0.0,
    }  # fmt: skip
    return Pod(**(known | more))  # type: ignore[arg-type]


def moves(pods: list[Pod], config: str, busy: frozenset[str] = frozenset()) -> dict[str, str]:
    found = changes(pods, busy, parse_tiers(config))
    return {name: target.tier for name, target in found.changing.items()}


def test_surplus_idle_pods_move_first() -> None:
    pods = [pod("a"), pod("b"), pod("c")]
    assert moves(pods, GOLD, frozenset({"a"})) == {"b": "gold", "c": "gold"}


def test_busy_pods_move_if_idle_ones_are_not_enough() -> None:
    assert moves([pod("a"), pod("b"), pod("c")], GOLD, frozenset({"a", "b"})) == {"c": "gold", "a": "gold"}


def test_a_pod_of_a_removed_tier_moves_to_standard() -> None:
    assert moves([pod("a", "silver")], '{"standard": {"target": 9}}') == {"a": "standard"}


def test_surplus_pods_of_standard_stay_there() -> None:
    assert moves([pod("a"), pod("b")], '{"standard": {"target": 1}}') == {}


def test_a_leaving_pod_fills_no_target_and_is_not_moved() -> None:
    pods = [pod("a", "gold", is_leaving=True), pod("b", is_leaving=True), pod("c"), pod("d")]
    assert moves(pods, '{"gold": {"target": 1}, "standard": {"target": 1}}') == {"c": "gold"}


def test_an_unready_or_draining_pod_moves_last() -> None:
    pods = [pod("a", is_ready=False), pod("b", drain_left_s=60.0), pod("c")]
    assert moves(pods, '{"gold": {"target": 1}, "standard": {"target": 1}}') == {"c": "gold"}


def test_a_pod_that_is_already_changing_its_tier_moves_first() -> None:
    pods = [pod("a"), pod("b"), pod("c", is_changing=True)]
    assert moves(pods, '{"gold": {"target": 1}, "standard": {"target": 1}}') == {"c": "gold"}


def test_a_raised_maximum_applies_at_once_and_a_lowered_one_by_a_change() -> None:
    config = parse_tiers('{"basic": {"type": "shared", "target": 9, "max_concurrent": 3}}')
    found = changes([pod("a", "basic", calls_max=2), pod("b", "basic", calls_max=5)], frozenset(), config)
    assert found.raised == {"a": 3}
    assert {name: target.calls_max for name, target in found.changing.items()} == {"b": 3}
