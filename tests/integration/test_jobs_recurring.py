"""Each tick is enqueued once, however many processes run."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.jobs.world import JobWorld, Work, job_world
from trunkline.jobs import InvalidJob
from trunkline.jobs.recurring import Recurring, Scheduler
from trunkline.store import job_schedules


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[JobWorld]:
    async with job_world(database_url) as world:
        yield world


def scheduler(world: JobWorld, rule: str = "every 3600", name: str = "hourly") -> Scheduler:
    return Scheduler(world.database, world.outbox, [Recurring(name, world.work, Work("tick"), rule)])


async def make_due(world: JobWorld, ago: timedelta = timedelta(seconds=1)) -> datetime:
    tick: datetime = await world.sql(
        "UPDATE job_schedules SET next_at = now() - $1::interval RETURNING next_at", ago
    )
    return tick


async def test_the_first_tick_of_a_schedule_is_in_the_future(world: JobWorld) -> None:
    assert await scheduler(world).run_once() == 0
    assert await world.sql("SELECT next_at > now() FROM job_schedules")


async def test_a_due_tick_is_enqueued_once_and_the_next_one_scheduled(world: JobWorld) -> None:
    first = scheduler(world)
    await first.run_once()
    tick = await make_due(world)
    assert await first.run_once() == 1
    assert await first.run_once() == 0
    assert await world.sql("SELECT unique_key FROM job_outbox") == f"hourly@{tick.isoformat()}"
    async with world.database.connection() as conn:
        [schedule] = await job_schedules.list_schedules(conn)
    assert schedule.last_at == tick
    assert schedule.next_at > datetime.now(UTC)


async def test_many_processes_enqueue_a_tick_once_even_when_it_is_finished_at_once(world: JobWorld) -> None:
    processes = [scheduler(world) for _ in range(5)]
    for _ in range(5):
        await asyncio.gather(*(process.run_once() for process in processes))
        await make_due(world)
        ticked = await asyncio.gather(*(process.run_once() for process in processes))
        assert sum(ticked) == 1
        await world.sql("DELETE FROM job_outbox")


async def test_a_tick_whose_transaction_rolls_back_is_enqueued_once(world: JobWorld) -> None:
    process = scheduler(world)
    await process.run_once()
    tick = await make_due(world)
    async with world.database.pool.acquire() as conn:
        transaction = conn.transaction()
        await transaction.start()
        [due] = await job_schedules.lock_due(conn, ["hourly"])
        await world.outbox.enqueue(conn, world.work, Work("tick"))
        await job_schedules.advance(conn, "hourly", next_at=due.next_at + timedelta(hours=1), last_at=tick)
        assert await process.run_once() == 0
        await transaction.rollback()
    assert await process.run_once() == 1
    assert await world.sql("SELECT count(*) FROM job_outbox") == 1


async def test_ticks_missed_while_no_scheduler_ran_are_one_job(world: JobWorld) -> None:
    process = scheduler(world)
    await process.run_once()
    await make_due(world, timedelta(hours=30))
    assert await process.run_once() == 1
    assert await process.run_once() == 0


async def test_a_changed_rule_counts_from_now_and_an_unchanged_one_keeps_its_tick(world: JobWorld) -> None:
    yearly = "cron @yearly"
    await scheduler(world, yearly).run_once()
    # Between now and the rule's next: a tick beyond that one was written by a clock that was set back since.
    tick = await world.sql(
        "UPDATE job_schedules SET next_at = now() + (next_at - now()) / 2 RETURNING next_at"
    )
    await scheduler(world, yearly).run_once()
    assert await world.sql("SELECT next_at FROM job_schedules") == tick
    await scheduler(world, "every 60").run_once()
    assert await world.sql("SELECT next_at FROM job_schedules") < tick


async def test_a_wrong_rule_is_found_when_the_program_starts(world: JobWorld) -> None:
    with pytest.raises(InvalidJob):
        scheduler(world, "cron never")


async def test_a_running_service_ticks(world: JobWorld) -> None:
    recurring = [Recurring("often", world.work, Work("tick"), "every 0.1")]
    async with world.service(recurring=recurring):
        await world.workshop.started["tick"].wait()
