from trunkline.router.config import RouterConfig
from trunkline.settings.tiers import parse_tiers


def test_a_tier_leaves_to_callers_what_its_config_says_and_else_a_tenth() -> None:
    config = RouterConfig(
        tiers=parse_tiers('{"gold": {"callers": 3}, "basic": {"callers": 0}, "standard": {}}')
    )
    assert [config.callers_of(tier) for tier in ("gold", "basic", "standard", "unheard_of")] == [3, 0, -1, -1]
