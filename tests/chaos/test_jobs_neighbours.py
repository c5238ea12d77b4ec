"""What one job or one application's transaction does wrong, it does to itself. A worker in its own process runs the
job, this process is the application, and others' jobs go on."""

import asyncio
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.support.jobs.caller import Caller, caller_process
from tests.support.jobs.process import BRIEF, KEYED, LEDGER, NEWER, OTHER, WORK, job_process, job_processes
from tests.support.jobs.world import JobWorld, Work, job_world
from tests.support.waiting import eventually
from trunkline.jobs import JobType
from trunkline.store.tenants import Tenant

LEASE_S = 1.5
STEADY_S = 15.0
LATER = datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[JobWorld]:
    async with job_world(database_url) as world:
        await world.database.pool.execute(LEDGER)
        yield world


async def enqueue(world: JobWorld, do: str, *names: str, unique_key: str | None = None) -> list[UUID]:
    async with world.outbox.transaction(world.database) as work:
        jobs = await work.enqueue_many(WORK.new(Work(name, do), unique_key=unique_key) for name in names)
    return [job.id for job in jobs]


async def started(world: JobWorld, count: int) -> None:
    await eventually(lambda: world.sql("SELECT count(*) = $1 FROM runs", count), what=f"{count} runs begun")


async def done(world: JobWorld, ids: list[UUID]) -> bool:
    return bool(await world.sql("SELECT count(*) = $2 FROM job_history WHERE id = ANY ($1)", ids, len(ids)))


async def test_an_open_finish_transaction_delays_no_other_jobs_lease_renewal(world: JobWorld) -> None:
    """It deletes its row in a transaction that it keeps open: the renewal of all others must not wait for it."""
    early = await enqueue(world, "early", "early")
    innocent = await enqueue(world, "hold", "a", "b", "c")
    async with job_processes(world.url, 2, lease_s=LEASE_S):
        await started(world, 4)
        await eventually(lambda: world.sql("SELECT count(*) FROM finished"))
        since = await world.sql("SELECT clock_timestamp()")
        await eventually(
            lambda: world.sql("SELECT extract(epoch FROM clock_timestamp() - $1) > $2", since, 3 * LEASE_S),
            what="three leases later",
        )
        await world.database.pool.execute("INSERT INTO gates VALUES ('a'), ('b'), ('c'), ('early')")
        await eventually(lambda: done(world, early + innocent))
    assert await world.sql("SELECT count(*) FROM runs") == 4
    assert await world.sql("SELECT max(attempt_count) FROM job_history") == 1


async def test_a_unique_key_that_an_application_holds_open_stops_no_other_completion(world: JobWorld) -> None:
    [running] = await enqueue(world, "fail", "k", unique_key="k")
    async with job_process(world.url, lease_s=LEASE_S):
        await started(world, 1)
        async with world.database.transaction() as tx:
            await world.outbox.enqueue(tx, WORK, Work("newer"), unique_key="k", run_at=LATER)
            await world.database.pool.execute("INSERT INTO gates VALUES ('k')")
            await eventually(lambda: world.sql("SELECT count(*) FROM runs WHERE ended IS NOT NULL"))
            unrelated = await enqueue(world, "quick", *(str(n) for n in range(50)))
            await eventually(lambda: done(world, unrelated), what="50 unrelated jobs written down")
            assert (await world.job(running)).status == "IN_PROGRESS"
        await eventually(lambda: done(world, [running]), what="the key's own job")
    assert (await world.job(running)).outcome == "superseded"


async def test_a_unique_key_that_an_application_holds_open_does_not_stop_the_reaper(world: JobWorld) -> None:
    [stuck] = await enqueue(world, "hold", "k", unique_key="k")
    others = await enqueue(world, "hold", *(str(n) for n in range(19)))
    async with job_process(world.url, lease_s=LEASE_S) as victim:
        await started(world, 20)
        victim.kill()
        await victim.wait()
    await world.database.pool.execute("INSERT INTO gates SELECT n::text FROM generate_series(0, 18) n")
    async with job_process(world.url, lease_s=LEASE_S):
        async with world.database.transaction() as tx:
            await world.outbox.enqueue(tx, WORK, Work("newer"), unique_key="k", run_at=LATER)
            await eventually(
                lambda: done(world, others), timeout_s=20, what="19 jobs of the dead worker done"
            )
            assert (await world.job(stuck)).status == "IN_PROGRESS"
        await eventually(lambda: done(world, [stuck]), what="the key's own job")
    assert (await world.job(stuck)).outcome == "superseded"


