"""Making occurrences, each once; what becomes of them."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import structlog

from tests.support.crashpoints import CRASH_POINTS, run_until_crash
from tests.support.dispatch.dialing import open_dialing
from tests.support.dispatch.stage import open_stage
from tests.support.metric_values import value
from tests.support.waiting import eventually
from trunkline.model import new_id
from trunkline.reminders.follower import ReminderFollower
from trunkline.reminders.scheduler import ReminderScheduler
from trunkline.store import restores
from trunkline.store.database import Database, connect
from trunkline.telemetry import metrics
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.carrier import Accepted, Rejected
from trunkline.telephony.carrier_registry import CarrierAccount
from trunkline.telephony.vapi import Vapi

POINTS = sorted(point for point in CRASH_POINTS if point.startswith("reminders."))

# A scheduler in a process of its own, for one look.
PROGRAM = """
import asyncio, sys
from trunkline.reminders.scheduler import ReminderScheduler
from trunkline.store.database import connect

async def nobody(lead_ids): ...

async def main():
    database = await connect(sys.argv[1], pool_size=2)
    await ReminderScheduler(database, nobody, interval_s=60, batch_max=3).run_once()
    await database.close()

asyncio.run(main())
"""


@dataclass
class World:
    url: str
    database: Database
    told: list[UUID] = field(default_factory=list)

    def scheduler(self, batch_max: int = 10) -> ReminderScheduler:
        return ReminderScheduler(self.database, self._tell, interval_s=60, batch_max=batch_max)

    async def _tell(self, lead_ids: Sequence[UUID]) -> None:
        self.told += lead_ids

    async def sql(self, text: str, *args: Any) -> Any:
        async with self.database.connection() as conn:
            return await conn.fetchval(text, *args)

    async def rows(self, text: str, *args: Any) -> list[dict[str, Any]]:
        async with self.database.connection() as conn:
            return [dict(row) for row in await conn.fetch(text, *args)]

    async def reminder(
        self, due_in_s: float = -1, rrule: str | None = "FREQ=DAILY", late_s: int = 900
    ) -> UUID:
        """One whose next occurrence is due then."""
        reminder_id, at = new_id(), datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=due_in_s)
        await self.sql(
            "INSERT INTO reminders (id, reseller_id, merchant_id, request_hash, phone, timezone, starts_at, rrule,"
            " pool_id, late_s, next_wall, next_at)"
            " VALUES ($1, 'r', 'm', sha256('x'), '+14155550123', 'UTC', $2, $3, 'p', $4, $2, $5)",
            reminder_id,
            at.replace(tzinfo=None),
            rrule,
            late_s,
            at,
        )
        return reminder_id

    async def occurrences(self, reminder_id: UUID) -> list[dict[str, Any]]:
        return await self.rows(
            "SELECT * FROM reminder_occurrences WHERE reminder_id = $1 ORDER BY wall_at", reminder_id
        )

    async def let_go(self) -> None:
        """Until no reminder is locked: Postgres ends a dead process' transaction a moment after the process."""
        await self.sql("SELECT count(*) FROM (SELECT FROM reminders FOR UPDATE) AS held")

    async def is_whole(self, reminder_ids: Sequence[UUID], each: int = 1) -> None:
        """Every occurrence has its lead, every lead its occurrence, and nobody has two."""
        assert await self.sql("SELECT count(*) FROM reminder_occurrences") == each * len(reminder_ids)
        assert await self.sql("SELECT count(DISTINCT lead_id) FROM reminder_occurrences") == each * len(
            reminder_ids
        )
        assert await self.sql("SELECT count(*) FROM leads") == each * len(reminder_ids)


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    database = await connect(database_url, pool_size=6)
    async with database.connection() as conn:
        await conn.execute("INSERT INTO resellers (id, name) VALUES ('r', 'r')")
        await conn.execute("INSERT INTO merchants (id, reseller_id, name) VALUES ('m', 'r', 'm')")
        await conn.execute("INSERT INTO pools (id, reseller_id, name) VALUES ('p', 'r', 'p')")
    yield World(database_url, database)
    await database.close()


async def test_a_due_occurrence_becomes_a_lead_once(world: World) -> None:
    reminder = await world.reminder()
    assert await world.scheduler().run_once() == 1
    assert await world.scheduler().run_once() == 0
    [occurrence] = await world.occurrences(reminder)
    assert occurrence["state"] == "SCHEDULED"
    assert world.told == [occurrence["lead_id"]]
    assert await world.sql("SELECT next_wall FROM reminders") == occurrence["wall_at"] + timedelta(days=1)


