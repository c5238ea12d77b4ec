"""Calls that reappear after they were written off, foreign calls under an attempt, and clocks that go back."""

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from tests.support.dispatch.stage import Stage, event, open_stage
from trunkline.dispatch import agent_reports, late_facts
from trunkline.dispatch.intent import disown
from trunkline.leads.calling_policy import CallingPolicy
from trunkline.model import CallReport
from trunkline.store import lead_edits
from trunkline.store.tenants import PLATFORM
from trunkline.telephony.carrier import InDoubt, Unavailable

PRICE = CallingPolicy.model_validate(
    {"price": {"per_minute_micros": 10_000}, "spend_per_day_micros": 1_000_000}
)


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


async def given_up(stage: Stage, lead: UUID, state: str = "absent") -> UUID:
    """An attempt that nobody could find, or (`unknown`) nobody could ask about."""
    stage.carrier.says(InDoubt("reset"))
    if state == "unknown":
        stage.carrier.calls = Unavailable("503")
    assert await stage.dial() == 1
    attempt: UUID = (await stage.attempts(lead))[-1]["id"]
    for age_s in (6, 31, 121, 700):
        await stage.age(attempt, age_s)
        await stage.checker.run_once()
    assert await stage.dialing.state_of(attempt) == state
    stage.carrier.answer, stage.carrier.calls = stage.carrier.accept, []
    return attempt


async def abort(stage: Stage, lead: UUID) -> None:
    async with stage.database.transaction() as tx:
        await lead_edits.lock(tx, PLATFORM, [lead])
        assert await lead_edits.abort(tx, [lead], "sold out")


async def alarms(stage: Stage) -> set[str]:
    async with stage.database.connection() as conn:
        return {row["name"] for row in await conn.fetch("SELECT name FROM alarms")}


async def may_connect(stage: Stage, attempt: UUID) -> str:
    """What the answer gate makes of the call."""
    async with stage.database.connection() as conn:
        result: str = await conn.fetchval(
            "SELECT result FROM allocate_call($1, $2, $1, 'm', NULL, NULL, NULL, '{standard}', 0, 5, 600)",
            attempt,
            f"CA-{attempt}",
        )
    return result


@pytest.mark.parametrize("kind", ["initiated", "ringing", "answered"])
async def test_a_call_that_reappears_for_an_aborted_lead_is_hung_up(stage: Stage, kind: str) -> None:
    lead = await stage.dialing.lead()
    attempt = await given_up(stage, lead)
    await abort(stage, lead)
    await stage.told(attempt, kind)
    await stage.hang_ups.run_once()
    assert stage.carrier.hung_up == [f"CA-{attempt}"]
    assert not await late_facts.reattach(stage.database, attempt, f"CA-{attempt}")
    assert "late_fact" in await alarms(stage)
    assert await stage.truly_held() == set()
    await stage.told(attempt, "ended", reason="canceled", duration_s=0)
    row, ended = await stage.attempt(lead), await stage.lead(lead)
    assert (row["state"], row["end_reason"], row["duration_s"]) == ("ended", "canceled", 0)
    assert (ended["status"], ended["outcome"]) == ("FINISHED", "ABORTED")


async def test_a_call_that_reappears_for_a_blacklisted_lead_is_refused_at_the_answer(stage: Stage) -> None:
    """Its carrier cannot hang it up: the answer gate refuses to connect it."""
    lead = await stage.dialing.lead()
    attempt = await given_up(stage, lead)
    await stage.dialing.run(
        "UPDATE leads SET status = 'FINISHED', outcome = 'BLACKLISTED', finished_at = now() WHERE id = $1",
        lead,
    )
    assert await may_connect(stage, attempt) == "given_up"
    assert not await late_facts.reattach(stage.database, attempt, f"CA-{attempt}")
    assert (await stage.attempt(lead))["state"] == "absent"


@pytest.mark.parametrize("state", ["absent", "unknown"])
async def test_a_reattached_call_has_its_facts_and_cost(stage: Stage, state: str) -> None:
    await stage.dialing.policy(PRICE)
    lead = await stage.dialing.lead()
    attempt = await given_up(stage, lead, state)
    await stage.told(attempt, "ringing", "answered")
    row = await stage.attempt(lead)
    assert (row["state"], row["ended_at"], row["end_reason"]) == ("answered", None, None)
    assert row["next_check_at"] <= await stage.dialing.now()
    await stage.told(attempt, "ended", reason="completed", duration_s=600)
    row, ended = await stage.attempt(lead), await stage.lead(lead)
    assert (row["end_reason"], row["duration_s"], row["cost_micros"]) == ("completed", 600, 100_000)
    assert row["ended_at"] >= row["answered_at"]
    assert (ended["outcome"], ended["attempt_count"], ended["carrier_error_count"]) == ("ANSWERED", 1, 0)
    assert await stage.truly_held() == await stage.held() == set()


async def test_a_written_off_call_settles_its_lead_by_its_late_end_reason(stage: Stage) -> None:
    lead = await stage.dialing.lead(max_attempts=1)
    attempt = await given_up(stage, lead)
    await stage.told(attempt, "ended", reason="busy", duration_s=0)
    row, ended = await stage.attempt(lead), await stage.lead(lead)
    assert (row["state"], row["end_reason"], row["duration_s"]) == ("ended", "busy", 0)
    assert (ended["status"], ended["outcome"]) == ("FINISHED", "BUSY")


