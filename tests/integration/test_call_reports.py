"""An agent's report and the carrier's facts add up to the same, whichever comes first."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support.dispatch.stage import Stage, event, open_stage
from trunkline.dispatch import agent_reports, calls
from trunkline.model import CallReport
from trunkline.store import leads
from trunkline.store.mailboxes import NewEvent


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


async def answered(stage: Stage, **lead: Any) -> tuple[UUID, UUID]:
    """A lead whose call was answered, and its attempt."""
    lead_id = await stage.dialing.lead(**lead)
    assert await stage.dial() == 1
    attempt = (await stage.attempts(lead_id))[-1]["id"]
    await stage.told(attempt, "ringing", "answered")
    return lead_id, attempt


async def report(stage: Stage, attempt: UUID, report: CallReport) -> str:
    async with stage.database.transaction() as tx:
        taken = await agent_reports.take(tx, attempt, report)
    await stage.folder.drain()
    return taken


async def both(stage: Stage, attempt: UUID, told: CallReport, *, agent_first: bool, **end: Any) -> None:
    """The end of the call and the report on it, in one order or the other."""
    if agent_first:
        await report(stage, attempt, told)
    await stage.told(attempt, "ended", **end)
    if not agent_first:
        await report(stage, attempt, told)


ORDERS = pytest.mark.parametrize("agent_first", [True, False], ids=["agent first", "carrier first"])


@ORDERS
async def test_the_agents_disposition_is_the_leads_outcome(stage: Stage, agent_first: bool) -> None:
    lead_id, attempt = await answered(stage)
    await both(stage, attempt, CallReport("not interested"), agent_first=agent_first)
    lead = await stage.lead(lead_id)
    assert (lead["status"], lead["outcome"]) == ("FINISHED", "NOT_INTERESTED")


@ORDERS
async def test_a_callback_in_a_report_sets_the_leads_due_time(stage: Stage, agent_first: bool) -> None:
    lead_id, attempt = await answered(stage, max_attempts=3)
    wanted = datetime.now(UTC) + timedelta(hours=5)
    await both(stage, attempt, CallReport("callback", callback_at=wanted), agent_first=agent_first)
    lead = await stage.lead(lead_id)
    assert (lead["status"], lead["outcome"], lead["finished_at"]) == ("BACKLOG", None, None)
    assert abs(lead["due_at"] - wanted) < timedelta(seconds=1)


@ORDERS
async def test_a_lead_reported_as_voicemail_by_the_agent_is_retried_within_its_budget(
    stage: Stage, agent_first: bool
) -> None:
    lead_id, attempt = await answered(stage, max_attempts=2)
    await both(stage, attempt, CallReport("voicemail"), agent_first=agent_first)
    lead = await stage.lead(lead_id)
    assert lead["status"] == "BACKLOG"
    # And the next call is the last one: the budget is one for all of them.
    await stage.due_now(lead_id)
    assert await stage.dial() == 1
    again = max(await stage.attempts(lead_id), key=lambda row: row["intent_at"])["id"]
    await stage.told(again, "answered")
    await both(stage, again, CallReport("voicemail"), agent_first=agent_first)
    lead = await stage.lead(lead_id)
    assert (lead["status"], lead["outcome"]) == ("FINISHED", "VOICEMAIL")


@ORDERS
async def test_a_callback_beyond_the_attempt_budget_finishes_the_lead(
    stage: Stage, agent_first: bool
) -> None:
    lead_id, attempt = await answered(stage, max_attempts=1)
    wanted = datetime.now(UTC) + timedelta(hours=5)
    await both(stage, attempt, CallReport("callback", callback_at=wanted), agent_first=agent_first)
    lead = await stage.lead(lead_id)
    assert (lead["status"], lead["outcome"]) == ("FINISHED", "CALLBACK")


@ORDERS
async def test_an_opt_out_in_a_report_blocks_every_lead_of_the_person(
    stage: Stage, agent_first: bool
) -> None:
    lead_id, attempt = await answered(stage, max_attempts=3)
    other = await stage.dialing.lead(phone=(await stage.lead(lead_id))["phone"])
    told = CallReport("voicemail", opt_out=True, callback_at=datetime.now(UTC))
    await both(stage, attempt, told, agent_first=agent_first)
    assert (await stage.lead(lead_id))["outcome"] == "VOICEMAIL"
    # Another lead to the same person meets the list at its dial.
    assert await stage.dial() == 0
    assert (await stage.lead(other))["outcome"] == "BLACKLISTED"


@ORDERS
async def test_a_report_does_not_turn_an_unanswered_call_into_an_answered_one(
    stage: Stage, agent_first: bool
) -> None:
    lead_id = await stage.dialing.lead(max_attempts=1)
    await stage.dial()
    attempt = (await stage.attempt(lead_id))["id"]
    await both(stage, attempt, CallReport("sold"), agent_first=agent_first, reason="no_answer")
    lead = await stage.lead(lead_id)
    assert (lead["outcome"], lead["outcome_reason"]) == ("NO_ANSWER", "NO_ANSWER")


async def test_a_late_report_does_not_reopen_a_cancelled_lead(stage: Stage) -> None:
    lead_id, attempt = await answered(stage, max_attempts=3)
    await stage.dialing.run(
        "UPDATE leads SET cancel_requested_at = now(), cancel_reason = 'paid' WHERE id = $1", lead_id
    )
    await both(
        stage,
        attempt,
        CallReport("callback", callback_at=datetime.now(UTC) + timedelta(hours=1)),
        agent_first=False,
    )
    assert (await stage.lead(lead_id))["status"] == "FINISHED"


async def test_a_report_on_an_older_attempt_does_not_change_the_outcome(stage: Stage) -> None:
    lead_id, attempt = await answered(stage, max_attempts=2)
    await both(stage, attempt, CallReport("voicemail"), agent_first=True)
    await stage.due_now(lead_id)
    await stage.dial()
    newer = max(await stage.attempts(lead_id), key=lambda row: row["intent_at"])["id"]
    await stage.told(newer, "answered", "ended")
    assert (await stage.lead(lead_id))["outcome"] == "ANSWERED"
    await stage.told(attempt, "recording")  # a late event of the old call, which has a report
    assert (await stage.lead(lead_id))["outcome"] == "ANSWERED"


async def test_the_same_report_again_is_known_and_a_different_one_is_contradicted(stage: Stage) -> None:
    lead_id, attempt = await answered(stage)
    told = CallReport(
        "sold", transcript_ref="s3://t/1", recording_ref="s3://r/1", data={"sum": [1, {"a": None}]}
    )
    assert await report(stage, attempt, told) == "new"
    assert await report(stage, attempt, told) == "known"
    assert await report(stage, attempt, CallReport("not sold")) == "contradicted"
    await stage.told(attempt, "ended")
    assert (await stage.lead(lead_id))["outcome"] == "SOLD"
    async with stage.database.connection() as conn:
        kept = await conn.fetchrow("SELECT * FROM call_reports WHERE attempt_id = $1", attempt)
    assert kept is not None
    assert (kept["transcript_ref"], kept["recording_ref"]) == ("s3://t/1", "s3://r/1")
    assert kept["data"] == {"sum": [1, {"a": None}]}


async def test_a_report_on_an_unknown_call_is_refused(stage: Stage) -> None:
    assert await report(stage, uuid4(), CallReport("sold")) == "no_call"


@pytest.mark.parametrize("reason", ["no_answer", "busy", "completed"])
async def test_every_ended_attempt_is_released_at_the_router(stage: Stage, reason: str) -> None:
    """The third and the fourth way in which a pod is released: unanswered, and the status callback."""
    lead_id = await stage.dialing.lead()
    await stage.dial()
    attempt = (await stage.attempt(lead_id))["id"]
    if reason == "completed":
        await stage.told(attempt, "answered")
    await stage.told(attempt, "ended", reason=reason)
    assert stage.over == [attempt]


@pytest.mark.parametrize("name", ["RecordingUrl", "RecordUrl", "recordingUrl"])
async def test_a_recording_reference_of_the_carrier_is_stored_once(stage: Stage, name: str) -> None:
    lead_id, attempt = await answered(stage)
    for number, ref in enumerate(["https://r/1", "https://r/1", "", 7]):
        told = event(attempt, "recording", f"CA-{attempt}", dedupe_key=f"recording {number}")
        told.payload["raw"] = {name: ref}
        await stage.inbox.append(told)
    await stage.told(attempt, "ended")
    async with stage.database.connection() as conn:
        (kept,) = await leads.attempts(conn, lead_id)
    assert kept.recordings == ["https://r/1"]


async def told_with_report(stage: Stage, attempt: UUID, dedupe_key: str = "report", **told: Any) -> None:
    """The end of a call whose agent is its carrier's own."""
    end = event(attempt, "ended", f"CA-{attempt}", dedupe_key=dedupe_key)
    end.payload["report"] = told
    await stage.inbox.append(end)
    await stage.folder.drain()


