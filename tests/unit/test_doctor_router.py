"""Whether the doctor sees that a merchant without a tier of its own would hear "busy"."""

import json

import pytest

from tests.support.router.world import SAMPLE as SAMPLE_TEXT
from trunkline.cli.doctor import COMMON_TIER, judge_pods
from trunkline.settings.tiers import DEFAULT, assignment_order, parse_tiers

SAMPLE = parse_tiers(SAMPLE_TEXT)


def test_the_first_pod_is_assigned_to_gold_as_documented() -> None:
    assert assignment_order(SAMPLE) == ("gold", "basic", "standard")


def test_without_a_tier_config_doctor_accepts_one_agent() -> None:
    assert assignment_order(parse_tiers("{}")) == ("standard",)
    assert judge_pods({"standard": 1}, DEFAULT).state == "ok"


def test_doctor_warns_of_one_agent_in_gold_and_says_what_to_set() -> None:
    finding = judge_pods({"gold": 1, "standard": 0, "basic": 0}, SAMPLE)
    assert finding.state == "warning"
    assert "one registered, in gold" in finding.detail
    assert COMMON_TIER in finding.detail


@pytest.mark.parametrize("pods", [{"standard": 1}, {"gold": 1, "basic": 1}, {"gold": 1, "overflow": 2}])
def test_doctor_accepts_a_pod_that_every_merchant_reaches(pods: dict[str, int]) -> None:
    assert judge_pods(pods, SAMPLE).state == "ok"


@pytest.mark.parametrize(
    ("config", "number"),
    [
        ("{}", 1),
        (SAMPLE_TEXT, 2),
        ('{"gold": {"target": 3}, "merchant:acme": {"target": 2}}', 6),
        ('{"silver": {"target": 2}, "basic": {"type": "shared", "target": 1}}', 1),
    ],
)
def test_without_pods_doctor_says_which_pod_will_serve_every_merchant(config: str, number: int) -> None:
    detail = judge_pods({}, parse_tiers(config)).detail
    assert ("start an agent" in detail) if number == 1 else (f"pod {number} is the first" in detail)


def test_the_tier_config_that_doctor_suggests_gives_the_first_pod_to_every_merchant() -> None:
    text = COMMON_TIER.partition("=")[2].strip("'")
    assert json.loads(text)
    assert "start an agent" in judge_pods({}, parse_tiers(text)).detail
