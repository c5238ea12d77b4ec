"""Faults 10 to 17 of the design that this one replaces: how channels were lost, doubled and left idle."""

from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import pairwise
from uuid import UUID

import pytest

from tests.support.dispatch.stage import Stage, open_stage
from trunkline.bus import schedule
from trunkline.dispatch.channel_reconciler import ChannelReconciler
from trunkline.leads.calling_policy import CallingPolicy
from trunkline.model import Grant, new_id


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


async def set_channels(stage: Stage, many: int) -> None:
    await stage.dialing.run("UPDATE numbers SET max_channels = $1", many)
    await stage.reconciler.run_once()


async def match(stage: Stage, most: int = 16) -> tuple[Grant, ...]:
    return (await schedule.match(stage.bus, [new_id() for _ in range(most)], clock_offset_ms=0)).grants


async def test_fault_10_a_start_does_not_give_away_the_channels_of_live_calls(stage: Stage) -> None:
    await set_channels(stage, 2)
    await stage.dialing.leads(2)
    assert await stage.dial() == 2
    await stage.dialing.leads(3)
    # Valkey comes up empty, and so does the process.
    await stage.forget()
    stage.bus.epoch = 0
    await stage.rebuilder.run_once()
    assert await stage.dial() == 0
    assert await stage.held() == await stage.truly_held()


async def test_a_lead_overflows_to_the_next_pool_only_when_its_own_is_full(stage: Stage) -> None:
    await stage.dialing.run("INSERT INTO pools (id, name) VALUES ('shared', 'Shared')")
    shared = await stage.dialing.add_number()
    await stage.dialing.run("UPDATE numbers SET pool_id = 'shared' WHERE id = $1", shared)
    await stage.dialing.run(
        "UPDATE pools SET overflow_pool_id = 'shared', overflow_after_s = 0 WHERE id = 'p'"
    )
    await stage.dialing.run("UPDATE numbers SET max_channels = 2 WHERE id <> $1", shared)
    await stage.reconciler.run_once()
    overdue = await stage.dialing.leads(3, due_in_s=-3600)
    await stage.dial()
    await stage.dial()
    dialled_over = [(await stage.attempt(lead))["number_id"] == shared for lead in overdue]
    assert dialled_over == [False, False, True]


async def test_fault_11_a_reconcile_does_not_take_a_full_number_for_a_new_one(stage: Stage) -> None:
    await set_channels(stage, 2)
    await stage.dialing.leads(5)
    await stage.loader.run_once()
    assert len(await match(stage)) == 2
    # Whoever sets numbers up finds nothing left of this one's free channels, and must not take it for a new one.
    await stage.reconciler.run_once()
    await ChannelReconciler(stage.database, stage.bus.at_epoch(stage.bus.epoch), stage.controls).run_once()
    assert await match(stage) == ()


async def test_fault_12_a_channel_is_held_while_the_dial_is_in_flight(stage: Stage) -> None:
    await set_channels(stage, 2)
    granted, dialing = await stage.dialing.leads(2)
    await stage.loader.run_once()
    first, second = await match(stage)
    # One grant has become an attempt that nobody has answered yet, the other is still nothing but a grant.
    committed = first if first.lead_id == dialing else second
    await stage.dialing.intend(committed)
    assert (await stage.attempt(dialing))["state"] == "dialing"
    assert await stage.reconciler.run_once() == 0
    await stage.dialing.leads(2)
    await stage.loader.run_once()
    assert await match(stage) == ()
    assert await stage.held() == {first.attempt_id, second.attempt_id}
    assert granted != dialing


async def test_fault_13_an_end_reported_twice_frees_one_channel(stage: Stage) -> None:
    await set_channels(stage, 2)
    await stage.dialing.leads(2)
    await stage.dial()
    ended = stage.carrier.orders[0].attempt_id
    await stage.told(ended, "ended")
    await stage.told(ended, "ended", dedupe_key="told-again")
    await stage.reconciler.run_once()
    await stage.dialing.leads(5)
    assert await stage.dial() == 1, "one call has ended, so one channel is free"


