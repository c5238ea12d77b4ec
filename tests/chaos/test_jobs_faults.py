"""Workers are killed, stopped and continued, Postgres dies: no job is lost, none is finished by a stale owner."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from uuid import UUID

import asyncpg
import pytest

from tests.support.crashpoints import run_until_crash
from tests.support.jobs.process import KEYED, LEDGER, WORK, command, job_process, job_processes
from tests.support.jobs.world import JobWorld, Work, job_world
from tests.support.waiting import eventually
from trunkline.embedded import Engines
from trunkline.jobs.reaper import Reaper
from trunkline.store.migrate import migrate

# Of a worker that nobody stops: however busy the machine is, its leases do not end by themselves.
STEADY_S = 15.0
# One that is to be killed or stopped shall not lose what it holds before that.
VICTIM_S = 4.0
CRASH_POINTS = ("jobs.after_claim", "jobs.after_run", "jobs.before_finish", "jobs.reaper_locked")


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[JobWorld]:
    async with job_world(database_url) as world:
        await world.database.pool.execute(LEDGER)
        yield world


async def enqueue(world: JobWorld, count: int, *, do: str = "quick", keys: int = 0) -> list[UUID]:
    kind = KEYED if keys else WORK
    async with world.outbox.transaction(world.database) as work:
        jobs = await work.enqueue_many(
            kind.new(Work(str(n), do), concurrency_key=f"k{n % keys}" if keys else None) for n in range(count)
        )
    return [job.id for job in jobs]


async def all_done(world: JobWorld, ids: list[UUID], timeout_s: float = 40) -> None:
    async def count() -> bool:
        done: int = await world.sql("SELECT count(*) FROM job_history WHERE id = ANY ($1)", ids)
        return done == len(ids)

    await eventually(count, timeout_s=timeout_s, what=f"{len(ids)} jobs done")
    assert await world.sql("SELECT count(*) FROM job_outbox") == 0
    assert await world.sql("SELECT count(*) FROM job_dead") == 0
    assert await world.sql("SELECT count(DISTINCT job_id) FROM runs WHERE ended IS NOT NULL") >= len(ids)


async def test_jobs_of_a_killed_worker_are_finished_by_another(world: JobWorld) -> None:
    """The source's own scenario."""
    ids = await enqueue(world, 100)
    async with job_process(world.url, lease_s=VICTIM_S) as victim:
        await eventually(lambda: world.sql("SELECT count(*) >= 10 FROM runs"))
        victim.kill()
        await victim.wait()
        left = await world.sql("SELECT count(*) FROM job_outbox WHERE status = 'IN_PROGRESS'")
        async with job_process(world.url, lease_s=STEADY_S):
            await all_done(world, ids)
    again: int = await world.sql(
        "SELECT count(*) FROM (SELECT FROM runs GROUP BY job_id HAVING count(*) > 1) x"
    )
    assert again <= left


async def test_a_worker_stopped_past_its_lease_and_continued_finishes_nothing(world: JobWorld) -> None:
    [job_id] = await enqueue(world, 1, do="hold")
    async with job_process(world.url, lease_s=VICTIM_S) as stopped:
        await eventually(lambda: world.sql("SELECT count(*) FROM runs"))
        stopped.send_signal(signal.SIGSTOP)
        async with job_process(world.url, lease_s=STEADY_S) as successor:
            await eventually(
                lambda: world.sql("SELECT count(*) FROM runs WHERE pid = $1", successor.pid), timeout_s=30
            )
            stopped.send_signal(signal.SIGCONT)
            await world.database.pool.execute("INSERT INTO gates VALUES ('0')")
            await all_done(world, [job_id])
            job = await world.job(job_id)
    assert job.locked_by is not None
    assert job.locked_by.startswith(f"process-{successor.pid}/")
    assert job.attempt_count == 2


async def test_a_stale_result_beside_that_of_a_new_claim_ends_no_new_claim(world: JobWorld) -> None:
    """A worker claims a job again whose first result it could not write before its lease ended. The new claim has the
    fence of all jobs of its batch, and the result of one of these is written together with the stale one."""
    [blocking, stale] = await enqueue(world, 2, do="hold")
    async with job_process(world.url, "patient", lease_s=VICTIM_S) as worker:
        await eventually(lambda: world.sql("SELECT count(*) = 2 FROM runs"))
        locker = await asyncpg.connect(world.url)
        try:
            async with locker.transaction():
                await locker.execute("SELECT FROM job_outbox WHERE id = $1 FOR UPDATE", blocking)
                await open_gate(world, "0")
                await world.blocked()
                # Its result waits behind the other one.
                await open_gate(world, "1")
                await eventually(lambda: world.sql("SELECT count(ended) = 2 FROM runs"))
                worker.send_signal(signal.SIGSTOP)
                reaper = Reaper(world.database, world.registry, world.notifier)
                await eventually(reaper.run_once, timeout_s=30, what="the lease ends")
                await world.sql("DELETE FROM gates")
                [beside] = await enqueue(world, 1)
                worker.send_signal(signal.SIGCONT)
                await eventually(
                    lambda: world.sql("SELECT count(*) = 4 AND count(ended) = 3 FROM runs"),
                    timeout_s=30,
                    what="begun again, and the job beside it has ended",
                )
                fences = "SELECT count(DISTINCT fence) FROM job_outbox WHERE id = ANY ($1)"
                assert await world.sql(fences, [stale, beside]) == 1
        finally:
            await locker.close()
        written = "SELECT count(*) = 2 FROM job_history WHERE id = ANY ($1)"
        await eventually(lambda: world.sql(written, [blocking, beside]))
        assert (await world.job(stale)).status == "IN_PROGRESS"
        await open_gate(world, "1")
        await all_done(world, [stale])
    assert await world.sql("SELECT count(*) FROM runs") == 4