@pytest.mark.parametrize("end_first", [True, False])
async def test_a_report_in_a_webhook_counts_as_the_agents_report(stage: Stage, end_first: bool) -> None:
    lead_id, attempt = await answered(stage, max_attempts=3)
    if end_first:
        await stage.told(attempt, "ended")
        assert (await stage.lead(lead_id))["outcome"] == "ANSWERED"
    wanted = datetime.now(UTC) + timedelta(hours=5)
    await told_with_report(stage, attempt, disposition="callback", callback_at=wanted.isoformat())
    lead = await stage.lead(lead_id)
    assert (lead["status"], lead["outcome"]) == ("BACKLOG", None)
    assert abs(lead["due_at"] - wanted) < timedelta(seconds=1)


async def test_an_opt_out_in_a_webhooks_report_is_honoured_and_its_references_stored(stage: Stage) -> None:
    lead_id, attempt = await answered(stage)
    other = await stage.dialing.lead(phone=(await stage.lead(lead_id))["phone"])
    told: dict[str, Any] = {
        "disposition": "sold",
        "transcript_ref": "https://t/1",
        "recording_ref": "https://r/1",
        "data": {"a": 1},
    }
    await told_with_report(stage, attempt, opt_out=True, **told)
    await told_with_report(stage, attempt, "again", disposition="not sold")  # the first one stands
    assert (await stage.lead(lead_id))["outcome"] == "SOLD"
    async with stage.database.connection() as conn:
        (kept,) = await leads.attempts(conn, lead_id)
    assert kept.report is not None
    assert {name: kept.report[name] for name in told} == told
    assert await stage.dial() == 0
    assert (await stage.lead(other))["outcome"] == "BLACKLISTED"


