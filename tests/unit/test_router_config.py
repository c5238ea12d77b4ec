from trunkline.router.config import RouterConfig
from trunkline.settings.tiers import parse_tiers


def test_callers_of_a_tier_is_its_configured_inbound_reserve_or_the_default() -> None:
    config = RouterConfig(
        tiers=parse_tiers('{"gold": {"callers": 3}, "basic": {"callers": 0}, "standard": {}}')
    )
    assert [config.callers_of(tier) for tier in ("gold", "basic", "standard", "unheard_of")] == [3, 0, -1, -1]
