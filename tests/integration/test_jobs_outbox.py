"""Into the outbox: with the caller's transaction, one or many, once per unique key."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.jobs.world import JobWorld, Work, job_world
from trunkline.errors import NotInTransaction
from trunkline.jobs import PayloadRefused, UnknownJobType, finisher
from trunkline.jobs.outbox import CHUNK, COPY_MIN
from trunkline.store.jobs import End
from trunkline.store.tenants import PLATFORM, Tenant, tenant_of


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[JobWorld]:
    async with job_world(database_url) as world:
        yield world


async def test_a_job_is_pending_with_everything_it_was_given(world: JobWorld) -> None:
    run_at = datetime.now(UTC) + timedelta(days=1)
    enqueued = await world.enqueue(
        "a", run_at=run_at, priority=3, unique_key="u", concurrency_key="c", max_attempts=9,
        tenant=Tenant("acme", "shop"),
    )  # fmt: skip
    job = await world.job(enqueued.id)
    assert enqueued.is_new
    assert (job.status, job.run_at, job.priority, job.max_attempts) == ("PENDING", run_at, 3, 9)
    assert (job.unique_key, job.concurrency_key, tenant_of(job)) == ("u", "c", Tenant("acme", "shop"))
    assert job.payload == '{"name":"a","do":"done"}'


async def test_a_job_of_a_transaction_that_fails_does_not_exist(world: JobWorld) -> None:
    async def fail_after_enqueueing() -> None:
        async with world.outbox.transaction(world.database) as work:
            await work.enqueue(world.work, Work("a"))
            raise RuntimeError("the caller fails")

    with pytest.raises(RuntimeError):
        await fail_after_enqueueing()
    assert await world.sql("SELECT count(*) FROM job_outbox") == 0


async def test_a_job_can_be_submitted_by_itself(world: JobWorld) -> None:
    submitted = await world.outbox.submit(world.database, world.work, Work("a"), priority=7)
    job = await world.job(submitted.id)
    assert (job.status, job.priority) == ("PENDING", 7)


async def test_a_refused_job_leaves_the_transaction_usable(world: JobWorld) -> None:
    async with world.outbox.transaction(world.database) as work:
        with pytest.raises(UnknownJobType):
            await work.enqueue("nobody_knows_it", {})
        with pytest.raises(PayloadRefused):
            await work.enqueue(world.work, Work("x" * 10_000_000))
        await work.enqueue("work", Work("fine"))
    assert await world.sql("SELECT count(*) FROM job_outbox") == 1


async def test_a_moment_in_the_past_is_now(world: JobWorld) -> None:
    before = await world.sql("SELECT clock_timestamp()")
    enqueued = await world.enqueue(run_at=datetime(2000, 1, 1, tzinfo=UTC))
    past = datetime(2000, 1, 1, tzinfo=UTC)
    async with world.outbox.transaction(world.database) as work:
        copied = await work.enqueue_many(world.work.new(Work(str(n)), run_at=past) for n in range(COPY_MIN))
    assert all(job.run_at >= before for job in (enqueued, *copied))
    assert await world.sql("SELECT min(run_at) FROM job_outbox") >= before


@pytest.mark.parametrize("count", [1, COPY_MIN, CHUNK + 1])
async def test_enqueue_many_keeps_the_order_of_its_jobs(world: JobWorld, count: int) -> None:
    async with world.outbox.transaction(world.database) as work:
        jobs = await work.enqueue_many(world.work.new(Work(f"n {n}\t\\")) for n in range(count))
    assert len({job.id for job in jobs}) == count
    last = await world.job(jobs[-1].id)
    assert last.payload == world.work.encode(Work(f"n {count - 1}\t\\"))
    assert await world.sql("SELECT count(*) FROM job_outbox WHERE status = 'PENDING'") == count


async def test_enqueueing_a_pending_unique_key_returns_the_existing_job(world: JobWorld) -> None:
    first = await world.enqueue("a", unique_key="u")
    second = await world.enqueue("b", unique_key="u")
    other = await world.enqueue("c", unique_key="v")
    assert (second.id, second.is_new) == (first.id, False)
    assert other.is_new
    assert (await world.job(first.id)).payload == '{"name":"a","do":"done"}'


async def test_a_repeated_unique_key_makes_the_pending_job_earlier_and_more_urgent(world: JobWorld) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    first = await world.enqueue("a", unique_key="u", run_at=later, priority=60)
    await world.enqueue("a", unique_key="u", priority=10)
    await world.enqueue("a", unique_key="u", run_at=later + timedelta(days=1), priority=90)
    job = await world.job(first.id)
    assert job.priority == 10
    assert job.run_at is not None
    assert job.run_at < later


async def test_jobs_of_one_unique_key_in_a_batch_are_one_job(world: JobWorld) -> None:
    keys = ["b", "a", "b", "c"]
    async with world.outbox.transaction(world.database) as work:
        jobs = await work.enqueue_many(world.work.new(Work(key), unique_key=key) for key in keys)
    assert jobs[0].id == jobs[2].id
    assert len({job.id for job in jobs}) == 3


async def test_a_unique_key_is_unique_within_its_job_type(world: JobWorld) -> None:
    first = await world.enqueue("a", unique_key="u")
    second = await world.enqueue("a", unique_key="u", kind=world.keyed)
    assert first.id != second.id


async def test_a_unique_key_is_separate_for_each_tenant(world: JobWorld) -> None:
    tenants = [PLATFORM, Tenant("a"), Tenant("b"), Tenant("b", "shop")]
    jobs = [await world.enqueue(str(n), unique_key="daily", tenant=t) for n, t in enumerate(tenants)]
    again = [await world.enqueue("again", unique_key="daily", tenant=tenant) for tenant in tenants]
    assert [job.is_new for job in (*jobs, *again)] == [True] * 4 + [False] * 4
    assert [job.id for job in again] == [job.id for job in jobs]
    async with world.service():
        await world.ended(*(job.id for job in jobs))
    assert sorted(world.workshop.names) == ["0", "1", "2", "3"]


async def test_a_concurrency_key_is_separate_for_each_tenant(world: JobWorld) -> None:
    tenants = [PLATFORM, Tenant("a"), Tenant("b")]
    for tenant in tenants:
        for name in ("first", "second"):
            await world.enqueue(
                f"{tenant.reseller_id} {name}", kind=world.keyed, concurrency_key="k", tenant=tenant
            )
    claimed = await world.claim_keyed()
    assert [job.reseller_id for job in claimed] == [tenant.reseller_id for tenant in tenants]
    # The last one first: by their age the jobs of others would be let in before its own.
    for job in reversed(claimed):
        async with world.database.transaction() as tx:
            await finisher.write(tx, [End(job.id, job.fence)], "w1", {"keyed_work": 1})
        assert await running(world) == {
            tenant.reseller_id or "": int(tenant.reseller_id != job.reseller_id) for tenant in tenants
        }
        [following] = await world.claim_keyed()
        assert following.reseller_id == job.reseller_id


async def running(world: JobWorld) -> dict[str, int]:
    """How many run under the key, by tenant."""
    async with world.database.connection() as conn:
        rows = await conn.fetch("SELECT reseller_id, running FROM job_keys")
    return {row["reseller_id"]: row["running"] for row in rows}


@pytest.mark.parametrize("how", ["enqueue", "enqueue_many"])
async def test_a_connection_in_no_transaction_is_refused(world: JobWorld, how: str) -> None:
    """Else the job runs although the session that enqueued it was rolled back."""
    async with world.database.pool.acquire() as connection:
        enqueueing = (
            world.outbox.enqueue(connection, world.work, Work("a"))
            if how == "enqueue"
            else world.outbox.enqueue_many(connection, [world.work.new(Work("a"))])
        )
        with pytest.raises(NotInTransaction, match="Begin"):
            await enqueueing
    assert await world.sql("SELECT count(*) FROM job_outbox") == 0
