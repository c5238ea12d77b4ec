"""The outbox stays small, and rows past their retention are deleted."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.jobs.world import JobWorld, Work, job_world
from tests.support.waiting import eventually
from trunkline.jobs.maintenance import JobMaintenance, JobMaintenanceLimits
from trunkline.store import jobs
from trunkline.store.job_upkeep import id_at
from trunkline.store.jobs import Death, End


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[JobWorld]:
    async with job_world(database_url) as world:
        yield world


def upkeep(world: JobWorld, **limits: float) -> JobMaintenance:
    return JobMaintenance(world.database, world.registry, world.notifier, JobMaintenanceLimits(**limits))  # type: ignore[arg-type]


async def finished(world: JobWorld, *names: str) -> None:
    for name in names:
        await world.enqueue(name)
    async with world.database.connection() as conn:
        await jobs.finish(conn, [End(job.id, job.fence) for job in await world.claim()], "w1")


async def age(world: JobWorld, table: str, column: str, by: timedelta) -> None:
    """As if everything had happened earlier, ids included."""
    old = id_at(datetime.now(UTC) - by)
    await world.sql(f"UPDATE {table} SET id = $1, {column} = {column} - $2::interval", old, by)


async def test_job_history_is_deleted_after_its_retention(world: JobWorld) -> None:
    await finished(world, "old")
    await age(world, "job_history", "finished_at", timedelta(days=8))
    await finished(world, "new")
    assert await upkeep(world).forget() == 1
    assert await world.sql("SELECT count(*) FROM job_history") == 1


async def test_retention_of_history_counts_from_the_jobs_end(world: JobWorld) -> None:
    await finished(world, "old")
    await age(world, "job_history", "created_at", timedelta(days=8))
    assert await upkeep(world).forget() == 0


async def test_dead_letters_are_deleted_after_thirty_days(world: JobWorld) -> None:
    await world.enqueue()
    [claim] = await world.claim()
    async with world.database.connection() as conn:
        await jobs.bury(conn, [Death(claim.id, claim.fence, "E", "m")], "w1")
    await age(world, "job_dead", "died_at", timedelta(days=29))
    assert await upkeep(world).forget() == 0
    await age(world, "job_dead", "died_at", timedelta(days=31))
    assert await upkeep(world).forget() == 1


async def test_progress_of_deleted_jobs_is_dropped(world: JobWorld) -> None:
    running = await world.enqueue()
    await world.sql(
        "INSERT INTO job_progress SELECT x, 0.5, 'note', now() - interval '2 h' FROM unnest($1::uuid[]) x",
        [running.id, id_at(datetime.now(UTC))],
    )
    assert await upkeep(world).forget() == 1


async def test_dead_rows_are_vacuumed_away(world: JobWorld) -> None:
    async with world.outbox.transaction(world.database) as work:
        await work.enqueue_many(world.work.new(Work(str(n))) for n in range(500))
    await finished(world)
    while claims := await world.claim():
        async with world.database.connection() as conn:
            await jobs.finish(conn, [End(job.id, job.fence) for job in claims], "w1")
    await eventually(lambda: dead_rows(world), what="the statistics know of dead rows")
    assert await upkeep(world, vacuum_from=100).vacuum() >= 100
    await eventually(lambda: vacuumed(world), what="a vacuum in the statistics")


async def vacuumed(world: JobWorld) -> bool:
    return bool(await world.sql("SELECT vacuum_count FROM pg_stat_user_tables WHERE relname = 'job_outbox'"))


async def dead_rows(world: JobWorld) -> bool:
    await world.sql("SELECT pg_stat_force_next_flush()")
    count: int = await world.sql("SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'job_outbox'")
    return count >= 100