async def test_a_handler_that_swallows_its_cancellation_loses_its_slot_and_its_lease(world: JobWorld) -> None:
    async with world.outbox.transaction(world.database) as work:
        stubborn = await work.enqueue(BRIEF, Work("stubborn", "stubborn"))
    async with job_process(world.url, lease_s=LEASE_S) as process:
        await started(world, 1)

        async def is_given_up() -> bool:
            job = await world.job(stubborn.id)
            return (job.status, job.last_error_code) == ("PENDING", "timeout")

        await eventually(is_given_up, what="the job put back although its handler runs")
        unrelated = await enqueue(world, "quick", *(str(n) for n in range(20)))
        await eventually(lambda: done(world, unrelated))
        assert await world.sql("SELECT count(*) FROM runs WHERE name = 'stubborn' AND ended IS NULL") == 1
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            await process.wait()
    assert process.returncode == 0


@pytest.mark.parametrize("do", ["stubborn", "thread"])
async def test_sigterm_ends_a_worker_whose_handler_ignores_cancellation(world: JobWorld, do: str) -> None:
    [stubborn] = await enqueue(world, do, "stubborn")
    async with job_process(world.url, lease_s=STEADY_S) as process:
        await started(world, 1)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            await process.wait()
    assert process.returncode == 0
    # Given back under its fence: nobody waits for its lease to end.
    assert (await world.job(stubborn)).status == "PENDING"


async def test_a_worker_with_a_blocked_event_loop_makes_no_dead_letter(world: JobWorld) -> None:
    async with job_processes(world.url, 2, lease_s=LEASE_S):
        ids = await enqueue(world, "hold", *(str(n) for n in range(20)))
        await started(world, 20)
        ids += await enqueue(world, "block", "block")
        await eventually(lambda: world.sql("SELECT count(*) FROM runs WHERE name = 'block'"))
        await world.database.pool.execute("INSERT INTO gates SELECT n::text FROM generate_series(0, 19) n")
        await eventually(lambda: done(world, ids), timeout_s=30)
    assert await world.sql("SELECT count(*) FROM job_dead") == 0


async def test_workers_of_two_versions_lose_no_job_and_delay_no_other(world: JobWorld) -> None:
    """A roll-out: what the newer version writes goes back from the older one, until one of its own workers has it."""
    names = [str(n) for n in range(10)]
    async with world.outbox.transaction(world.database) as work:
        newer = [job.id for job in await work.enqueue_many(NEWER.new([name]) for name in names)]
    async with job_process(world.url, lease_s=STEADY_S):
        returned = (
            "SELECT count(*) FROM job_outbox WHERE last_error_code = 'bad_payload' AND status = 'PENDING'"
        )
        await eventually(lambda: world.sql(f"SELECT ({returned}) = $1", len(newer)), what="all gone back")
        unrelated = await enqueue(world, "quick", *names)
        await eventually(lambda: done(world, unrelated))
        async with job_process(world.url, "newer", lease_s=STEADY_S):

            async def are_done() -> bool:
                # Not ten seconds later: whoever looks first has them, and that is the newer one sooner or later.
                await world.database.pool.execute(
                    "UPDATE job_outbox SET run_at = now() WHERE status = 'PENDING' AND run_at > now()"
                )
                return await done(world, newer)

            await eventually(are_done, timeout_s=60, what="all run by the newer version")
    assert await world.sql("SELECT count(*) FROM job_dead") == 0
    # Going back from the older version counted as no run.
    assert await world.sql("SELECT max(attempt_count) FROM job_history") == 1
    assert await world.sql("SELECT count(*) FROM runs") == 20


