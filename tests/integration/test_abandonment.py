"""Abandoned calls are counted with the call that ends, and stay counted however the counts are folded."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support.dispatch.stage import Stage, open_stage
from trunkline.campaigns.maintenance import AbandonmentGauges, CampaignCounter
from trunkline.dispatch import agent_reports
from trunkline.leads import abandonment as rules
from trunkline.leads.calling_policy import CallingPolicy
from trunkline.model import CallReport, Counted
from trunkline.store import abandonment
from trunkline.store.tenants import PLATFORM, Tenant
from trunkline.telemetry import metrics

NO_AGENT: dict[str, Any] = {"agent_joined": False}


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


async def called(stage: Stage, *kinds: str, campaign_id: UUID | None = None, **more: Any) -> UUID:
    """The attempt of a call that went so."""
    lead = await stage.dialing.lead(campaign_id=campaign_id, max_attempts=1)
    await stage.dial()
    attempt: UUID = (await stage.attempt(lead))["id"]
    await stage.told(attempt, *kinds, **more)
    return attempt


async def measured(stage: Stage, campaign_id: UUID | None = None) -> abandonment.AbandonmentCounts:
    async with stage.database.connection() as conn:
        return await abandonment.measured(conn, "m", campaign_id)


async def measured_for(stage: Stage, tenant: Tenant) -> abandonment.AbandonmentCounts:
    async with stage.database.connection() as conn:
        return await abandonment.measured_by_tenant(conn, tenant)


async def test_calls_are_counted_when_they_end_by_campaign_and_merchant(stage: Stage) -> None:
    one, other = uuid4(), uuid4()
    await called(stage, "ended", reason="no-answer", campaign_id=one)
    await called(stage, "answered", "ended", campaign_id=one)
    abandoned = await called(stage, "answered", "ended", campaign_id=one, **NO_AGENT)
    await called(stage, "answered", "ended", campaign_id=other)
    await called(stage, "answered", "ended")
    found = await measured(stage, one)
    assert found.last_30d == Counted(ended=3, answered=2, by_person=2, abandoned=1)
    assert found.last_30d == found.last_24h == found.window == found.last_10m
    assert (await measured(stage)).last_30d == Counted(ended=5, answered=4, by_person=4, abandoned=1)
    kept = await stage.dialing.row("SELECT * FROM abandoned_calls")
    assert (kept["attempt_id"], kept["campaign_id"], kept["overdialled"]) == (abandoned, one, False)


async def test_the_share_is_a_metric_by_span(stage: Stage) -> None:
    gauges = AbandonmentGauges(stage.database)

    def shown() -> dict[str, float | None]:
        sample = metrics.REGISTRY.get_sample_value
        return {span: sample("trunkline_abandoned_share", {"span": span}) for span in ("10m", "24h", "30d")}

    await gauges.run_once()
    assert shown() == {"10m": None, "24h": None, "30d": None}, "nobody has answered"
    for _ in range(3):
        await called(stage, "answered", "ended")
    await called(stage, "answered", "ended", **NO_AGENT)
    await gauges.run_once()
    assert shown() == {"10m": 0.25, "24h": 0.25, "30d": 0.25}

    await CampaignCounter(stage.database, fresh_min=1).run_once()
    await stage.dialing.run("UPDATE call_counts SET at = at - interval '2 days'")
    await gauges.run_once()
    assert shown() == {"10m": None, "24h": None, "30d": 0.25}


async def test_calls_that_a_person_answered_and_abandoned_ones_are_counters(stage: Stage) -> None:
    def counted() -> list[float]:
        sample = metrics.REGISTRY.get_sample_value
        by_person = sample("trunkline_calls_answered_by_person_total")
        by_cause = (
            sample("trunkline_calls_abandoned_total", {"cause": cause})
            for cause in ("no_agent", "overdialled")
        )
        return [value or 0.0 for value in (by_person, *by_cause)]

    before = counted()
    await called(stage, "answered", "ended")
    await called(stage, "answered", "ended", **NO_AGENT)
    await called(stage, "ended", reason="busy")
    assert [now - then for now, then in zip(counted(), before, strict=True)] == [2, 1, 0]


async def test_a_call_found_without_an_agent_after_its_end_is_abandoned_once(stage: Stage) -> None:
    """While Postgres was away, the document given to the carrier was recorded after the call's end."""
    campaign = uuid4()
    attempt = await called(stage, "ended", duration_s=3, campaign_id=campaign)
    assert (await measured(stage, campaign)).last_30d == Counted(ended=1, answered=1, by_person=1)
    await stage.told(attempt, "answered", **NO_AGENT)
    counted = Counted(ended=1, answered=1, by_person=1, abandoned=1)
    assert (await measured(stage, campaign)).last_30d == counted
    await stage.told(attempt, "answered", dedupe_key="again", **NO_AGENT)
    assert (await measured(stage)).last_30d == counted
    async with stage.database.transaction() as tx:
        await agent_reports.take(tx, attempt, CallReport("sold"))
    await stage.folder.drain()
    assert (await measured(stage)).last_30d == Counted(ended=1, answered=1, by_person=1), (
        "there was one after all"
    )


