"""Carriers' own figures of cost are kept with the attempt, beside ours."""

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import pytest

from tests.support.dispatch.stage import Stage, event, open_stage
from trunkline.dispatch.carrier_costs import CarrierCosts
from trunkline.store import leads
from trunkline.telephony.carrier import CallView, CarrierCost


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


async def called(stage: Stage) -> tuple[UUID, UUID]:
    lead = await stage.dialing.lead()
    await stage.dial()
    attempt: UUID = (await stage.attempt(lead))["id"]
    await stage.told(attempt, "answered")
    return lead, attempt


async def shown(stage: Stage, lead: UUID) -> tuple[int | None, str | None]:
    """As the owner of the lead sees it."""
    async with stage.database.connection() as conn:
        (attempt,) = await leads.attempts(conn, lead)
    return attempt.carrier_cost_micros, attempt.carrier_cost_currency


async def test_a_cost_in_a_webhook_is_stored_once_even_after_the_end(stage: Stage) -> None:
    lead, attempt = await called(stage)
    await stage.told(attempt, "ended")
    for no, micros in enumerate((57_100, 99_999)):
        report = event(attempt, "ended", f"CA-{attempt}", dedupe_key=f"report {no}")
        report.payload["cost"] = {"micros": micros, "currency": "USD"}
        await stage.inbox.append(report)
        await stage.folder.drain()
    assert await shown(stage, lead) == (57_100, "USD")


@pytest.mark.parametrize(
    "cost", [None, 7, {}, {"micros": -1, "currency": "USD"}, {"micros": 1}, {"micros": "1"}]
)
async def test_an_invalid_cost_in_a_webhook_is_ignored(stage: Stage, cost: object) -> None:
    lead, attempt = await called(stage)
    end = event(attempt, "ended", f"CA-{attempt}")
    end.payload["cost"] = cost
    await stage.inbox.append(end)
    await stage.folder.drain()
    assert await shown(stage, lead) == (None, None)
    assert (await stage.lead(lead))["status"] == "FINISHED"


async def test_a_price_missing_from_webhooks_is_read_from_the_list_of_ended_calls(stage: Stage) -> None:
    lead, attempt = await called(stage)
    await stage.told(attempt, "ended")
    costs = CarrierCosts(stage.database, stage.directory)
    await stage.live_calls.run_once()
    await stage.dialing.run("INSERT INTO account_looks VALUES ('twilio', 'default') ON CONFLICT DO NOTHING")
    assert await costs.run_once() == 0, "from now on"
    ended_at = await stage.dialing.now() - timedelta(seconds=200)
    call = CallView(f"CA-{attempt}", "", "", "completed", "ended", ended_at=ended_at)
    stage.carrier.found[f"CA-{attempt}"] = call
    await stage.dialing.run("UPDATE cost_readings SET read_to = read_to - interval '5 minutes'")
    assert await costs.run_once() == 0, "it is not there yet"
    assert await costs.run_once() == 0, "and this stretch was read"
    priced = CallView(
        f"CA-{attempt}", "", "", "completed", "ended", ended_at=ended_at, cost=CarrierCost(14_000, "USD")
    )
    stage.carrier.found[f"CA-{attempt}"] = priced
    # An hour later it is read once more.
    await stage.dialing.run(
        "UPDATE cost_readings SET read_to = $1 WHERE lag_s = 3600", ended_at - timedelta(hours=1, minutes=2)
    )
    await stage.dialing.run("UPDATE cost_readings SET lag_s = 60 WHERE lag_s = 3600")
    assert await costs.run_once() == 0
    assert await costs.run_once() == 1
    assert await shown(stage, lead) == (14_000, "USD")
