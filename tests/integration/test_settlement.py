"""What becomes of leads after their calls: by their owners' rules, in their windows, and paid from the right day."""

import math
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support.dispatch.stage import Stage, open_stage
from trunkline.leads.calling_policy import CallingPolicy, Price
from trunkline.leads.retries import Retries, RetryRule
from trunkline.leads.windows import TimeSpan, Window
from trunkline.telephony.carrier import InDoubt, Rejected


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


async def called(stage: Stage, *kinds: str, lead: UUID | None = None, **more: Any) -> UUID:
    """A lead whose call went so."""
    lead = lead or await stage.dialing.lead()
    await stage.dial()
    newest = (await stage.attempts(lead))[-1]
    await stage.told(newest["id"], *kinds, **more)
    return lead


async def waits_s(stage: Stage, lead: UUID) -> float:
    """From the end of its last call to its next, in steps of five seconds: the row is written a little later than the
    end was read."""
    row = await stage.lead(lead)
    assert row["status"] == "BACKLOG", row
    wait: timedelta = row["due_at"] - row["updated_at"]
    return 5 * math.ceil(wait.total_seconds() / 5)


# Retry rules


async def test_without_retry_rules_the_backoff_doubles(stage: Stage) -> None:
    lead = await called(stage, "ended", reason="busy")
    assert await waits_s(stage, lead) == 60
    await stage.due_now(lead)
    await called(stage, "ended", lead=lead, reason="busy")
    assert await waits_s(stage, lead) == 120
    await stage.due_now(lead)
    await called(stage, "ended", lead=lead, reason="busy")
    assert (await stage.lead(lead))["outcome"] == "BUSY", "three attempts, and no more"


async def test_a_merchants_rules_decide_by_outcome_and_a_campaigns_before_them(stage: Stage) -> None:
    rules = {"BUSY": RetryRule(delays_s=(300,)), "NO_ANSWER": RetryRule(retry=False)}
    await stage.dialing.policy(CallingPolicy(retries=Retries(by_outcome=rules)))
    campaign = uuid4()
    impatient = Retries(by_outcome={"BUSY": RetryRule(delays_s=(20,))})
    await stage.dialing.policy(CallingPolicy(retries=impatient), "campaign", f"m/{campaign}")
    assert await waits_s(stage, await called(stage, "ended", reason="busy")) == 300
    silent = await called(stage, "ended", reason="no_answer")
    assert (await stage.lead(silent))["outcome"] == "NO_ANSWER"
    of_campaign = await stage.dialing.lead(campaign_id=campaign)
    await called(stage, "ended", lead=of_campaign, reason="busy")
    assert await waits_s(stage, of_campaign) == 20


async def test_carrier_errors_have_a_budget_of_their_own_and_the_policy_says_how_large(stage: Stage) -> None:
    await stage.dialing.policy(CallingPolicy(retries=Retries(carrier_errors_max=2, base_s=10)))
    stage.carrier.says(Rejected("refused", "21214", retryable=True, blames="destination"))
    lead = await stage.dialing.lead(max_attempts=1)
    await stage.dial()
    assert await waits_s(stage, lead) == 10
    assert (await stage.lead(lead))["attempt_count"] == 0, "nobody was called"
    await stage.due_now(lead)
    await stage.dial()
    assert (await stage.lead(lead))["outcome"] == "CARRIER_ERROR"


async def test_an_absent_attempt_is_retried_by_the_retry_rules(stage: Stage) -> None:
    await stage.dialing.policy(CallingPolicy(retries=Retries(base_s=5)))
    stage.carrier.says(InDoubt("timeout"))
    lead = await stage.dialing.lead()
    await stage.dial()
    attempt = (await stage.attempt(lead))["id"]
    await stage.dialing.run("UPDATE attempts SET doubt_checks = 3")
    await stage.age(attempt, 601)
    await stage.checker.run_once()
    assert (await stage.attempt(lead))["state"] == "absent"
    assert await waits_s(stage, lead) == 5


async def test_a_retry_that_would_fall_outside_the_window_is_due_when_it_opens(stage: Stage) -> None:
    now = await stage.dialing.now()
    lead = await stage.dialing.lead()
    await stage.dial()
    closed = Window(spans=(TimeSpan(start="00:00", end="24:00"),), closed_on=(now.date(),))
    await stage.dialing.policy(CallingPolicy(windows=(closed,), timezone="UTC"))
    await stage.told((await stage.attempt(lead))["id"], "ended", reason="busy")
    row = await stage.lead(lead)
    midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    assert (row["status"], row["due_at"]) == ("BACKLOG", midnight)
    assert row["closes_at"] is None or row["closes_at"] > midnight


# The session's facts


async def test_a_call_answered_by_a_machine_settles_as_voicemail(stage: Stage) -> None:
    await stage.dialing.policy(
        CallingPolicy(retries=Retries(by_outcome={"VOICEMAIL": RetryRule(retry=False)}))
    )
    lead = await stage.dialing.lead()
    await stage.dial()
    attempt = (await stage.attempt(lead))["id"]
    await stage.told(attempt, "answered")
    await stage.told(attempt, "machine", answered_by="machine_start")
    await stage.told(attempt, "ended")
    assert (await stage.lead(lead))["outcome"] == "VOICEMAIL"


# Money

PRICE = Price(per_call_micros=1_000, per_minute_micros=10_000, reserve_minutes=2)


async def spent(stage: Stage) -> int:
    found: int = await stage.dialing.value("SELECT sum(spent_micros)::bigint FROM merchant_days")
    return found


@pytest.mark.parametrize(
    ("kinds", "more", "cost"),
    [
        (("answered", "ended"), {"duration_s": 61}, 21_000),
        (("answered", "ended"), {"duration_s": 600}, 101_000),
        (("ended",), {"reason": "busy"}, 0),
    ],
)
async def test_a_calls_cost_replaces_the_spend_reserved_for_it(
    stage: Stage, kinds: tuple[str, ...], more: dict[str, Any], cost: int
) -> None:
    await stage.dialing.policy(CallingPolicy(price=PRICE))
    lead = await stage.dialing.lead()
    await stage.dial()
    assert await spent(stage) == 21_000
    attempt = (await stage.attempt(lead))["id"]
    await stage.told(attempt, *kinds, **more)
    assert await spent(stage) == cost
    assert (await stage.attempt(lead))["cost_micros"] == cost
    await stage.told(attempt, "ended", dedupe_key="told again", **more)
    assert await spent(stage) == cost, "once"


async def test_a_call_without_a_price_costs_nothing_and_nothing_is_written(stage: Stage) -> None:
    lead = await called(stage, "answered", "ended", duration_s=600)
    assert (await stage.attempt(lead))["cost_micros"] is None
    assert await spent(stage) == 0