async def test_an_unreadable_report_in_a_webhook_does_not_lose_the_calls_end(stage: Stage) -> None:
    lead_id, attempt = await answered(stage)
    await told_with_report(
        stage, attempt, disposition=7, callback_at="soon", transcript_ref="x" * 3000, data=[1], opt_out="yes"
    )
    assert (await stage.lead(lead_id))["outcome"] == "ANSWERED"


async def told_of_recording(stage: Stage, attempt: UUID, ref: str, number: int, **raw: str) -> None:
    told = event(attempt, "recording", f"CA-{attempt}", dedupe_key=f"recording {number}")
    told.payload["raw"] = {"RecordingUrl": ref, **raw}
    await stage.inbox.append(told)
    await stage.folder.drain()


async def test_a_recording_event_enqueues_one_fetch_job_in_its_transaction(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with open_stage(database_url, redis_url, key_prefix, enriches=True) as stage:
        _, attempt = await answered(stage)
        await told_of_recording(stage, attempt, "https://r/1", 1)
        await told_of_recording(stage, attempt, "https://r/1", 2)
        await stage.told(attempt, "ended")
        await told_of_recording(stage, attempt, "https://r/2", 3)
        await told_of_recording(stage, attempt, "https://r/3", 4, RecordingStatus="absent")
        async with stage.database.connection() as conn:
            jobs = await conn.fetch("SELECT unique_key FROM job_outbox WHERE job_type = 'enrich_call'")
            items = await conn.fetch(
                "SELECT item_id, source FROM call_enrichments WHERE attempt_id = $1", attempt
            )
    assert {row["unique_key"] for row in jobs} == {row["item_id"] for row in items}
    assert len(jobs) == 2
    assert sorted(json.loads(row["source"])["recording_url"] for row in items) == [
        "https://r/1",
        "https://r/2",
    ]


async def test_a_recording_whose_fold_rolls_back_enqueues_no_fetch_job(
    database_url: str, redis_url: str, key_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fact and job are one transaction."""
    async with open_stage(database_url, redis_url, key_prefix, enriches=True) as stage:
        _, attempt = await answered(stage)

        async def break_off(*_: object) -> None:
            raise RuntimeError("the end of the transaction")

        monkeypatch.setattr(calls, "follow_agents", break_off)
        await told_of_recording(stage, attempt, "https://r/1", 1)
        async with stage.database.connection() as conn:
            assert await conn.fetchval("SELECT count(*) FROM job_outbox WHERE job_type = 'enrich_call'") == 0
            assert await conn.fetchval("SELECT count(*) FROM call_enrichments") == 0
            assert await conn.fetchval("SELECT count(*) FROM call_recordings") == 0


def carried(attempt: UUID, **report: Any) -> NewEvent:
    """The end of a call with the report of the carrier's own agent in it."""
    end = event(attempt, "ended", f"CA-{attempt}", duration_s=5)
    end.payload["report"] = {"disposition": "sold", "data": {}, **report}
    return end


@pytest.mark.parametrize(
    "callback_at",
    [
        "9999-12-31T23:59:59-05:00",
        "0001-01-01T00:00:00+05:30",
        "0001-01-01T00:00:00Z",
        "2500-01-01T00:00:00Z",
    ],
)
async def test_a_report_with_an_impossible_callback_date_still_ends_its_call(
    stage: Stage, callback_at: str
) -> None:
    lead_id, attempt = await answered(stage)
    await stage.inbox.append(carried(attempt, callback_at=callback_at))
    await stage.folder.drain()
    assert not (await stage.attempt(lead_id))["holds_channel"]
    assert (await stage.lead(lead_id))["outcome"] == "SOLD"
    assert await stage.dialing.value("SELECT callback_at FROM call_reports") is None


async def test_a_report_that_cannot_be_stored_is_set_aside_and_its_call_ends(stage: Stage) -> None:
    """Its call ends, the others of its batch end, and an opt-out is still listed."""
    await stage.dialing.run("ALTER TABLE call_reports ADD CHECK (disposition <> 'unacceptable')")
    lead_id, attempt = await answered(stage)
    other_lead, other = await answered(stage)
    await stage.inbox.append(carried(attempt, disposition="unacceptable", opt_out=True))
    await stage.inbox.append(carried(other))
    await stage.folder.drain()
    assert await stage.truly_held() == set()
    assert (await stage.lead(lead_id))["outcome"] == "ANSWERED"
    assert (await stage.lead(other_lead))["outcome"] == "SOLD"
    phone = (await stage.lead(lead_id))["phone"]
    assert await stage.dialing.value("SELECT count(*) FROM do_not_call WHERE phone = $1", phone) == 1
    error = await stage.dialing.value("SELECT error FROM mailbox_events WHERE error IS NOT NULL")
    assert error.startswith("its report cannot be stored")


async def test_a_recording_that_cannot_be_stored_does_not_keep_its_call_from_ending(stage: Stage) -> None:
    await stage.dialing.run("ALTER TABLE call_recordings ADD CHECK (ref NOT LIKE '%unacceptable%')")
    lead_id, attempt = await answered(stage)
    end = event(attempt, "ended", f"CA-{attempt}")
    end.payload["raw"] = {"RecordingUrl": "https://carrier.example/unacceptable"}
    await stage.inbox.append(end)
    await stage.folder.drain()
    assert not (await stage.attempt(lead_id))["holds_channel"]
    assert (await stage.lead(lead_id))["status"] == "FINISHED"
