"""Rollout gates, and the variables of the router's client."""

import hashlib
import re
from pathlib import Path

import pytest

from trunkline.client import RolloutFlags, RouterSettings, RouterSettingsError
from trunkline.client.rollout import RolloutDecision, bucket, decide

ALL = RolloutFlags(percentage=100)


def test_the_rollout_gates_are_checked_in_the_documented_order() -> None:
    closed = RolloutFlags(percentage=0, merchants=frozenset({"other"}))
    assert decide("m", closed, is_enabled=False, is_circuit_open=True).reason == "isolation_disabled"
    assert decide("m", closed, is_enabled=True, is_circuit_open=True).reason == "circuit_open"
    assert decide("m", closed, is_enabled=True, is_circuit_open=False).reason == "percentage_zero"
    some = RolloutFlags(percentage=bucket("m"), merchants=frozenset({"other"}))
    if some.percentage:
        assert decide("m", some, is_enabled=True, is_circuit_open=False).reason == "outside_percentage"
    listed = RolloutFlags(percentage=100, merchants=frozenset({"other"}))
    assert decide("m", listed, is_enabled=True, is_circuit_open=False).reason == "not_listed"
    assert decide("m", ALL, is_enabled=True, is_circuit_open=False) == RolloutDecision(True)


def test_a_merchant_list_at_100_percent_routes_exactly_its_merchants() -> None:
    flags = RolloutFlags(percentage=100, merchants=frozenset({"acme"}))
    assert decide("acme", flags, is_enabled=True, is_circuit_open=False).use_router
    assert not decide("other", flags, is_enabled=True, is_circuit_open=False).use_router


@pytest.mark.parametrize("merchant", ["acme-corp", "9shines", "", "ünïcode"])
def test_a_merchants_bucket_is_its_md5_modulo_100(merchant: str) -> None:
    assert bucket(merchant) == int(hashlib.md5(merchant.encode()).hexdigest(), 16) % 100
    for percentage in (1, 50, 99):
        decision = decide(merchant, RolloutFlags(percentage), is_enabled=True, is_circuit_open=False)
        assert decision.use_router == (bucket(merchant) < percentage)


def test_the_share_of_routed_merchants_is_about_the_percentage() -> None:
    inside = sum(bucket(f"merchant-{number}") < 30 for number in range(2000))
    assert 500 < inside < 700


def test_the_environment_is_read_under_its_documented_names() -> None:
    environ = {
        "ENABLE_VOICE_AGENT_POD_ISOLATION": "true",
        "SMART_ROUTER_BASE_URL": "https://router.example.com",
        "SMART_ROUTER_API_KEY": "tl_secret",
        "SMART_ROUTER_TIMEOUT_MS": "1500",
        "SMART_ROUTER_RETRY_ATTEMPTS": "5",
        "SMART_ROUTER_ENABLE_FALLBACK": "false",
        "SMART_ROUTER_FALLBACK_URL": "wss://voice.example.com/agent/voice/{provider}/callback/{call_sid}",
        "SMART_ROUTER_CB_FAILURE_THRESHOLD": "7",
        "SMART_ROUTER_CB_RECOVERY_TIMEOUT": "60",
        "SMART_ROUTER_CB_HALF_OPEN_MAX_CALLS": "2",
    }
    settings = RouterSettings.from_env(environ)
    assert (settings.is_enabled, settings.timeout_s, settings.retry_attempts) == (True, 1.5, 5)
    assert (settings.breaker.failure_threshold, settings.breaker.recovery_timeout_s) == (7, 60)
    assert settings.breaker.half_open_max_calls == 2
    assert not settings.fallback_enabled
    assert "tl_secret" not in repr(settings)
    assert RouterSettings.from_env({}) == RouterSettings()
    flags = RolloutFlags.from_env(
        {
            "SMART_ROUTER_PERCENTAGE": "10",
            "SMART_ROUTER_MERCHANTS": "acme-corp, test-merchant",
            "SMART_ROUTER_ENABLE_TWILIO_DIRECT": "true",
            "SMART_ROUTER_ENABLE_PLIVO_DIRECT": "1",
        }
    )
    assert flags == RolloutFlags(10, frozenset({"acme-corp", "test-merchant"}), True, True)


def test_every_wrong_variable_is_named_at_once() -> None:
    with pytest.raises(RouterSettingsError) as caught:
        RouterSettings.from_env(
            {
                "SMART_ROUTER_BASE_URL": "ftp://x",
                "SMART_ROUTER_TIMEOUT_MS": "soon",
                "SMART_ROUTER_ENABLE_FALLBACK": "perhaps",
            }
        )
    assert len(str(caught.value).splitlines()) == 3


def test_every_variable_of_client_and_agent_is_documented() -> None:
    root = Path(__file__).parents[2]
    source = root / "src" / "trunkline"
    texts = [path.read_text(encoding="utf-8") for path in (source / "client").glob("*.py")]
    texts += [path.read_text(encoding="utf-8") for path in (source / "agent").glob("*.py")]
    named = set(re.findall(r'reader\.\w+\(\s*"([A-Z_]+)"', "\n".join(texts)))
    assert len(named) > 20
    page = (root / "docs" / "reference" / "agent.md").read_text(encoding="utf-8")
    assert {name for name in named if f"`{name}`" not in page} == set()