async def test_a_call_answered_by_a_machine_is_not_counted_as_a_person(stage: Stage) -> None:
    await called(stage, "answered", "machine", "ended", answered_by="machine_start")
    assert (await measured(stage)).last_30d == Counted(ended=1, answered=1)


async def test_a_call_is_counted_once_however_often_its_end_is_reported(stage: Stage) -> None:
    attempt = await called(stage, "answered", "ended", **NO_AGENT)
    await stage.told(attempt, "ended", "answered", **NO_AGENT)
    assert (await measured(stage)).last_30d == Counted(ended=1, answered=1, by_person=1, abandoned=1)


async def report(stage: Stage, attempt: UUID, disposition: str) -> None:
    """The agent's word, after the carrier's; its event is folded twice."""
    async with stage.database.transaction() as tx:
        await agent_reports.take(tx, attempt, CallReport(disposition))
    await stage.told(attempt, "recording")
    await stage.told(attempt, "recording", dedupe_key="again")


async def test_a_late_agent_report_takes_the_abandoned_call_back(stage: Stage) -> None:
    attempt = await called(stage, "answered", "ended", **NO_AGENT)
    await report(stage, attempt, "sold")
    assert (await measured(stage)).last_30d == Counted(ended=1, answered=1, by_person=1)
    assert await stage.dialing.value("SELECT count(*) FROM abandoned_calls") == 0


async def test_a_late_voicemail_report_takes_the_person_back(stage: Stage) -> None:
    for told in (NO_AGENT, {}):
        attempt = await called(stage, "answered", "ended", **told)
        await report(stage, attempt, "voicemail")
    assert (await measured(stage)).last_30d == Counted(ended=2, answered=2)


async def test_an_overdialled_call_connected_past_the_threshold_is_abandoned(stage: Stage) -> None:
    """An agent came in the end, later than the threshold after the answer."""
    await stage.dialing.policy(CallingPolicy(abandon_threshold_s=3))
    for waited_s, reserved in ((2, False), (5, False), (5, True)):
        lead = await stage.dialing.lead(max_attempts=1)
        await stage.dial()
        attempt = (await stage.attempt(lead))["id"]
        if not reserved:
            await stage.dialing.run("UPDATE attempts SET overdial_group = 'common' WHERE id = $1", attempt)
        await stage.dialing.run(
            "INSERT INTO allocations (id, has_attempt, asked_at, begun_at)"
            " VALUES ($1, true, now(), now() + make_interval(secs => $2))",
            attempt,
            waited_s,
        )
        await stage.told(attempt, "answered", "ended")
    found = (await measured(stage)).last_30d
    assert (found.by_person, found.abandoned) == (3, 1)
    assert await stage.dialing.value("SELECT array_agg(overdialled) FROM abandoned_calls") == [True]


async def test_folding_the_call_counts_changes_no_measured_share(stage: Stage) -> None:
    campaign = uuid4()
    for _ in range(3):
        await called(stage, "answered", "ended", campaign_id=campaign, **NO_AGENT)
    counter = CampaignCounter(stage.database, fresh_min=1)
    before = await measured(stage, campaign)
    everybody = await measured_for(stage, PLATFORM)
    for aged, grain in (("0 s", "minute"), ("3 hours", "hour"), ("3 days", "day")):
        await stage.dialing.run(f"UPDATE call_counts SET at = at - interval '{aged}'")
        before, everybody = await measured(stage, campaign), await measured_for(stage, PLATFORM)
        assert await counter.run_once() > 0
        rows = await stage.dialing.value("SELECT array_agg(DISTINCT grain) FROM call_counts")
        assert rows == [grain]
        assert await measured(stage, campaign) == before
        assert await measured_for(stage, PLATFORM) == everybody
        assert await counter.run_once() == 0
    assert before.last_30d.abandoned == everybody.last_30d.abandoned == 3
    assert before.last_24h == Counted()
    assert await stage.dialing.value("SELECT count(*) FROM call_counts") == 2, (
        "of the campaign, of its reseller"
    )
    await stage.dialing.run("UPDATE call_counts SET at = at - interval '30 days'")
    assert (await measured(stage, campaign)).last_30d == Counted()


async def test_the_answer_rate_is_that_of_the_campaigns_newest_500_calls(stage: Stage) -> None:
    campaign = uuid4()
    await stage.dialing.run(
        "INSERT INTO call_counts (reseller_id, merchant_id, campaign_id, at, ended, answered, by_person, abandoned)"
        " SELECT 'r', 'm', $1, now() - make_interval(mins => n), 100, n, n, 0 FROM generate_series(1, 90) AS n",
        campaign,
    )
    await called(stage, "answered", "ended")
    async with stage.database.connection() as conn:
        found = await abandonment.recent(conn, [("m", campaign), ("m", None), ("m", uuid4())])
        now = await stage.dialing.now()
    assert rules.recent(found["m", campaign], now) == Counted(ended=500, answered=15, by_person=15)
    assert rules.recent(found["m", None], now) == Counted(ended=1, answered=1, by_person=1)
    assert len(found) == 2
