"""The races of matching, forced: refusals that loop, projections lost or rebuilt twice, wakeups that are lost.

`test_race_1_06` is race 6 of the first round, `test_race_2_08` race 8 of the second.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.support.dispatch.stage import Stage, open_stage
from tests.support.metric_values import value
from trunkline.bus import channels, epoch, schedule
from trunkline.bus.channels import Configuration
from trunkline.bus.connection import DialerWakeups
from trunkline.dispatch import gates, grants
from trunkline.dispatch import loader as loader_module
from trunkline.dispatch.loader import Rebuilder, load
from trunkline.leads.calling_policy import CallingPolicy
from trunkline.model import NumberLimit, new_id
from trunkline.store import schedule as store_schedule
from trunkline.telemetry import metrics


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


async def refusals(stage: Stage) -> int:
    """How often Postgres had to say no."""
    found: int = await stage.dialing.value("SELECT coalesce(sum(times), 0)::int FROM decisions")
    return found


async def test_race_1_06_a_taken_channel_gets_its_true_holder_and_is_refused_once(stage: Stage) -> None:
    await stage.dialing.run("UPDATE numbers SET max_channels = 1")
    await stage.reconciler.run_once()
    await stage.dialing.lead()
    await stage.dial()
    (live,) = stage.carrier.orders
    # Valkey believes that the channel is free.
    await channels.release(stage.bus, [live.attempt_id])
    await stage.dialing.lead()
    for _ in range(5):
        assert await stage.dial() == 0
    assert await stage.held() == {live.attempt_id}
    assert await refusals(stage) == 1, "refused once, and then not granted again"
    await stage.told(live.attempt_id, "ended")
    assert await stage.dial() == 1


async def person_is_called(stage: Stage) -> None:
    """Two leads of one person: the second waits for the first's call."""
    await stage.dialing.lead("+12125550155")
    assert await stage.dial() == 1
    await stage.dialing.lead("+12125550155")


async def merchant_is_full(stage: Stage) -> None:
    """Its limit is lowered in Postgres, and Valkey has not heard of it."""
    await stage.dialing.lead()
    assert await stage.dial() == 1
    await stage.dialing.run("UPDATE merchants SET max_concurrent = 1")
    await stage.dialing.lead()


async def number_is_paced(stage: Stage) -> None:
    await stage.dialing.run("UPDATE numbers SET starts_per_s = 0.01")
    await stage.dialing.lead()
    assert await stage.dial() == 1
    await stage.dialing.lead()


async def person_is_over_a_limit(stage: Stage) -> None:
    for _ in range(7):
        await stage.dialing.attempt("+12125550166", ago_s=60)
    await stage.dialing.lead("+12125550166")