async def open_gate(world: JobWorld, name: str) -> None:
    await world.sql("INSERT INTO gates VALUES ($1)", name)


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_a_crash_at_any_point_loses_nothing(world: JobWorld, point: str) -> None:
    ids = await enqueue(world, 30, keys=5)
    await run_until_crash(command(world.url), point, nth=2)
    async with job_process(world.url, lease_s=STEADY_S):
        await all_done(world, ids)


async def test_under_kills_no_two_jobs_of_a_key_run_at_once(world: JobWorld) -> None:
    """Leases of 3 s: a machine that stands still for longer does to a worker what this test is not about."""
    ids = await enqueue(world, 300, keys=6)
    for _ in range(2):
        async with job_processes(world.url, 2, lease_s=3.0) as [first, second]:
            await some_runs(world)
            first.kill()
            await first.wait()
            second.send_signal(signal.SIGTERM)
            await second.wait()
    async with job_processes(world.url, 2, lease_s=STEADY_S):
        await all_done(world, ids)
    overlaps = await world.sql(
        "SELECT count(*) FROM runs a JOIN runs b ON a.job_id <> b.job_id AND a.name::int % 6 = b.name::int % 6 "
        "AND a.started < b.started AND a.ended > b.started"
    )
    assert overlaps == 0
    assert await world.sql("SELECT coalesce(sum(running), 0) FROM job_keys") == 0


@pytest.mark.parametrize("seed", [1, 2])
async def test_every_job_is_finished_once_through_a_random_mix_of_faults(world: JobWorld, seed: int) -> None:
    """Kills, stops, cut connections; afterwards everything is done exactly once."""
    chance = random.Random(seed)
    ids: list[UUID] = []
    for _ in range(3):
        ids += await enqueue(world, 100, keys=20) + await enqueue(world, 100)
        async with job_processes(world.url, 2) as [victim, _]:
            await some_runs(world)
            await inflict(world, victim, chance.choice(["kill", "stop", "cut", "term"]))
    async with job_processes(world.url, 2, lease_s=STEADY_S):
        await all_done(world, ids)
    assert await world.sql("SELECT count(*) FROM job_history") == len(ids)


async def some_runs(world: JobWorld) -> None:
    """Until a few more jobs have begun, or none is left."""
    before = await world.sql("SELECT count(*) FROM runs")
    await eventually(
        lambda: world.sql(
            "SELECT count(*) > $1 + 20 OR NOT EXISTS (SELECT FROM job_outbox) FROM runs", before
        )
    )


async def inflict(world: JobWorld, victim: asyncio.subprocess.Process, fault: str) -> None:
    match fault:
        case "kill":
            victim.kill()
        case "term":
            victim.send_signal(signal.SIGTERM)
        case "stop":
            victim.send_signal(signal.SIGSTOP)
            # Until others have taken all that it held.
            await eventually(
                lambda: world.sql(
                    "SELECT count(*) = 0 FROM job_outbox WHERE locked_by LIKE $1", f"process-{victim.pid}/%"
                ),
                timeout_s=40,
            )
            victim.send_signal(signal.SIGCONT)
        case "cut":
            await world.sql(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name LIKE 'trunkline%' AND pid <> pg_backend_pid()"
            )


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT, signal.SIGKILL])
async def test_no_job_is_lost_when_postgres_restarts_under_load(
    private_engines: Engines, how: signal.Signals
) -> None:
    url = private_engines.database_url
    await migrate(url)
    async with job_world(url) as world:
        await world.database.pool.execute(LEDGER)
        ids = await enqueue(world, 200, keys=10) + await enqueue(world, 200)
        async with job_process(url, lease_s=2.0):
            await eventually(lambda: world.sql("SELECT count(*) > 30 FROM runs"))
            await restart(private_engines, how)
            await recovered(url)
            async with job_world(url) as after:
                await all_done(after, ids)


async def restart(engines: Engines, how: signal.Signals) -> None:
    postgres = engines.postgres
    assert postgres is not None
    assert postgres.pid is not None
    os.kill(postgres.pid, how)
    await postgres.exited()
    await postgres.start()


async def recovered(url: str) -> None:
    async def answers() -> bool:
        try:
            connection = await asyncpg.connect(url)
        except (OSError, asyncpg.PostgresError):
            return False
        await connection.close()
        return True

    await eventually(answers, timeout_s=30)
