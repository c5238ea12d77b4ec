"""A reopened lead: earlier calls change nothing, limits hold, the carrier is asked about attempts in doubt."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.support.dispatch.stage import Stage, open_stage
from trunkline.leads.calling_policy import CallingPolicy
from trunkline.store import lead_edits
from trunkline.store.lead_edits import Reopened, ReopenOrder
from trunkline.store.tenants import PLATFORM
from trunkline.telephony.carrier import CallView, InDoubt, Unavailable

ORDER = ReopenOrder("order-1", "agents were away", "somebody")


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


async def called(stage: Stage, lead: UUID) -> UUID:
    """Dial it; the newest attempt."""
    await stage.due_now(lead)
    assert await stage.dial() == 1
    return UUID(str((await stage.attempts(lead))[-1]["id"]))


async def reopen(stage: Stage, lead: UUID, order: ReopenOrder = ORDER) -> dict[str, Any]:
    async with stage.database.transaction() as tx:
        locked = await lead_edits.lock(tx, PLATFORM, [lead])
        most = max(locked[lead].max_attempts, locked[lead].attempt_count + 1)
        await lead_edits.reopen(tx, [Reopened(lead, datetime.now(UTC), None, None, most)], order)
    return await stage.lead(lead)


async def end_without_agent(stage: Stage, lead: UUID) -> UUID:
    """Answered, and no agent was there: three times, as the rules have it."""
    for _ in range(3):
        last = await called(stage, lead)
        await stage.told(last, "ringing", "answered", agent_joined=False)
        await stage.told(last, "ended", reason="completed", duration_s=2)
    assert (await stage.lead(lead))["outcome"] == "NO_AGENT"
    return UUID(str((await stage.attempts(lead))[-1]["id"]))


async def test_a_reopened_lead_is_called_and_ends_like_any_other(stage: Stage) -> None:
    lead = await stage.dialing.lead()
    await end_without_agent(stage, lead)
    await reopen(stage, lead)
    attempt = await called(stage, lead)
    await stage.told(attempt, "ringing", "answered", agent_joined=True)
    await stage.told(attempt, "ended", reason="completed", duration_s=90)
    row = await stage.lead(lead)
    assert (row["status"], row["outcome"], row["reopen_count"]) == ("FINISHED", "ANSWERED", 1)
    numbers = [each["intent_at"] for each in await stage.attempts(lead)]
    assert len(numbers) == 4
    assert numbers == sorted(numbers)


async def test_late_events_of_an_earlier_call_do_not_change_a_reopened_lead(stage: Stage) -> None:
    lead = await stage.dialing.lead()
    earlier = await end_without_agent(stage, lead)
    before = await reopen(stage, lead)
    await stage.told(earlier, "ended", reason="busy", call_id="CA-again", dedupe_key="late")
    await stage.dialing.run(
        "INSERT INTO call_reports (attempt_id, reseller_id, merchant_id, disposition)"
        " SELECT id, reseller_id, merchant_id, 'SOLD' FROM attempts WHERE id = $1",
        earlier,
    )
    await stage.told(earlier, "reported", dedupe_key="report")
    after = await stage.lead(lead)
    assert (after["status"], after["version"], after["attempt_count"]) == (
        "BACKLOG",
        before["version"],
        before["attempt_count"],
    )
    await called(stage, lead)


async def test_a_reopening_resets_the_carrier_error_count(stage: Stage) -> None:
    """Carrier errors of an earlier order are forgiven: the first refusal does not end the lead."""
    lead = await stage.dialing.lead()
    await stage.dialing.run(
        "UPDATE leads SET status = 'FINISHED', outcome = 'CARRIER_ERROR', finished_at = now(), carrier_error_count = 3"
        " WHERE id = $1",
        lead,
    )
    assert (await reopen(stage, lead))["carrier_error_count"] == 0


async def test_limits_per_person_hold_for_a_reopened_lead(stage: Stage) -> None:
    await stage.dialing.policy(
        CallingPolicy.model_validate({"person_limits": [{"max_calls": 1, "window_h": 24}]})
    )
    lead = await stage.dialing.lead(max_attempts=1)
    attempt = await called(stage, lead)
    await stage.told(attempt, "ringing")
    await stage.told(attempt, "ended", reason="no_answer")
    assert (await stage.lead(lead))["status"] == "FINISHED"
    await reopen(stage, lead)
    assert await stage.dial() == 0
    row = await stage.lead(lead)
    assert row["status"] == "BACKLOG"
    assert row["due_at"] > datetime.now(UTC) + timedelta(hours=20), "put off by the limit, not called"


async def unknown(stage: Stage) -> tuple[UUID, UUID]:
    """A lead whose only call may or may not have been made, and whose carrier could not be asked."""
    lead = await stage.dialing.lead()
    stage.carrier.says(InDoubt("timeout"))
    stage.carrier.calls = Unavailable("503")
    attempt = await called(stage, lead)
    for seconds in (10, 40, 150, 700):
        await stage.age(attempt, seconds)
        await stage.checker.run_once()
        await stage.checker.drain()
    assert (await stage.lead(lead))["outcome"] == "UNKNOWN"
    stage.carrier.answer = stage.carrier.accept
    return lead, attempt


async def test_an_unknown_attempt_that_the_carrier_does_not_list_is_settled_and_frees_its_channel(
    stage: Stage,
) -> None:
    lead, attempt = await unknown(stage)
    assert await stage.checker.resolve_unknown(attempt) == "unknown"
    assert attempt in await stage.truly_held()
    stage.carrier.calls = []
    assert await stage.checker.resolve_unknown(attempt) == "settled"
    row = await stage.attempt(lead)
    assert (row["state"], row["holds_channel"]) == ("absent", False)
    assert (await stage.lead(lead))["attempt_count"] == 0, "nobody was called"
    assert attempt not in await stage.held()
    assert (await stage.lead(lead))["outcome"] == "UNKNOWN", "only an order has it called again"
    assert await stage.checker.resolve_unknown(attempt) == "settled"
    await reopen(stage, lead)
    await called(stage, lead)


async def test_an_unknown_attempt_that_the_carrier_lists_is_found_and_reattached(stage: Stage) -> None:
    lead, attempt = await unknown(stage)
    row = await stage.attempt(lead)
    stage.carrier.calls = [
        CallView("CA-late", row["to_phone"], row["from_phone"], "completed", "ended", reason="completed")
    ]
    assert await stage.checker.resolve_unknown(attempt) == "found"
    assert (await stage.attempt(lead))["state"] == "unknown", "until the mailbox has folded it"
    await stage.folder.drain()
    assert (await stage.attempt(lead))["carrier_call_id"] == "CA-late"


async def test_a_call_that_reappears_for_a_reopened_lead_replaces_its_next_dial(stage: Stage) -> None:
    """The carrier had denied it. It rings while its lead waits to be called again: nobody is rung twice."""
    lead, attempt = await unknown(stage)
    stage.carrier.calls = []
    await stage.checker.resolve_unknown(attempt)
    await reopen(stage, lead)
    await stage.told(attempt, "ringing", call_id="CA-late")
    row = await stage.lead(lead)
    assert (row["status"], row["reopen_count"], row["attempt_count"]) == ("PROCESSING", 1, 1)
    assert await stage.dial() == 0