async def test_an_unknown_lead_takes_the_outcome_of_its_late_call(stage: Stage) -> None:
    lead = await stage.dialing.lead()
    attempt = await given_up(stage, lead, "unknown")
    assert (await stage.lead(lead))["outcome"] == "UNKNOWN"
    await stage.told(attempt, "ringing")
    assert (await stage.lead(lead))["status"] == "PROCESSING"
    await stage.told(attempt, "answered", "ended", duration_s=90)
    ended = await stage.lead(lead)
    assert (ended["status"], ended["outcome"], ended["outcome_reason"]) == ("FINISHED", "ANSWERED", None)


async def test_an_unknown_lead_whose_late_call_was_unanswered_is_retried(stage: Stage) -> None:
    lead = await stage.dialing.lead(max_attempts=2)
    attempt = await given_up(stage, lead, "unknown")
    await stage.told(attempt, "ended", reason="no_answer", duration_s=0)
    waiting = await stage.lead(lead)
    assert (waiting["status"], waiting["outcome"], waiting["attempt_count"]) == ("BACKLOG", None, 1)


@pytest.mark.parametrize("kind", ["ended", "ringing", "answered", "machine"])
async def test_events_of_a_foreign_call_under_an_attempt_change_nothing(stage: Stage, kind: str) -> None:
    lead = await stage.dialing.lead()
    await stage.dial()
    attempt = (await stage.attempt(lead))["id"]
    await stage.told(attempt, "ringing")
    before = await stage.attempt(lead)
    await stage.told(attempt, kind, call_id="CA-another", reason="busy", answered_by="machine")
    assert await stage.attempt(lead) == before
    assert await stage.held() == {attempt}
    assert await alarms(stage) == {"foreign_call"}
    await stage.told(attempt, "answered", "ended", duration_s=5)
    assert (await stage.lead(lead))["outcome"] == "ANSWERED"


async def test_another_call_under_a_written_off_attempt_is_not_reattached(stage: Stage) -> None:
    lead = await stage.dialing.lead()
    attempt = await given_up(stage, lead)
    await stage.dialing.run("UPDATE attempts SET carrier_call_id = 'CA-first' WHERE id = $1", attempt)
    assert not await late_facts.reattach(stage.database, attempt, "CA-second")


async def test_a_call_that_the_carrier_names_in_two_ways_is_one_call(stage: Stage) -> None:
    """As Plivo does: by its request at create, by its leg later, and sometimes by the leg alone."""
    lead = await stage.dialing.lead()
    await stage.dial()
    attempt = (await stage.attempt(lead))["id"]
    own = f"CA-{attempt}"
    for kind, named in (
        ("ringing", {"call_id": "leg", "other_ids": [own]}),
        ("answered", {"call_id": own, "other_ids": ["leg"]}),
        ("ended", {"call_id": "leg", "is_leg_id": True}),
    ):
        news = event(attempt, kind, str(named["call_id"]))
        news.payload.update(named)
        await stage.inbox.append(news)
        await stage.folder.drain()
    row = await stage.attempt(lead)
    assert (row["state"], row["carrier_call_id"], await alarms(stage)) == ("ended", own, set())


async def test_the_newest_attempt_is_the_last_one_made_though_the_clock_went_back(stage: Stage) -> None:
    """Postgres moved to a host whose clock is 90 s behind."""
    lead = await stage.dialing.lead()
    await stage.dial()
    first = (await stage.attempt(lead))["id"]
    await stage.told(first, "ended", reason="no_answer")
    await stage.dialing.run(
        "UPDATE attempts SET intent_at = intent_at + interval '90 s' WHERE id = $1", first
    )
    await stage.due_now(lead)
    assert await stage.dial() == 1
    (second,) = (row["id"] for row in await stage.attempts(lead) if row["id"] != first)
    await stage.told(second, "ringing")
    assert await may_connect(stage, second) != "superseded"
    await stage.told(second, "answered", "ended", duration_s=60)
    assert (await stage.lead(lead))["outcome"] == "ANSWERED"


async def test_an_attempt_disowned_late_is_not_the_newest_attempt(stage: Stage) -> None:
    """Another dialer called the lead before the first one wrote down that it sent nothing."""
    lead = await stage.dialing.lead()
    connection, batch = await stage.dialing.half_an_intent(stage.dialing.grant(lead))
    await connection.execute("ROLLBACK")
    assert await stage.dial() == 1
    called = (await stage.attempt(lead))["id"]
    await disown(stage.database, batch.attempts, "another dialer")
    await stage.told(called, "answered", "ended", duration_s=60)
    assert (await stage.lead(lead))["outcome"] == "ANSWERED"


@pytest.mark.parametrize("agent", ["it talked", "nobody answered"])
async def test_a_lead_aborted_with_a_hang_up_ends_as_aborted(stage: Stage, agent: str) -> None:
    lead = await stage.dialing.lead()
    await stage.dial()
    attempt = (await stage.attempt(lead))["id"]
    if agent == "it talked":
        await stage.told(attempt, "answered")
        async with stage.database.transaction() as tx:
            await agent_reports.take(tx, attempt, CallReport("echoed"))
    async with stage.database.transaction() as tx:
        await lead_edits.lock(tx, PLATFORM, [lead])
        await lead_edits.request_cancel(tx, [lead], "sold out", hang_up=True)
    await stage.hang_ups.run_once()
    await stage.told(attempt, "ended", duration_s=7)
    ended = await stage.lead(lead)
    assert (ended["outcome"], ended["outcome_reason"]) == ("ABORTED", "sold out")