async def test_an_occurrence_becomes_a_lead_ahead_of_its_due_time(world: World) -> None:
    reminder = await world.reminder(due_in_s=100)
    await world.reminder(due_in_s=200)
    assert await world.scheduler().run_once() == 1
    [occurrence] = await world.occurrences(reminder)
    due = await world.sql("SELECT due_at FROM leads WHERE id = $1", occurrence["lead_id"])
    assert due == occurrence["scheduled_at"]


async def test_a_full_batch_of_occurrences_is_followed_by_the_next_at_once(world: World) -> None:
    made = [await world.reminder() for _ in range(7)]
    assert await world.scheduler(batch_max=2).run_once() == 7
    await world.is_whole(made)


async def test_many_schedulers_make_each_occurrence_once(world: World) -> None:
    made = [await world.reminder() for _ in range(20)]
    before = value(metrics.REMINDER_LOCK_CONTENTION)
    total = await asyncio.gather(*(world.scheduler(batch_max=5).run_once() for _ in range(4)))
    assert sum(total) == 20
    assert value(metrics.REMINDER_LOCK_CONTENTION) > before, "they met, and one gave way"
    await world.is_whole(made)


async def test_a_reminder_locked_by_another_process_is_skipped_and_logged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reminder = await world.reminder()
    log = structlog.testing.CapturingLogger()
    monkeypatch.setattr("trunkline.reminders.scheduler.log", log)
    async with world.database.transaction() as tx:
        await tx.execute("SELECT FROM reminders WHERE id = $1 FOR UPDATE", reminder)
        assert await world.scheduler(batch_max=1).run_once() == 0
    [line] = log.calls
    assert (line.method_name, line.args) == ("debug", (f"Reminder {reminder} already being processed",))


@pytest.mark.parametrize("point", POINTS)
async def test_a_crash_between_any_two_steps_makes_each_occurrence_once(world: World, point: str) -> None:
    made = [await world.reminder() for _ in range(4)]
    await run_until_crash([sys.executable, "-c", PROGRAM, world.url], point, nth=2)
    await world.let_go()
    await world.scheduler().run_once()
    await world.is_whole(made)


async def test_after_an_outage_recent_occurrences_ring_late_and_older_ones_are_skipped(world: World) -> None:
    reminder = await world.reminder(due_in_s=-3 * 3600 - 60, rrule="FREQ=HOURLY")
    await world.scheduler().run_once()
    found = [(each["state"], each["skip_reason"]) for each in await world.occurrences(reminder)]
    assert found == [("SKIPPED", "missed")] * 3 + [("SCHEDULED", None)]
    assert await world.sql("SELECT next_at > now() FROM reminders")


async def restored(world: World, found_s_ago: float) -> None:
    async with world.database.connection() as conn:
        await conn.execute(
            "INSERT INTO restores (backup_at, found_at, reason)"
            " VALUES (now() - interval '1 hour', now() - make_interval(secs => $1), 'restored')",
            found_s_ago,
        )


async def test_an_occurrence_due_before_a_settled_restore_is_skipped(world: World) -> None:
    """It rang after the backup, and everything stood still until the restore was settled."""
    await restored(world, found_s_ago=60)
    rung = await world.reminder(due_in_s=-120)
    async with world.database.transaction() as tx:
        await restores.settle(tx, datetime.now(UTC), "test")
    due_since = await world.reminder(due_in_s=-30)
    await world.scheduler().run_once()
    assert [(o["state"], o["skip_reason"]) for o in await world.occurrences(rung)] == [
        ("SKIPPED", "restored")
    ]
    assert [(o["state"], o["skip_reason"]) for o in await world.occurrences(due_since)] == [
        ("SCHEDULED", None)
    ]
    assert await world.sql("SELECT bool_and(next_at > now()) FROM reminders")


async def test_an_occurrence_due_before_an_unsettled_restore_becomes_a_lead(world: World) -> None:
    await restored(world, found_s_ago=60)
    reminder = await world.reminder(due_in_s=-120)
    await world.scheduler().run_once()
    assert [o["state"] for o in await world.occurrences(reminder)] == ["SCHEDULED"]


async def test_the_scheduler_waits_while_a_restore_is_being_settled(world: World) -> None:
    await restored(world, found_s_ago=60)
    reminder = await world.reminder(due_in_s=-120)
    async with world.database.transaction() as tx:
        await restores.settle(tx, datetime.now(UTC), "test")
        making = asyncio.create_task(world.scheduler().run_once())
        waits = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%restores%'"
        )
        await eventually(lambda: world.sql(waits), what="it waits")
    await making
    assert [o["skip_reason"] for o in await world.occurrences(reminder)] == ["restored"]


