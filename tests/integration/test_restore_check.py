"""Calls that a restored database does not know, given back to their leads."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner, Result

from tests.support.dispatch.stage import Stage, open_stage
from tests.support.world import SECRET_KEY
from trunkline.cli.main import app
from trunkline.cli.restore_check import RestoreCheckError
from trunkline.dispatch.restore_check import Comparison, RestoreCheck, Settled
from trunkline.store import controls, restores
from trunkline.store.controls import Level, NewStop, Scope
from trunkline.store.tenants import PLATFORM
from trunkline.telephony.carrier import CallView, Unavailable
from trunkline.value import replace

AGO = timedelta(minutes=30)


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        async with stage.database.transaction() as tx:
            await controls.stop(
                tx, NewStop(Scope.KILL_SWITCH, "", Level.PLATFORM, "restored", "test", PLATFORM, 0)
            )
            await restores.add(tx, datetime.now(UTC) - timedelta(hours=1), "restored")
        yield stage


async def waiting(stage: Stage, **more: Any) -> UUID:
    """A lead that was due when the calls were placed."""
    lead = await stage.dialing.lead(**more)
    await stage.dialing.run(
        "UPDATE leads SET due_at = due_at - $2::interval, created_at = created_at - $2::interval WHERE id = $1",
        lead,
        2 * AGO,
    )
    return lead


async def placed(stage: Stage, lead: UUID, state: str = "ended", **more: Any) -> CallView:
    """A call to its phone that the carrier knows."""
    row, began = await stage.lead(lead), datetime.now(UTC) - AGO
    from_ = await stage.dialing.value("SELECT e164 FROM numbers WHERE id = $1", stage.dialing.number)
    given: dict[str, Any] = {"created_at": began, "started_at": began}
    if state == "ended":
        given |= {"reason": "completed", "ended_at": began + timedelta(seconds=20), "duration_s": 15}
    call = CallView(
        f"CA-{len(calls(stage))}",
        row["phone"],
        from_,
        status=state,
        state=state,  # type: ignore[arg-type]
        **(given | more),
    )
    calls(stage).append(call)
    return call


def calls(stage: Stage) -> list[CallView]:
    assert isinstance(stage.carrier.calls, list)
    return stage.carrier.calls


async def compared(stage: Stage) -> Comparison:
    check = RestoreCheck(stage.database, stage.directory)
    async with stage.database.connection() as conn:
        between = await restores.unsettled(conn)
    assert between is not None
    return await check.compare(between.backup_at, between.found_at)


async def settled(stage: Stage, **more: bool) -> object:
    return await RestoreCheck(stage.database, stage.directory).settle(await compared(stage), **more)


async def test_an_ended_call_missing_in_the_backup_settles_its_lead(stage: Stage) -> None:
    lead = await waiting(stage)
    call = await placed(stage, lead)
    assert await settled(stage) == Settled(restored=1, unknown=0)
    assert (await stage.lead(lead))["status"] == "PROCESSING", "nobody else calls it from here on"
    await stage.folder.drain()
    row, attempt = await stage.lead(lead), await stage.attempt(lead)
    assert (row["status"], row["outcome"], row["attempt_count"]) == ("FINISHED", "ANSWERED", 1)
    assert (attempt["state"], attempt["carrier_call_id"], attempt["duration_s"]) == (
        "ended",
        call.call_id,
        15,
    )
    assert not attempt["holds_channel"]
    async with stage.database.connection() as conn:
        assert await restores.unsettled(conn) is None


async def test_an_unanswered_call_missing_in_the_backup_is_retried_by_its_rules(stage: Stage) -> None:
    lead = await waiting(stage, max_attempts=2)
    await placed(stage, lead, reason="no_answer", duration_s=None)
    await settled(stage)
    await stage.folder.drain()
    row = await stage.lead(lead)
    assert (row["status"], row["attempt_count"]) == ("BACKLOG", 1)
    assert row["due_at"] > await stage.dialing.now()


async def test_two_restored_calls_of_a_lead_are_two_attempts_and_the_last_settles_it(stage: Stage) -> None:
    lead = await waiting(stage, max_attempts=2)
    first = await placed(stage, lead, reason="no_answer", duration_s=None)
    later = (first.started_at or datetime.now(UTC)) + timedelta(minutes=1)
    await placed(stage, lead, started_at=later, created_at=later, ended_at=later + timedelta(seconds=9))
    await settled(stage)
    await stage.folder.drain()
    row = await stage.lead(lead)
    assert (row["outcome"], row["attempt_count"]) == ("ANSWERED", 2)
    assert [each["end_reason"] for each in await stage.attempts(lead)] == ["no_answer", "completed"]


async def test_a_call_that_is_still_live_holds_its_lead_until_it_ends(stage: Stage) -> None:
    lead = await waiting(stage)
    call = await placed(stage, lead, "answered")
    await settled(stage)
    attempt = (await stage.attempt(lead))["id"]
    assert await stage.truly_held() == {attempt}
    for state in ("answered", "ended"):
        now = replace(call, state=state, reason="completed", ended_at=datetime.now(UTC))
        stage.carrier.found[call.call_id] = now
        await stage.age(attempt, 0)
        await stage.checker.run_once()
        await stage.folder.drain()
        assert (await stage.attempt(lead))["state"] == state
    assert (await stage.lead(lead))["outcome"] == "ANSWERED"


async def test_of_two_leads_of_one_phone_called_by_one_number_one_ends_as_unknown(stage: Stage) -> None:
    """One live call per pair of numbers is an index. What it refuses is not called again."""
    one = await waiting(stage)
    two = await waiting(stage, phone=(await stage.lead(one))["phone"])
    await placed(stage, one)
    await placed(stage, one)
    assert await settled(stage) == Settled(restored=1, unknown=1)
    await stage.folder.drain()
    outcomes = {(await stage.lead(lead))["outcome"] for lead in (one, two)}
    assert outcomes == {"ANSWERED", "UNKNOWN"}


async def test_a_call_of_an_attempt_in_doubt_is_left_to_the_checker(stage: Stage) -> None:
    lead = await waiting(stage)
    call = await placed(stage, lead)
    await stage.dialing.attempt(call.to, from_phone=call.from_, state="in_doubt", ago_s=AGO.total_seconds())
    found = await compared(stage)
    assert (found.matching.called, found.matching.orphans, found.live) == ([], [], 1)
    assert await settled(stage) == "calls_live", "its lead may be due again when it is known"


async def test_a_restore_is_not_settled_while_the_kill_switch_is_off(stage: Stage) -> None:
    async with stage.database.transaction() as tx:
        await controls.resume(tx, Scope.KILL_SWITCH, "", Level.PLATFORM, reason="x", by="x", ramp_s=0)
    assert await settled(stage) == "kill_switch_off"


async def test_an_incomplete_list_settles_nothing_unless_that_is_accepted(stage: Stage) -> None:
    lead, later = await waiting(stage), await stage.dialing.lead()
    await stage.dialing.run("UPDATE leads SET due_at = now() + interval '1 day' WHERE id = $1", later)
    stage.carrier.calls = Unavailable("503")
    assert (await compared(stage)).unread == 1
    assert await settled(stage) == "lists_unread"
    assert await settled(stage, accept_unread=True) == Settled(restored=0, unknown=1)
    assert (await stage.lead(lead))["outcome"] == "UNKNOWN"
    assert (await stage.lead(later))["status"] == "BACKLOG"


async def test_settling_a_restore_twice_adds_no_attempt(stage: Stage) -> None:
    lead = await waiting(stage)
    await placed(stage, lead)
    found = await compared(stage)
    check = RestoreCheck(stage.database, stage.directory)
    assert await check.settle(found) == Settled(restored=1, unknown=0)
    assert await check.settle(found) == Settled(restored=0, unknown=0)
    await stage.folder.drain()
    assert len(await stage.attempts(lead)) == 1


async def test_a_reminders_lead_made_after_the_comparison_ends_as_unknown(stage: Stage) -> None:
    """Its person was called in the time that was lost, and the comparison has not seen its lead."""
    other, unrelated = await waiting(stage), await waiting(stage)
    call = await placed(stage, other)
    comparison = await compared(stage)
    made = await stage.dialing.lead(call.to)
    for lead in (made, unrelated):
        await _is_reminder(stage, lead)
    done = await RestoreCheck(stage.database, stage.directory).settle(comparison)
    assert done == Settled(restored=1, unknown=1)
    row = await stage.lead(made)
    assert (row["status"], row["outcome"], row["outcome_reason"]) == ("FINISHED", "UNKNOWN", "RESTORED")
    assert (await stage.lead(unrelated))["status"] == "BACKLOG", "its person was not called"


async def _is_reminder(stage: Stage, lead: UUID) -> None:
    """As if it were the occurrence of a reminder that was due when the calls were placed."""
    await stage.dialing.run(
        "WITH series AS (INSERT INTO reminders (id, reseller_id, merchant_id, request_hash, phone, timezone, starts_at,"
        " pool_id, late_s) SELECT gen_random_uuid(), l.reseller_id, l.merchant_id, sha256('x'), l.phone, 'UTC', now(),"
        " l.pool_id, 900 FROM leads AS l WHERE l.id = $1 RETURNING id, reseller_id, merchant_id)"
        " INSERT INTO reminder_occurrences (id, reminder_id, reseller_id, merchant_id, wall_at, scheduled_at, state,"
        " max_attempts, lead_id)"
        " SELECT gen_random_uuid(), s.id, s.reseller_id, s.merchant_id, now(), now() - $2::interval, 'SCHEDULED', 3, $1"
        " FROM series AS s",
        lead,
        AGO,
    )


async def test_a_restore_given_by_its_time_is_recorded_when_it_is_settled(stage: Stage) -> None:
    """So that reminders which may have rung in the time that was lost are not made."""
    await stage.dialing.run("DELETE FROM restores")
    check, found_at = RestoreCheck(stage.database, stage.directory), datetime.now(UTC)
    await check.settle(await check.compare(found_at - AGO, found_at))
    async with stage.database.transaction() as tx:
        assert await restores.is_settled_after(tx, found_at - timedelta(seconds=1))
        assert not await restores.is_settled_after(tx, found_at + timedelta(seconds=1))


async def restore_check(**environment: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, ["restore-check"], env=environment)


async def test_restore_check_without_an_unsettled_restore_compares_nothing(database_url: str) -> None:
    result = await restore_check(DATABASE_URL=database_url, TRUNKLINE_SECRET_KEY=SECRET_KEY)
    assert (result.exit_code, result.exception) == (0, None)
    assert result.output.startswith("No restore is unsettled.")


@pytest.mark.parametrize("missing", ["DATABASE_URL", "TRUNKLINE_SECRET_KEY"])
async def test_restore_check_names_the_variables_that_it_needs(
    database_url: str, tmp_path: Path, missing: str
) -> None:
    environment = {"DATABASE_URL": database_url, "TRUNKLINE_SECRET_KEY": SECRET_KEY}
    del environment[missing]
    result = await restore_check(TRUNKLINE_DATA_DIR=str(tmp_path), **environment)
    assert isinstance(result.exception, RestoreCheckError)
    assert str(result.exception).startswith("restore-check needs DATABASE_URL and TRUNKLINE_SECRET_KEY")
