"""Webhooks that never came: what the carriers' lists say frees channels and ends leads."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.support.dispatch.stage import Stage, open_stage
from tests.support.metric_values import value
from trunkline.dispatch import live_calls
from trunkline.dispatch.live_calls import WebhookReception
from trunkline.telemetry import metrics
from trunkline.telephony.carrier import CallView, Unavailable

AN_ACCOUNT = ("twilio", "default")


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


def view(attempt: UUID, state: str, **more: Any) -> CallView:
    ended_at = datetime.now(UTC) - timedelta(seconds=20) if state == "ended" else None
    reason = "completed" if state == "ended" else None
    return CallView(f"CA-{attempt}", "", "", state, state, reason=reason, ended_at=ended_at, **more)  # type: ignore[arg-type]


async def talking(stage: Stage, count: int) -> list[UUID]:
    """So many calls that go on, ten seconds old; the carrier knows all of them as answered."""
    await stage.dialing.run("UPDATE numbers SET max_channels = 200")
    await stage.reconciler.run_once()
    await stage.dialing.leads(count)
    dialer = stage.another_dialer(batch_max=count)
    await stage.dial(dialer)
    attempts = [order.attempt_id for order in stage.carrier.orders]
    assert len(attempts) == count
    for attempt in attempts:
        await stage.told(attempt, "answered")
        stage.carrier.found[f"CA-{attempt}"] = view(attempt, "answered")
    await stage.dialing.run("UPDATE attempts SET send_at = send_at - interval '10 s'")
    # An account is known here from its first calls on, and looked at from the next turn on.
    await stage.live_calls.run_once()
    return attempts


async def turn_comes(stage: Stage) -> None:
    await stage.dialing.run("UPDATE account_looks SET next_at = now(), looked_at = now() - interval '30 s'")


async def look(stage: Stage) -> None:
    await stage.live_calls.run_once()
    await stage.live_calls.drain()
    await stage.folder.drain()


async def test_ends_without_webhooks_free_their_channels_by_the_carriers_list(stage: Stage) -> None:
    attempts = await talking(stage, 30)
    lost = attempts[:20]
    for attempt in lost:
        stage.carrier.found[f"CA-{attempt}"] = view(attempt, "ended", duration_s=5)
    before = value(metrics.WEBHOOKS_LOST)
    await turn_comes(stage)
    await look(stage)
    assert await stage.truly_held() == set(attempts[20:])
    assert await stage.held() == set(attempts[20:])
    assert stage.carrier.looked_up == [], "no call was asked about by itself"
    assert stage.carrier.lists_read == 1
    assert value(metrics.WEBHOOKS_LOST) - before == 20
    ended = await stage.dialing.value("SELECT count(*) FROM leads WHERE outcome = 'ANSWERED'")
    assert ended == 20


async def test_a_call_that_the_list_does_not_show_is_looked_up_before_it_is_closed(stage: Stage) -> None:
    attempts = await talking(stage, 8)
    quiet, over = attempts[:2]
    stage.carrier.found[f"CA-{quiet}"] = Unavailable("503")
    stage.carrier.found[f"CA-{over}"] = view(over, "ended", duration_s=5)
    await turn_comes(stage)
    await look(stage)
    assert set(stage.carrier.looked_up) == {f"CA-{quiet}", f"CA-{over}"}
    assert await stage.truly_held() == set(attempts) - {over}


async def test_an_answer_without_a_webhook_is_found_in_the_carriers_list(stage: Stage) -> None:
    lead = await stage.dialing.lead()
    await stage.dial()
    attempt = (await stage.attempt(lead))["id"]
    await stage.live_calls.run_once()
    stage.carrier.found[f"CA-{attempt}"] = view(attempt, "answered")
    await stage.age(attempt, 20)
    await turn_comes(stage)
    await look(stage)
    assert (await stage.attempt(lead))["state"] == "answered"


async def test_a_call_seen_in_the_list_is_not_checked_and_the_age_of_the_look_is_a_metric(
    stage: Stage,
) -> None:
    attempts = await talking(stage, 6)
    await stage.dialing.run("UPDATE attempts SET next_check_at = now(), answered_at = NULL")
    await turn_comes(stage)
    await stage.live_calls.run_once()
    asked = len(stage.carrier.looked_up)
    assert value(metrics.OLDEST_LOOK_SECONDS.labels("twilio")) >= 10
    assert await stage.checker.run_once() == 0
    assert len(stage.carrier.looked_up) == asked
    await stage.live_calls.run_once()
    assert value(metrics.OLDEST_LOOK_SECONDS.labels("twilio")) < 10
    assert await stage.truly_held() == set(attempts)


async def test_lookups_of_an_account_stay_within_its_limit(stage: Stage) -> None:
    """And the calls that were not looked up come first the next time."""
    attempts = await talking(stage, 40)
    stage.carrier.calls = Unavailable("503")
    await turn_comes(stage)
    await look(stage)
    first = set(stage.carrier.looked_up)
    assert 0 < len(first) <= stage.carrier.limits.looks_per_min / 2
    await turn_comes(stage)
    stage.carrier.looked_up.clear()
    await look(stage)
    assert first | set(stage.carrier.looked_up) == {f"CA-{attempt}" for attempt in attempts}
    assert await stage.truly_held() == set(attempts)


async def next_in_s(stage: Stage) -> float:
    found: float = await stage.dialing.value(
        "SELECT extract(epoch FROM next_at - clock_timestamp())::float8 FROM account_looks"
    )
    return found


async def test_after_a_gap_in_receiving_webhooks_every_account_is_listed_at_once(stage: Stage) -> None:
    hearing = WebhookReception(stage.database)
    await hearing.run_once()
    await talking(stage, 2)
    await turn_comes(stage)
    await look(stage)
    assert await next_in_s(stage) > 20
    await stage.dialing.run("UPDATE webhook_hearing SET ran_at = now() - interval '2 s'")
    assert await hearing.run_once() == 0, "webhooks could be taken all the time"
    await stage.dialing.run("UPDATE account_looks SET looked_at = now() - interval '10 s'")
    await stage.dialing.run("UPDATE webhook_hearing SET ran_at = now() - interval '8 s'")
    # Whoever was at it lost Postgres, too.
    await stage.dialing.run("UPDATE account_looks SET leased_until = now() + interval '3 minutes'")
    assert await hearing.run_once() == 1
    assert await next_in_s(stage) <= 0
    assert await stage.live_calls.run_once() == 1
    assert await hearing.run_once() == 0


async def test_a_lost_end_webhook_makes_the_other_calls_of_the_account_checked(stage: Stage) -> None:
    attempts = await talking(stage, 3)
    await turn_comes(stage)
    await look(stage)
    await stage.dialing.run("UPDATE account_looks SET looked_at = now() - interval '10 s'")
    for attempt in attempts[:2]:
        stage.carrier.found[f"CA-{attempt}"] = view(attempt, "ended", duration_s=5)
    await stage.age(attempts[0], 70)
    await stage.checker.run_once()
    await look(stage)
    assert await stage.truly_held() == {attempts[2]}


async def test_calls_without_a_ringing_webhook_make_their_account_listed(stage: Stage) -> None:
    await stage.dialing.leads(4)
    await stage.dial()
    await stage.live_calls.run_once()
    await turn_comes(stage)
    await look(stage)
    assert await stage.live_calls.run_once() == 0
    await stage.dialing.run("UPDATE account_looks SET looked_at = now() - interval '11 s'")
    assert await stage.live_calls.run_once() == 0
    await stage.dialing.run("UPDATE attempts SET send_at = send_at - interval '16 s'")
    assert await stage.live_calls.run_once() == 1


async def test_an_account_is_listed_by_one_process_at_a_time(stage: Stage) -> None:
    await talking(stage, 2)
    await turn_comes(stage)
    reached, go_on = asyncio.Event(), asyncio.Event()
    inner = stage.carrier.look_up

    async def slow(call_id: str) -> Any:
        reached.set()
        await go_on.wait()
        return await inner(call_id)

    stage.carrier.look_up = slow  # type: ignore[method-assign]
    first = asyncio.create_task(stage.live_calls.run_once())
    await reached.wait()
    await stage.dialing.run("UPDATE account_looks SET next_at = now()")
    other = live_calls.LiveCalls(stage.database, stage.clock, stage.directory, stage.inbox)
    assert await other.run_once() == 0
    go_on.set()
    await first
    # Somebody saw a gap while it was looked through: it is looked through again.
    assert await other.run_once() == 1