async def test_the_scheduler_skips_500_missed_occurrences_in_one_run(world: World) -> None:
    await world.reminder(due_in_s=-500 * 3600, rrule="FREQ=HOURLY", late_s=60)
    await world.scheduler(batch_max=1).run_once()
    assert await world.sql("SELECT count(*) FROM reminder_occurrences WHERE skip_reason = 'missed'") >= 499
    assert await world.sql("SELECT next_at > now() FROM reminders")


async def test_a_reminder_with_a_broken_rule_is_paused_and_delays_no_other(world: World) -> None:
    broken = await world.reminder(due_in_s=-60, rrule="FREQ=SOMETIMES")
    fine = await world.reminder()
    await world.scheduler(batch_max=1).run_once()
    assert len(await world.occurrences(fine)) == 1
    assert await world.occurrences(broken) == []
    assert await world.sql("SELECT status FROM reminders WHERE id = $1", broken) == "PAUSED"


async def test_a_one_off_reminder_ends_with_its_occurrence(world: World) -> None:
    _, _, story = await _begun(world)
    series = "SELECT status, ended_reason, next_at FROM reminders"
    follower = ReminderFollower(world.database)
    for step in (None, story.dialled, story.not_answered, story.dialled):
        if step:
            await step()
        await follower.run_once()
        assert await world.rows(series) == [{"status": "ACTIVE", "ended_reason": None, "next_at": None}], step
    await story.finished("ANSWERED", answered=True)
    await follower.run_once()
    assert await world.rows(series) == [{"status": "ENDED", "ended_reason": "finished", "next_at": None}]


async def test_a_missed_one_off_reminder_ends(world: World) -> None:
    await world.reminder(due_in_s=-3600, rrule=None)
    await world.scheduler().run_once()
    assert await world.sql("SELECT status FROM reminders") == "ENDED"


class Story:
    """What a lead goes through, told step by step."""

    def __init__(self, world: World, lead_id: UUID, number: UUID):
        self._world, self._lead_id, self._number, self._attempts = world, lead_id, number, 0

    async def dialled(self, call_id: str | None = None) -> None:
        self._attempts += 1
        await self._world.sql(
            "UPDATE leads SET status = 'PROCESSING', attempt_count = attempt_count + 1, version = version + 1"
            " WHERE id = $1",
            self._lead_id,
        )
        await self._world.sql(
            "INSERT INTO attempts (id, lead_id, attempt_no, reseller_id, merchant_id, number_id, channel_no, carrier,"
            " account, to_phone, from_phone, dialer, carrier_call_id)"
            " VALUES ($1, $2, $3, 'r', 'm', $4, 1, 'vapi', 'default', '+14155550123', '+14155550100', 'd', $5)",
            new_id(),
            self._lead_id,
            self._attempts,
            self._number,
            call_id,
        )

    async def refused(self) -> None:
        """By the carrier: it costs no attempt."""
        await self.dialled()
        await self._world.sql(
            "UPDATE attempts SET state = 'rejected', holds_channel = false, end_reason = '21211'"
            " WHERE lead_id = $1 AND holds_channel",
            self._lead_id,
        )
        self._attempts -= 1
        await self._world.sql(
            "UPDATE leads SET status = 'BACKLOG', due_at = now() + interval '60 s', version = version + 1,"
            " attempt_count = attempt_count - 1, carrier_error_count = carrier_error_count + 1 WHERE id = $1",
            self._lead_id,
        )

    async def not_answered(self) -> None:
        await self._end_attempt("busy", answered=False)
        await self._world.sql(
            "UPDATE leads SET status = 'BACKLOG', due_at = now() + interval '60 s', version = version + 1"
            " WHERE id = $1",
            self._lead_id,
        )

    async def without_agent(self) -> None:
        await self._end_attempt("completed", answered=True)
        await self._world.sql("UPDATE attempts SET agent = 'none' WHERE lead_id = $1", self._lead_id)
        await self._world.sql(
            "UPDATE leads SET status = 'BACKLOG', due_at = now() + interval '300 s', version = version + 1,"
            " attempt_count = attempt_count - 1, no_agent_count = 1 WHERE id = $1",
            self._lead_id,
        )

    async def finished(self, outcome: str, *, answered: bool) -> None:
        await self._end_attempt("completed", answered=answered)
        await self._world.sql(
            "UPDATE leads SET status = 'FINISHED', outcome = $2, outcome_reason = 'so', finished_at = now(),"
            " version = version + 1 WHERE id = $1",
            self._lead_id,
            outcome,
        )

    async def _end_attempt(self, reason: str, *, answered: bool) -> None:
        await self._world.sql(
            "UPDATE attempts SET state = 'ended', holds_channel = false, end_reason = $2,"
            " answered_at = CASE WHEN $3 THEN now() END WHERE lead_id = $1 AND holds_channel",
            self._lead_id,
            reason,
            answered,
        )