@pytest.mark.parametrize(
    "refusing", [person_is_called, merchant_is_full, number_is_paced, person_is_over_a_limit]
)
async def test_race_2_08_a_refused_subject_is_not_granted_again_at_once(
    stage: Stage, refusing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As long as it takes to dial six times, on whatever machine.
    monkeypatch.setattr(grants, "PAUSE_MS", 60_000)
    monkeypatch.setattr(gates, "RETRY_AFTER", timedelta(minutes=1))
    await stage.dialing.policy(CallingPolicy(), scope="platform", subject="")
    await refusing(stage)
    for _ in range(6):
        assert await stage.dial() == 0
    assert await refusals(stage) == 1


async def test_race_1_07_a_lead_edited_while_it_waits_is_not_dialled_by_its_old_version(stage: Stage) -> None:
    """Its old entry is not called, neither early nor at all."""
    lead = await stage.dialing.lead()
    await stage.loader.run_once()
    await stage.dialing.run(
        "UPDATE leads SET due_at = now() + interval '1 hour', version = version + 1 WHERE id = $1", lead
    )
    assert await stage.dialer.run_once() == 0
    assert stage.carrier.orders == []
    await stage.loader.run_once()
    assert await stage.dial() == 0


async def test_race_1_14_scripts_refuse_a_projection_of_another_run_id(stage: Stage) -> None:
    """A promoted replica has the epoch and the holders of its primary, and another run id."""
    await stage.dialing.leads(2)
    await stage.loader.run_once()
    await stage.bus.client.hset(stage.bus.keys.epoch, "run_id", "0" * 40)
    with pytest.raises(Exception, match="lost its projection"):
        await schedule.match(stage.bus, [new_id()], clock_offset_ms=0)
    before = value(metrics.FALLBACK_DIALS)
    sent = await stage.dialer.run_once()
    assert value(metrics.FALLBACK_DIALS) - before == sent, "what is dialled meanwhile comes from Postgres"
    assert await stage.rebuilder.run_once() == 1
    assert sent + await stage.dial() == 2
    assert len({order.to for order in stage.carrier.orders}) == len(stage.carrier.orders) == 2


async def test_two_processes_that_rebuild_at_once_do_not_undo_each_other(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is at work when the first tries again. Were each to begin anew, none would ever be done."""
    await stage.dialing.leads(5)
    await stage.forget()
    at_work, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*args: Any) -> int:
        assert not at_work.is_set(), "only one gets so far"
        at_work.set()
        await go_on.wait()
        return await load(*args)

    first = Rebuilder(stage.database, stage.bus.at_epoch(0), stage.controls)
    second = Rebuilder(stage.database, stage.bus.at_epoch(0), stage.controls)
    with monkeypatch.context() as patched:
        patched.setattr(loader_module, "load", slow)
        working = asyncio.create_task(second.run_once())
        await at_work.wait()
        assert await first.run_once() == 0, "somebody is at it"
        go_on.set()
        assert await working == 1
    stage.bus.epoch = 0
    assert len(await stage.known_leads()) == 5


async def test_a_rebuild_whose_process_died_is_taken_over(stage: Stage) -> None:
    await stage.dialing.leads(5)
    await stage.forget()
    async with stage.database.connection() as conn:
        number = await store_schedule.next_epoch(conn)
    assert await epoch.begin(stage.bus, number) is not None
    stage.bus.epoch = 0
    assert await stage.rebuilder.run_once() == 0
    # It is silent for longer than a rebuild is between two pages.
    await stage.bus.client.hset(stage.bus.keys.epoch, "seen_at", 0)
    assert await stage.rebuilder.run_once() == 1
    assert len(await stage.known_leads()) == 5


async def test_an_older_rebuild_that_comes_late_writes_nothing(stage: Stage) -> None:
    async with stage.database.connection() as conn:
        older = await store_schedule.next_epoch(conn)
        newer = await store_schedule.next_epoch(conn)
    await stage.forget()
    late = await epoch.begin(stage.bus, older)
    assert late is not None
    await stage.bus.client.hset(stage.bus.keys.epoch, "seen_at", 0)
    assert await epoch.begin(stage.bus, newer) is not None
    with pytest.raises(Exception, match="lost its projection"):
        await channels.configure(late, Configuration(numbers=(NumberLimit(new_id(), "p", 1),)))
    assert not await epoch.publish(stage.bus, older)
    assert await epoch.publish(stage.bus, newer)


async def test_race_2_13_many_leads_of_one_merchant_do_not_hide_one_of_another(stage: Stage) -> None:
    """All are due at one moment, and a match moves a bounded number of them."""
    await stage.dialing.run("UPDATE numbers SET max_channels = 2")
    await stage.reconciler.run_once()
    nine = (await stage.dialing.now()) - timedelta(seconds=1)
    await stage.dialing.leads(300, merchant="m")
    lonely = await stage.dialing.lead(merchant="n")
    await stage.dialing.run("UPDATE leads SET due_at = $1", nine)
    await stage.loader.run_once()
    called: list[UUID] = []
    for _ in range(10):
        await stage.dialer.run_once()
        await stage.dialer.drain()
        for order in stage.carrier.orders[len(called) :]:
            called.append(
                await stage.dialing.value("SELECT lead_id FROM attempts WHERE id = $1", order.attempt_id)
            )
            await stage.told(order.attempt_id, "ended")
    assert lonely in called


async def test_race_2_14_a_wakeup_taken_by_a_dead_dialer_delays_a_lead_by_one_wait(
    stage: Stage,
) -> None:
    await stage.dialing.lead()
    await stage.loader.run_once()
    dead = DialerWakeups(stage.bus)
    assert await dead.wait(30.0), "whoever took it is dead"
    while await dead.wait(0.01):
        pass
    await dead.close()
    await stage.dialer.wait()  # returns by itself, without a wakeup
    assert await stage.dialer.run_once() == 1


@pytest.mark.parametrize(("next_in_s", "waits_s"), [(None, [1.0]), (600.0, [1.0]), (0.2, [0.2]), (0.0, [])])
async def test_race_2_14_a_dialer_waits_until_the_next_match_and_at_most_a_second(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, next_in_s: float | None, waits_s: list[float]
) -> None:
    waited: list[float] = []

    async def wait(_: DialerWakeups, timeout_s: float) -> bool:
        waited.append(timeout_s)
        return False

    monkeypatch.setattr(DialerWakeups, "wait", wait)
    with monkeypatch.context() as stopped:
        stopped.setattr(asyncio.get_running_loop(), "time", lambda: 100.0)
        stage.dialer._set_next_match(next_in_s)
        await stage.dialer.wait()
    assert waited == pytest.approx(waits_s)


async def test_a_lead_whose_window_closed_before_its_turn_is_given_its_next_opening_by_the_dialer(
    stage: Stage,
) -> None:
    lead = await stage.dialing.lead()
    await stage.dialing.run("UPDATE leads SET closes_at = clock_timestamp() - interval '1 second'")
    assert await stage.dial() == 0
    row = await stage.lead(lead)
    assert (row["version"], row["closes_at"]) == (2, None), "its policy is always open"
    assert await stage.dial() == 1


async def test_race_2_14_a_flow_parked_for_a_release_wakes_after_a_second_without_it(stage: Stage) -> None:
    await stage.dialing.run("UPDATE merchants SET max_concurrent = 1")
    await stage.reconciler.run_once()
    await stage.dialing.leads(2, due_in_s=-120)
    await stage.loader.run_once()
    before_s = await stage.bus.server_time_s()
    (first,) = (await schedule.match(stage.bus, [new_id(), new_id()], clock_offset_ms=0)).grants
    after_s = await stage.bus.server_time_s()
    parked: Any = await stage.bus.client.zrange(f"{stage.bus.projection}parked", 0, -1, withscores=True)
    assert [before_s - 0.001 <= wakes_ms / 1000 - 1 <= after_s for _, wakes_ms in parked] == [True]
    # The key that lists the flows waiting for the merchant's limit is lost.
    await stage.bus.client.delete(f"{stage.bus.projection}blocked:m/m")
    await channels.release(stage.bus, [first.attempt_id])
    # By a clock that is behind: the machine's own may be past that second by now. Due they are on either.
    assert (await schedule.match(stage.bus, [new_id()], clock_offset_ms=-60_000)).grants == ()
    assert len((await schedule.match(stage.bus, [new_id()], clock_offset_ms=1500)).grants) == 1


async def test_race_2_23_two_dialers_never_use_one_attempt_id(stage: Stage) -> None:
    """Ids minted in a script would repeat after every restart of the server; these come from the dialers."""
    await stage.dialing.leads(8)
    other = stage.another_dialer()
    await stage.loader.run_once()
    await asyncio.gather(stage.dialer.run_once(), other.run_once())
    await asyncio.gather(stage.dialer.drain(), other.drain())
    ids = [order.attempt_id for order in stage.carrier.orders]
    assert len(ids) == len(set(ids)) == 8
