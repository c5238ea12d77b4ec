"""How late calls are: a backlog, a draft and a pace are waits, and only what comes after them is lateness."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from pydantic import TypeAdapter

from tests.support.dispatch.stage import Stage, open_stage
from trunkline.bus import channels
from trunkline.dispatch.channel_reconciler import read_configuration
from trunkline.schema.leads import Attempt
from trunkline.store import alarms, controls, leads, live
from trunkline.store.controls import Level, NewStop, Scope
from trunkline.store.tenants import PLATFORM
from trunkline.telemetry import metrics

# Leads here have been due for this long. What a busy machine adds to a call is far less.
DUE_S = 600.0
LITTLE_S = 60.0


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


async def seen(stage: Stage, lead: UUID) -> dict[str, Any]:
    async with stage.database.connection() as conn:
        (attempt,) = await leads.attempts(conn, lead)
    assert attempt.late_s is not None
    assert attempt.waited_s is not None
    return {
        "late": attempt.late_s > LITTLE_S,
        "waited": attempt.waited_s > LITTLE_S,
        "due_s_ago": attempt.due_at is not None
        and attempt.sent_at is not None
        and round((attempt.sent_at - attempt.due_at).total_seconds() / DUE_S),
    }


async def p99_s(stage: Stage) -> float:
    async with stage.database.connection() as conn:
        return await alarms.lateness_p99_s(conn)


def metric_s() -> float:
    """How late all calls of this process were, together."""
    total = metrics.REGISTRY.get_sample_value("trunkline_dispatch_lateness_seconds_sum")
    assert total is not None
    return total


async def end(stage: Stage, lead: UUID) -> None:
    attempt = (await stage.attempts(lead))[-1]["id"]
    await stage.told(attempt, "ended", reason="no_answer")


async def apply_stops(stage: Stage) -> None:
    """As the refresh and the reconciler do every second."""
    async with stage.database.connection() as conn:
        stage.controls.read(await stage.dialing.now(), await controls.in_force(conn))
        configuration = await read_configuration(conn, stage.controls)
    await channels.configure(stage.bus, configuration)
    for member in await stage.bus.client.zrange(f"{stage.bus.projection}parked", 0, -1):
        await stage.bus.client.zadd(f"{stage.bus.projection}parked", {str(member): 1})


async def test_a_lead_not_dialled_beside_a_free_channel_is_late(stage: Stage) -> None:
    lead = await stage.dialing.lead(due_in_s=-DUE_S)
    before_s = metric_s()
    assert await stage.dial() == 1
    assert await seen(stage, lead) == {"late": True, "waited": False, "due_s_ago": 1}
    assert await p99_s(stage) > LITTLE_S
    assert metric_s() - before_s > LITTLE_S


async def test_a_healthy_backlog_waits_for_its_channels_and_is_not_late(stage: Stage) -> None:
    await stage.dialing.run("UPDATE numbers SET max_channels = 2")
    await apply_stops(stage)
    ids = [await stage.dialing.lead(due_in_s=-DUE_S) for _ in range(12)]
    called: list[UUID] = []
    while len(called) < len(ids):
        assert await stage.dial() == 2
        assert await stage.dialer.run_once() == 0, "all channels are in use"
        now = [lead for lead in ids if lead not in called and await stage.attempts(lead)]
        for lead in now:
            await end(stage, lead)
        called += now
    found = [await seen(stage, lead) for lead in called]
    assert [each["late"] for each in found] == [True, True] + [False] * 10, "the first ones nobody had called"
    assert [each["waited"] for each in found[2:]] == [True] * 10
    await stage.dialing.run("UPDATE attempts SET ready_at = NULL WHERE lead_id = ANY($1)", called[:2])
    await stage.dialing.run("UPDATE attempts SET lead_due_at = send_at WHERE lead_id = ANY($1)", called[:2])
    assert await p99_s(stage) < LITTLE_S
    async with stage.database.connection() as conn:
        recent = await live.recent(conn, PLATFORM, window_s=300, slice_s=300)
    assert all(each.p99_s is not None and each.p99_s < LITTLE_S for each in recent.slices)


async def test_a_lead_of_a_stop_lifted_late_is_not_late(stage: Stage) -> None:
    stop = NewStop(Scope.MERCHANT, "m", Level.PLATFORM, "a draft", "k", PLATFORM, ramp_s=0)
    async with stage.database.transaction() as tx:
        await controls.stop(tx, stop)
    lead = await stage.dialing.lead(due_in_s=-DUE_S)
    await apply_stops(stage)
    for _ in range(2):
        assert await stage.dial() == 0
        await apply_stops(stage)
    async with stage.database.transaction() as tx:
        await controls.resume(tx, Scope.MERCHANT, "m", Level.PLATFORM, reason="go", by="k", ramp_s=0)
    await apply_stops(stage)
    before_s = metric_s()
    assert await stage.dial() == 1
    assert await seen(stage, lead) == {"late": False, "waited": True, "due_s_ago": 1}
    assert metric_s() - before_s < LITTLE_S


async def test_a_call_delayed_by_its_pace_is_not_late(stage: Stage) -> None:
    first, second = [await stage.dialing.lead(due_in_s=-DUE_S) for _ in range(2)]
    await stage.dialing.run("UPDATE numbers SET starts_per_s = 2")
    grants = [stage.dialing.grant(lead) for lead in (first, second)]
    intents = await stage.dialing.intend(*grants)
    assert len(intents.committed) == 2
    rows = {row["lead_id"]: row for lead in (first, second) for row in await stage.attempts(lead)}
    paced = max(rows.values(), key=lambda row: row["send_at"])
    assert paced["send_at"] - paced["intent_at"] >= timedelta(seconds=0.4)
    assert paced["ready_at"] == paced["send_at"]


async def test_each_attempt_of_a_lead_shows_due_at_sent_at_and_late_s(stage: Stage) -> None:
    lead = await stage.dialing.lead(due_in_s=-DUE_S)
    await stage.dial()
    await end(stage, lead)
    await stage.due_now(lead)
    await stage.dial()
    async with stage.database.connection() as conn:
        first, second = await leads.attempts(conn, lead)
    assert first.due_at != second.due_at, "a retry has a due time of its own"
    for attempt in (first, second):
        assert attempt.due_at is not None
        assert attempt.ready_at is not None
        assert attempt.sent_at is not None
        assert attempt.late_s == pytest.approx((attempt.sent_at - attempt.ready_at).total_seconds())
        shown = TypeAdapter(Attempt).dump_python(attempt)
        assert [shown[name] for name in ("due_at", "ready_at", "sent_at", "late_s")] == [
            attempt.due_at,
            attempt.ready_at,
            attempt.sent_at,
            attempt.late_s,
        ]
    await stage.dialing.run(
        "UPDATE attempts SET state = 'rejected', holds_channel = false, end_reason = 'not_sent_in_time:late'"
    )
    async with stage.database.connection() as conn:
        assert {attempt.sent_at for attempt in await leads.attempts(conn, lead)} == {None}