async def _begun(world: World) -> tuple[UUID, UUID, Story]:
    reminder = await world.reminder(rrule=None)
    await world.scheduler().run_once()
    [occurrence] = await world.occurrences(reminder)
    return reminder, occurrence["id"], Story(world, occurrence["lead_id"], new_id())


async def _followed(world: World, reminder: UUID) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    with structlog.testing.capture_logs() as logs:
        await ReminderFollower(world.database).run_once()
    [occurrence] = await world.occurrences(reminder)
    return occurrence, [(line["log_level"], line["event"]) for line in logs]


async def test_an_occurrences_state_follows_its_lead_to_an_answer(world: World) -> None:
    reminder, id_, story = await _begun(world)
    await story.dialled()
    found, lines = await _followed(world, reminder)
    assert (found["state"], found["attempt_count"], found["external_call_id"]) == ("PROCESSING", 1, None)
    assert lines == [("info", f"Processing reminder {id_} (attempt 1/3)")]
    assert found["idempotency_key"].startswith(f"{id_}-1-")
    assert len(found["idempotency_key"]) == 36 + 3 + 8
    await world.sql("UPDATE attempts SET carrier_call_id = 'call-1'")
    found, lines = await _followed(world, reminder)
    assert (found["external_call_id"], lines) == ("call-1", [("info", f"Call initiated for reminder {id_}")])
    await story.finished("ANSWERED", answered=True)
    found, lines = await _followed(world, reminder)
    assert (found["state"], lines) == ("COMPLETED", [])
    assert (await _followed(world, reminder))[1] == [], "nothing is left to follow"


async def test_an_occurrences_state_follows_its_lead_through_retries_to_its_failure(world: World) -> None:
    reminder, id_, story = await _begun(world)
    failed, retried = value(metrics.REMINDERS_FAILED), value(metrics.REMINDERS_RETRIED)
    keys = set()
    for attempt in (1, 2):
        await story.dialled(f"call-{attempt}")
        await story.not_answered()
        found, lines = await _followed(world, reminder)
        keys.add(found["idempotency_key"])
        assert (found["state"], found["attempt_count"], found["last_error"]) == (
            "PENDING_RETRY",
            attempt,
            "busy",
        )
        assert found["next_retry_at"] is not None
        assert lines == [
            ("info", f"Processing reminder {id_} (attempt {attempt}/3)"),
            ("info", f"Call initiated for reminder {id_}"),
            ("warning", f"Reminder {id_} failed, scheduling retry"),
        ]
    await story.dialled("call-3")
    await story.finished("NO_ANSWER", answered=False)
    found, lines = await _followed(world, reminder)
    assert (found["state"], found["next_retry_at"], found["last_error"]) == ("FAILED", None, "NO_ANSWER: so")
    assert lines[-1] == ("error", f"Reminder {id_} permanently failed")
    assert len(keys | {found["idempotency_key"]}) == 3, "each attempt has a key of its own"
    assert value(metrics.REMINDERS_FAILED) == failed + 1
    assert value(metrics.REMINDERS_RETRIED) == retried + 2


async def test_attempts_refused_by_the_carrier_are_logged_in_order_and_counted(world: World) -> None:
    reminder, id_, story = await _begun(world)
    retried = value(metrics.REMINDERS_RETRIED)
    tried = ("info", f"Processing reminder {id_} (attempt 1/3)")
    put_off = ("warning", f"Reminder {id_} failed, scheduling retry")
    await story.refused()
    found, lines = await _followed(world, reminder)
    assert (found["state"], found["attempt_count"], lines) == ("PENDING_RETRY", 0, [tried, put_off])
    await story.refused()
    await story.refused()
    found, lines = await _followed(world, reminder)
    assert lines == [tried, put_off, tried, put_off], "also of what went by between two looks"
    assert value(metrics.REMINDERS_RETRIED) == retried + 3
    await story.dialled("call-1")
    await story.finished("ANSWERED", answered=True)
    found, lines = await _followed(world, reminder)
    assert (found["state"], lines) == (
        "COMPLETED",
        [tried, ("info", f"Call initiated for reminder {id_}")],
    )
    assert value(metrics.REMINDERS_RETRIED) == retried + 3