async def test_jobs_with_the_same_key_in_other_tenants_do_not_wait(world: JobWorld) -> None:
    tenants = [Tenant("a"), Tenant("b"), Tenant("b", "shop")]
    held, *others = tenants

    async def enqueue_of(tenant: Tenant, name: str, do: str, kind: JobType[Work], **keys: Any) -> UUID:
        async with world.outbox.transaction(world.database) as work:
            return (await work.enqueue(kind, Work(name, do), tenant=tenant, **keys)).id

    async with job_processes(world.url, 2, lease_s=LEASE_S):
        running = await enqueue_of(held, "held", "hold", KEYED, concurrency_key="k")
        await started(world, 1)
        async with world.database.transaction() as tx:
            # Its unique key is held open by an application, too.
            await world.outbox.enqueue(tx, WORK, Work("open"), unique_key="daily", tenant=held, run_at=LATER)
            keyed = [await enqueue_of(each, "b", "quick", KEYED, concurrency_key="k") for each in others]
            unique = [await enqueue_of(each, "b", "quick", WORK, unique_key="daily") for each in others]
            await eventually(lambda: done(world, keyed + unique), what="the jobs of other tenants")
        again = await enqueue_of(held, "next", "quick", KEYED, concurrency_key="k")
        assert len({*keyed, *unique}) == 4
        statuses = "SELECT array_agg(status ORDER BY id) FROM job_outbox WHERE id = ANY ($1)"
        assert await world.sql(statuses, [running, again]) == ["IN_PROGRESS", "PENDING"]
        await world.database.pool.execute("INSERT INTO gates VALUES ('held')")
        await eventually(lambda: done(world, [running, again]))
    assert await world.sql("SELECT count(*) FROM runs") == 6


async def test_a_backlog_of_urgent_jobs_delays_no_job_of_another_type(world: JobWorld) -> None:
    """It is more than both workers can run at once, and none of its jobs ends."""
    async with world.outbox.transaction(world.database) as work:
        other = await work.enqueue(OTHER, Work("other"), priority=50)
        await work.enqueue_many(WORK.new(Work(str(n), "stay"), priority=10) for n in range(300))
    async with job_processes(world.url, 2, lease_s=STEADY_S):
        await eventually(lambda: done(world, [other.id]), timeout_s=30, what="the job of another type")
    assert await world.sql("SELECT count(*) FROM job_history") == 1


async def test_a_backlog_of_urgent_jobs_does_not_starve_an_older_job_of_its_type(world: JobWorld) -> None:
    """Of ten claims of a worker one begins with what has waited longest. A claim takes 20 jobs here, so the two workers
    have claimed 360 urgent ones at most before it is the turn of the old one."""
    async with world.outbox.transaction(world.database) as work:
        old = await work.enqueue(WORK, Work("old"), priority=99)
    async with world.outbox.transaction(world.database) as work:
        urgent = await work.enqueue_many(WORK.new(Work(str(n)), priority=10) for n in range(500))
    async with job_processes(world.url, 2, lease_s=STEADY_S):
        ids = [old.id, *(job.id for job in urgent)]
        await eventually(lambda: done(world, ids), timeout_s=120, what="all jobs done")
    when = await world.sql("SELECT started_at FROM job_history WHERE id = $1", old.id)
    assert await world.sql("SELECT count(*) FROM job_history WHERE started_at > $1", when) >= 100


@pytest.mark.parametrize("at_once", [True, False])
async def test_unique_keys_in_opposite_order_in_two_processes_do_not_deadlock(
    world: JobWorld, at_once: bool
) -> None:
    """Each has a key in its open transaction that the other one wants next."""

    async def enqueue_all(caller: Caller, *keys: str) -> int:
        return await caller.enqueue(*keys) if at_once else sum([await caller.enqueue(key) for key in keys])

    async with caller_process(world.url) as one, caller_process(world.url) as other:
        assert await one.enqueue("a") + await other.enqueue("b") == 2
        new = await asyncio.gather(enqueue_all(one, "b", "c"), enqueue_all(other, "a", "d"))
        await one.commit()
        await other.commit()
    assert sum(new) == 4
    async with job_process(world.url, lease_s=STEADY_S):
        await eventually(lambda: world.sql("SELECT count(*) = 6 FROM job_history"), what="all six jobs done")
    names = await world.sql("SELECT array_agg(name ORDER BY name) FROM runs")
    assert names == ["a", "a", "b", "b", "c", "d"]
