"""Postgres' clock is set while two processes work: none loses a job for it, no job waits for the length of the jump."""

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from tests.support.jobs.process import LEDGER, OTHER, WORK, job_processes, look
from tests.support.jobs.world import JobWorld, Work, job_world
from tests.support.store.server_clock import jump, make_settable
from tests.support.waiting import eventually

AN_HOUR_S = 3600.0
STEADY_S = 15.0
SHORT_S = 1.5


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[JobWorld]:
    await make_settable(database_url)
    async with job_world(database_url) as world:
        await world.database.pool.execute(LEDGER)
        yield world


async def is_done(world: JobWorld, *ids: UUID) -> bool:
    return bool(await world.sql("SELECT count(*) = $2 FROM job_history WHERE id = ANY ($1)", ids, len(ids)))


async def is_begun(world: JobWorld) -> int:
    """The process that has begun a job."""
    return await eventually(lambda: world.sql("SELECT pid FROM runs"), what="the job begun")


async def test_a_clock_set_forward_takes_no_job_from_a_live_worker_in_another_process(
    world: JobWorld,
) -> None:
    async with world.outbox.transaction(world.database) as work:
        held = await work.enqueue(WORK, Work("held", "hold"))
    async with job_processes(world.url, 2, "on_call", lease_s=STEADY_S) as processes:
        pid = await is_begun(world)
        [owner] = [each for each in processes if each.pid == pid]
        [other] = [each for each in processes if each.pid != pid]
        await jump(world.url, AN_HOUR_S)
        await look(other)
        await look(owner)
        is_leased = "SELECT lease_expires_at > clock_timestamp() FROM job_outbox WHERE id = $1"
        assert await world.sql(is_leased, held.id), "renewed on the new clock"
        await look(other)
        await world.sql("INSERT INTO gates VALUES ('held')")
        await eventually(lambda: is_done(world, held.id))
    assert await world.sql("SELECT count(*) FROM runs") == 1
    assert (await world.job(held.id)).attempt_count == 1


async def test_a_clock_set_back_parks_no_job_and_prolongs_no_lease_of_a_killed_process(
    world: JobWorld,
) -> None:
    async with job_processes(world.url, 2, "on_call", lease_s=SHORT_S) as processes:
        await world.sql("INSERT INTO job_pauses VALUES ('other_work', 'a test', 'a test')")
        async with world.outbox.transaction(world.database) as work:
            held = await work.enqueue(WORK, Work("held", "hold"))
            waiting = await work.enqueue(OTHER, Work("waiting"))
        pid = await is_begun(world)
        [victim] = [each for each in processes if each.pid == pid]
        [successor] = [each for each in processes if each.pid != pid]
        victim.kill()
        await victim.wait()
        await jump(world.url, -AN_HOUR_S)
        await world.sql("DELETE FROM job_pauses")
        await world.sql("INSERT INTO gates VALUES ('held')")

        async def are_done() -> bool:
            await look(successor)
            return await is_done(world, held.id, waiting.id)

        await eventually(are_done, timeout_s=60, what="both done by the other process")
    assert await world.sql("SELECT count(*) FROM runs WHERE pid = $1", successor.pid) == 2


async def test_two_processes_begin_a_job_claimed_ahead_of_a_set_clock_at_its_moment(world: JobWorld) -> None:
    """What the workers knew of the clock before the jump says nothing of the moment after it."""
    async with job_processes(world.url, 2, "ahead", lease_s=STEADY_S):
        # Both know the clock once each has run something.
        while await world.sql("SELECT count(DISTINCT pid) < 2 FROM runs"):
            async with world.outbox.transaction(world.database) as work:
                await work.enqueue_many(WORK.new(Work("first")) for _ in range(20))
            await eventually(lambda: world.sql("SELECT NOT EXISTS (SELECT FROM job_outbox)"))
        await jump(world.url, AN_HOUR_S)
        async with world.outbox.transaction(world.database) as work:
            due = await world.sql("SELECT clock_timestamp() + interval '1 second'")
            soon = await work.enqueue(WORK, Work("soon"), run_at=due)
        await eventually(lambda: is_done(world, soon.id), timeout_s=30, what="begun at its moment")
    assert await world.sql("SELECT started >= $1 FROM runs WHERE name = 'soon'", due)