async def test_a_call_without_an_agent_is_no_completion_and_is_made_again(world: World) -> None:
    reminder, id_, story = await _begun(world)
    await story.dialled("call-1")
    await story.without_agent()
    found, lines = await _followed(world, reminder)
    assert (found["state"], found["last_error"]) == ("PENDING_RETRY", "NO_AGENT")
    assert lines[-1] == ("warning", f"Reminder {id_} failed, scheduling retry")
    await story.dialled("call-2")
    await story.finished("NO_AGENT", answered=True)
    found, _ = await _followed(world, reminder)
    assert (found["state"], found["last_error"]) == ("FAILED", "NO_AGENT: so")


async def test_a_machine_that_answers_is_no_completion(world: World) -> None:
    reminder, _, story = await _begun(world)
    await story.dialled("call-1")
    await story.finished("VOICEMAIL", answered=True)
    assert (await _followed(world, reminder))[0]["state"] == "FAILED"


async def test_concurrent_followers_write_each_change_once(world: World) -> None:
    made = [await _begun(world) for _ in range(3)]
    for _, _, story in made:
        await story.dialled(None)
        await world.sql("UPDATE attempts SET holds_channel = false, state = 'ended'")
    followers = [ReminderFollower(world.database) for _ in range(4)]
    assert sum(await asyncio.gather(*(each.run_once() for each in followers))) == 3


async def test_message_and_assistant_id_reach_a_carrier_with_its_own_assistant(database_url: str) -> None:
    async with open_dialing(database_url) as dialing:
        lead, other = await dialing.leads(2)
        await dialing.run(
            "UPDATE leads SET payload = $1", {"assistant_id": "nurse", "message": "Hello", "order": 1}
        )
        twilio = dialing.number
        vapi = await dialing.add_number()
        await dialing.run("UPDATE numbers SET carrier = 'vapi' WHERE id = $1", vapi)
        intents = await dialing.intend(dialing.grant(lead, number=vapi), dialing.grant(other, number=twilio))
        told = {intent.carrier: json.loads(intent.payload or "null") for intent in intents.committed}
        said = {"assistant_id": "nurse", "message": "Hello", "order": 1}
        assert told == {"vapi": said, "twilio": None}


async def test_the_occurrences_idempotency_key_reaches_the_carrier(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        await stage.dialing.run("UPDATE numbers SET carrier = 'vapi'")
        world = World(database_url, stage.database)
        reminder = await world.reminder(rrule=None)
        await world.scheduler().run_once()
        stage.carrier.says(
            Rejected("refused", "400", retryable=True, blames="destination"), Accepted("call-1")
        )
        [occurrence] = await world.occurrences(reminder)
        shown = []
        for _ in range(2):
            await world.sql("UPDATE leads SET due_at = now(), version = version + 1")
            assert await stage.dial() == 1
            await ReminderFollower(stage.database).run_once()
            shown.append((await world.occurrences(reminder))[0]["idempotency_key"])
        assert [order.idempotency_key for order in stage.carrier.orders] == shown
        order = stage.carrier.orders[-1]
        assert order.idempotency_key == f"{occurrence['id']}-1-{order.attempt_id.hex[-8:]}"
        assert order.metadata["occurrence_id"] == str(occurrence["id"])
        carrier = Vapi(
            CarrierAccount(
                {"api_key": "key", "webhook_secret": "secret"}, CallbackKeys.from_secrets(["a secret"])
            )
        )
        sent = carrier._create_body(order, "nurse", "number-1")
        assert sent["assistantOverrides"]["metadata"] == {
            "attempt": str(order.attempt_id),
            "idempotency_key": order.idempotency_key,
        }
        await carrier.aclose()


async def test_a_lead_without_a_reminder_has_no_idempotency_key(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        await stage.dialing.run("UPDATE numbers SET carrier = 'vapi'")
        lead = await stage.dialing.lead()
        await stage.dialing.run(
            "UPDATE leads SET payload = $2 WHERE id = $1", lead, {"occurrence_id": "anything"}
        )
        assert await stage.dial() == 1
        assert stage.carrier.orders[-1].idempotency_key == ""