async def test_fault_14_a_full_number_delays_no_lead_of_another_pool(stage: Stage) -> None:
    await set_channels(stage, 1)
    await stage.dialing.lead()
    await stage.dial()
    await stage.dialing.leads(20)
    other = await another_pool(stage)
    assert await stage.dial() == 1
    assert (await stage.attempt(other))["state"] == "accepted"


async def another_pool(stage: Stage) -> UUID:
    """With a free number of its own, and one lead, which comes after everybody else's."""
    await stage.dialing.run("INSERT INTO pools (id, reseller_id, name) VALUES ('q', 'r', 'Q')")
    number = await stage.dialing.add_number()
    await stage.dialing.run("UPDATE numbers SET pool_id = 'q' WHERE id = $1", number)
    lead = await stage.dialing.lead(due_in_s=0)
    await stage.dialing.run("UPDATE leads SET pool_id = 'q' WHERE id = $1", lead)
    await stage.reconciler.run_once()
    return lead


async def test_fault_15_leads_are_not_touched_until_a_channel_is_free(stage: Stage) -> None:
    await set_channels(stage, 1)
    await stage.dialing.lead()
    await stage.dial()
    await stage.dialing.leads(50)
    await stage.loader.run_once()
    before = await stage.dialing.value(
        "SELECT string_agg(l::text || xmin::text, '' ORDER BY id) FROM leads AS l"
    )
    known = await stage.known_leads()
    for _ in range(5):
        assert await stage.dial() == 0
    after = await stage.dialing.value(
        "SELECT string_agg(l::text || xmin::text, '' ORDER BY id) FROM leads AS l"
    )
    assert after == before, "nobody has touched or locked a row"
    assert await stage.dialing.value("SELECT count(*) FROM decisions") == 0
    assert await stage.known_leads() == known


async def test_fault_16_a_lead_over_its_limit_holds_no_channel_and_is_not_delayed_further(
    stage: Stage,
) -> None:
    phone = "+12125550199"
    for _ in range(7):
        await stage.dialing.attempt(phone, ago_s=1800)
    lead = await stage.dialing.lead(phone)
    assert await stage.dial() == 0
    assert await stage.held() == set()
    free_at = (await stage.lead(lead))["due_at"]
    assert free_at - await stage.dialing.now() > timedelta(minutes=20)
    # It is asked for again and again: being refused costs no further time.
    for _ in range(3):
        await stage.due_now(lead)
        assert await stage.dial() == 0
    assert abs((await stage.lead(lead))["due_at"] - free_at) < timedelta(seconds=1)


async def test_fault_17_free_channels_do_not_exceed_the_numbers_pace(stage: Stage) -> None:
    """Ten channels and two starts a second: a batch starts what fits into a second, half a second apart, and leaves
    channels free meanwhile; once these calls are running, more start beside them."""
    await stage.dialing.run("UPDATE numbers SET starts_per_s = 2")
    await stage.dialing.policy(CallingPolicy(), scope="platform", subject="")
    await stage.dialing.leads(10)
    assert 0 < await stage.dial() <= 3
    async with stage.database.connection() as conn:
        moments = [
            row["send_at"] for row in await conn.fetch("SELECT send_at FROM attempts ORDER BY send_at")
        ]
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert all(gap >= timedelta(seconds=0.499) for gap in gaps)
    assert len(await stage.held()) == len(moments), "what could not start gave its channel back"
    # Time passes for the pace alone: the calls go on.
    await stage.dialing.run("UPDATE paces SET next_start_at = next_start_at - interval '5 seconds'")
    await stage.bus.client.delete(f"{stage.bus.projection}resting")
    await stage.reconciler.run_once()
    await stage.dialing.run("UPDATE numbers SET max_channels = 9")
    await stage.reconciler.run_once()
    assert await stage.dial() > 0
    assert len(await stage.truly_held()) > len(moments)
