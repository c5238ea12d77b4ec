"""Out of the outbox: claims in order, fences that hold, and plans that stay good."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from tests.support.jobs.world import JobWorld, Work, job_world
from trunkline.store import database as store
from trunkline.store import job_admin, jobs
from trunkline.store.jobs import PLANNER, Claimant, Death, End, JobClaim, Lane, LanePosition, ReturnedClaim
from trunkline.store.sql import query
from trunkline.store.tenants import PLATFORM

WORK = Lane("work", 50)


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[JobWorld]:
    async with job_world(database_url) as world:
        yield world


async def expire(world: JobWorld, *ids: object) -> None:
    """Let leases have run out."""
    await world.sql(
        "UPDATE job_outbox SET lease_expires_at = now() - interval '1 s' WHERE id = ANY ($1)", ids
    )


async def finish(world: JobWorld, job: JobClaim, worker: str) -> bool:
    async with world.database.connection() as conn:
        return bool(await jobs.finish(conn, [End(job.id, job.fence)], worker))


async def test_claims_take_urgent_jobs_first_and_equals_by_age(world: JobWorld) -> None:
    now = datetime.now(UTC)
    for name, priority, delay_s in (("old", 50, 0), ("new", 50, 0.01), ("urgent", 10, 0.02)):
        await world.enqueue(name, priority=priority, run_at=now + timedelta(seconds=delay_s))
    await world.sql("UPDATE job_outbox SET run_at = run_at - interval '1 h'")
    lanes = {Lane("work", 10): LanePosition(), WORK: LanePosition()}
    order = []
    for _ in range(3):
        async with world.database.connection() as conn:
            order += (await jobs.claim(conn, lanes, 1, Claimant("w"))).claimed
    assert [job.payload for job in order] == [
        world.work.encode(Work(name)) for name in ("urgent", "old", "new")
    ]


async def test_a_claim_names_its_owner_lease_and_fence(world: JobWorld) -> None:
    enqueued = await world.enqueue()
    [claimed] = await world.claim("w1")
    job = await world.job(enqueued.id)
    assert (job.status, job.locked_by, job.attempt_count) == ("IN_PROGRESS", "w1", 1)
    assert job.lease_expires_at is not None
    assert job.started_at is not None
    assert job.lease_expires_at - job.started_at >= timedelta(seconds=15)
    assert claimed.fence > 0


async def test_a_job_not_yet_due_is_not_claimed_and_next_due_says_when(world: JobWorld) -> None:
    await world.enqueue(run_at=datetime.now(UTC) + timedelta(seconds=3600))
    assert await world.claim() == []
    async with world.database.connection() as conn:
        [coming] = await jobs.next_due(conn, [WORK], datetime.now(UTC))
        [surveyed] = await jobs.survey(conn, ["work"])
    assert coming.due_in_s is not None
    assert 3000 < coming.due_in_s < 3600
    assert 3000 < surveyed.due_in_s < 3600


async def test_next_due_leaves_out_jobs_that_are_due_already(world: JobWorld) -> None:
    """It is claimed or blocked: a worker that slept until then would not sleep at all."""
    enqueued = await world.enqueue()
    async with world.database.connection() as conn:
        [coming] = await jobs.next_due(conn, [WORK], enqueued.run_at)
    assert coming.due_in_s is None


async def test_next_due_shows_a_job_that_became_due_since_the_claim(world: JobWorld) -> None:
    """The claim was too early for it. If `next_due` left out due jobs, it would wait for a survey."""
    await world.enqueue(run_at=datetime.now(UTC) + timedelta(hours=1))
    async with world.database.connection() as conn:
        look = await jobs.claim(conn, {WORK: LanePosition()}, 10, Claimant("w"))
        assert look.claimed == []
        await world.sql("UPDATE job_outbox SET run_at = $1::timestamptz + interval '1 us'", look.at)
        [coming] = await jobs.next_due(conn, [WORK], look.at)
    assert coming.due_in_s is not None
    assert coming.due_in_s <= 0


async def test_next_due_after_a_claim_ahead_shows_the_next_job(world: JobWorld) -> None:
    soon = await world.enqueue("soon", run_at=datetime.now(UTC) + timedelta(seconds=2000))
    later = await world.enqueue("later", run_at=datetime.now(UTC) + timedelta(seconds=4000))
    async with world.database.connection() as conn:
        look = await jobs.claim(conn, {WORK: LanePosition()}, 10, Claimant("w"), ahead_s=3000)
        [coming] = await jobs.next_due(conn, [WORK], look.at)
    assert [job.id for job in look.claimed] == [soon.id]
    assert (await world.job(soon.id)).started_at == soon.run_at
    assert coming.due_in_s is not None
    assert 3000 < coming.due_in_s < 4000
    assert (await world.job(later.id)).status == "PENDING"


async def test_a_claim_starts_at_its_floor_and_a_survey_at_the_beginning(world: JobWorld) -> None:
    enqueued = await world.enqueue()
    above = LanePosition(enqueued.run_at + timedelta(microseconds=1))
    async with world.database.connection() as conn:
        assert (await jobs.claim(conn, {WORK: above}, 10, Claimant("w"))).claimed == []
        assert [found.first for found in await jobs.survey(conn, ["work"])] == [
            LanePosition(enqueued.run_at, enqueued.id)
        ]
        at_it = LanePosition(enqueued.run_at, enqueued.id)
        assert len((await jobs.claim(conn, {WORK: at_it}, 10, Claimant("w"))).claimed) == 1


async def test_a_survey_finds_every_lane_and_no_foreign_type(world: JobWorld) -> None:
    for priority in (99, 1, 50):
        await world.enqueue(priority=priority)
    await world.enqueue(kind=world.keyed, concurrency_key="k", priority=7)
    async with world.database.connection() as conn:
        found = {survey.lane for survey in await jobs.survey(conn, ["work", "keyed_work"])}
        assert found == {*(Lane("work", p) for p in (1, 50, 99)), Lane("keyed_work", 7, True)}
        assert await jobs.survey(conn, ["another"]) == []


async def test_two_claims_at_once_share_the_jobs(world: JobWorld) -> None:
    async with world.outbox.transaction(world.database) as work:
        enqueued = await work.enqueue_many(world.work.new(Work(str(n))) for n in range(100))
    shares = await asyncio.gather(*(world.claim(f"w{n}", limit=30) for n in range(4)))
    ids = [job.id for share in shares for job in share]
    assert len(ids) == len(set(ids))
    ids += [job.id for job in await world.claim("rest")]
    assert set(ids) == {job.id for job in enqueued}


async def test_a_paused_type_is_not_claimed_until_it_is_resumed(world: JobWorld) -> None:
    await world.enqueue()
    async with world.database.transaction() as tx:
        await job_admin.pause(tx, "work", "repairs", "me")
    assert await world.claim() == []
    async with world.database.connection() as conn:
        assert await jobs.survey(conn, ["work"]) == []
    async with world.database.transaction() as tx:
        assert await job_admin.resume(tx, "work")
        assert not await job_admin.resume(tx, "work")
    assert len(await world.claim()) == 1


async def test_a_finished_job_leaves_the_outbox_and_is_history(world: JobWorld) -> None:
    enqueued = await world.enqueue()
    [claimed] = await world.claim()
    assert await finish(world, claimed, "w1")
    job = await world.job(enqueued.id)
    assert (job.status, job.outcome, job.locked_by) == ("DONE", "succeeded", "w1")
    assert await world.sql("SELECT count(*) FROM job_outbox") == 0


@pytest.mark.parametrize("how", ["finish", "put_back", "bury", "renew"])
async def test_an_owner_that_lost_its_lease_changes_nothing(world: JobWorld, how: str) -> None:
    enqueued = await world.enqueue()
    [stale] = await world.claim("w1")
    await put_back_expired(world, enqueued.id)
    [current] = await world.claim("w1")
    assert current.fence > stale.fence
    async with world.database.transaction() as tx:
        match how:
            case "finish":
                assert not await jobs.finish(tx, [End(stale.id, stale.fence)], "w1")
            case "put_back":
                assert not await jobs.put_back(tx, [ReturnedClaim(stale.id, stale.fence)], "w1")
            case "bury":
                assert not await jobs.bury(tx, [Death(stale.id, stale.fence, "x", "y")], "w1")
            case "renew":
                assert not await jobs.renew(tx, {stale.id: stale.fence}, Claimant("w1"))
    job = await world.job(enqueued.id)
    assert (job.status, job.attempt_count) == ("IN_PROGRESS", 2)
    assert await finish(world, current, "w1")


async def put_back_expired(world: JobWorld, job_id: object) -> None:
    await expire(world, job_id)
    async with world.database.transaction() as tx:
        [expired] = await jobs.lock_expired(tx, jobs.BEGINNING, 10)
        await jobs.put_back(tx, [ReturnedClaim(expired.id, expired.fence, 0.0)], None)


async def test_a_claim_that_a_crashed_server_forgot_finishes_nothing(world: JobWorld) -> None:
    """A claim is not waited for on disk. What the server forgot is pending, and its fence is never given again."""
    enqueued = await world.enqueue()
    async with world.database.pool.acquire() as conn:
        transaction = conn.transaction()
        await transaction.start()
        [forgotten] = (await jobs.claim(conn, {WORK: LanePosition()}, 1, Claimant("w1"))).claimed
        assert await conn.fetchval("SHOW synchronous_commit") == "off"
        await transaction.rollback()
        assert await conn.fetchval("SHOW synchronous_commit") == "on"
    assert not await finish(world, forgotten, "w1")
    [current] = await world.claim("w1")
    assert current.fence > forgotten.fence
    assert not await finish(world, forgotten, "w1")
    assert (await world.job(enqueued.id)).status == "IN_PROGRESS"
    assert await finish(world, current, "w1")


async def test_a_claim_under_a_concurrency_key_commits_synchronously(world: JobWorld) -> None:
    """Or a crash of the server could let two run at once."""
    await world.enqueue(kind=world.keyed, concurrency_key="k")
    async with world.database.connection() as conn:
        _, candidates = await jobs.keyed_candidates(
            conn, {Lane("keyed_work", 50, keyed=True): LanePosition()}, 1
        )
    async with world.database.transaction() as tx:
        claimed, _ = await jobs.claim_keyed(tx, candidates, Claimant("w1"), {"keyed_work": 1})
        assert len(claimed) == 1
        assert await tx.fetchval("SHOW synchronous_commit") == "on"


async def test_a_fence_grows_also_when_the_clock_goes_back(world: JobWorld) -> None:
    await world.enqueue()
    await world.sql("UPDATE job_outbox SET fence = 9000000000000000000")
    [claimed] = await world.claim("w1")
    assert claimed.fence == 9000000000000000001


async def test_another_worker_with_the_same_fence_changes_nothing(world: JobWorld) -> None:
    await world.enqueue()
    [claimed] = await world.claim("w1")
    assert not await finish(world, claimed, "w2")


async def test_a_completion_during_its_own_lease_renewal_is_not_lost(world: JobWorld) -> None:
    """The completion skips what the renewal has locked, and learns that the job is still its own."""
    await world.enqueue()
    [claimed] = await world.claim("w1")
    async with world.database.transaction() as tx:
        assert await jobs.renew(tx, {claimed.id: claimed.fence}, Claimant("w1"))
        assert not await finish(world, claimed, "w1")
        async with world.database.connection() as conn:
            assert await jobs.held(conn, {claimed.id: claimed.fence}, "w1") == {claimed.id}
    assert await finish(world, claimed, "w1")


async def test_a_job_put_back_waits_until_its_time_and_keeps_its_error(world: JobWorld) -> None:
    enqueued = await world.enqueue()
    [claimed] = await world.claim("w1")
    before = datetime.now(UTC)
    async with world.database.transaction() as tx:
        [back] = await jobs.put_back(
            tx, [ReturnedClaim(claimed.id, claimed.fence, 3600.0, True, "E", "m")], "w1"
        )
    job = await world.job(enqueued.id)
    assert (job.status, job.attempt_count, job.last_error_code, job.last_error_message) == (
        "PENDING",
        1,
        "E",
        "m",
    )
    assert back.run_at == job.run_at
    assert job.run_at is not None
    assert before <= job.run_at - timedelta(hours=1) <= datetime.now(UTC)
    assert await world.claim() == []


async def test_a_buried_job_is_a_dead_letter_that_can_be_replayed(world: JobWorld) -> None:
    enqueued = await world.enqueue("a", concurrency_key=None, unique_key="u")
    [claimed] = await world.claim("w1")
    async with world.database.transaction() as tx:
        await jobs.bury(tx, [Death(claimed.id, claimed.fence, "E", "m")], "w1")
    dead = await world.job(enqueued.id)
    assert (dead.status, dead.last_error_code, dead.payload) == ("FAILED", "E", world.work.encode(Work("a")))
    async with world.database.transaction() as tx:
        assert await job_admin.replay(tx, PLATFORM, job_id=uuid4()) == (0, [])
        count, back = await job_admin.replay(tx, PLATFORM, job_id=enqueued.id)
    assert (count, [job.id for job in back]) == (1, [enqueued.id])
    [again] = await world.claim("w1")
    assert (again.attempt, again.unique_key) == (1, "u")
    assert again.fence > claimed.fence


# Plans: the outbox is empty when statements are planned and full when they run.


async def plan(conn: store.Connection, name: str, arguments: str) -> str:
    await conn.execute(f"PREPARE probe AS {query(name)}")
    rows = await conn.fetch(f"EXPLAIN EXECUTE probe({arguments})")
    await conn.execute("DEALLOCATE probe")
    return "\n".join(row[0] for row in rows)


HOT = {
    "jobs/claim": ("ARRAY['work'], ARRAY[50::int2], ARRAY[now()], ARRAY[gen_random_uuid()], 500, 'w', 15, 0",
                   "job_outbox_runnable"),
    "jobs/finish": ("ARRAY[gen_random_uuid()], ARRAY[1], 'w', ARRAY['succeeded'], ARRAY[''], ARRAY[''], ARRAY[''], "
                    "ARRAY[0::real], ARRAY['']", "job_outbox_pkey"),
    "jobs/finish_at_once": ("ARRAY[gen_random_uuid()], ARRAY[1], 'w', ARRAY['succeeded'], ARRAY[''], ARRAY[''], "
                            "ARRAY[''], ARRAY[0::real], ARRAY['']", "job_outbox_pkey"),
    "jobs/put_back": ("ARRAY[gen_random_uuid()], ARRAY[1], 'w', ARRAY[0::float8], ARRAY[true], ARRAY[''], ARRAY['']",
                      "job_outbox_pkey"),
    "jobs/renew": ("ARRAY[gen_random_uuid()], ARRAY[1], 'w', 15", "job_outbox_pkey"),
    "jobs/expired": ("now(), 100, NULL, 0", "job_outbox_expired_lease"),
    "jobs/next_due": ("ARRAY['work'], ARRAY[50::int2], ARRAY[false], now()", "job_outbox_runnable"),
    "jobs/survey": ("ARRAY['work']", "job_outbox_runnable"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOT)
@pytest.mark.parametrize("state", ["new", "vacuumed", "full"])
async def test_hot_job_statements_use_their_index(world: JobWorld, name: str, state: str) -> None:
    if state == "full":
        async with world.outbox.transaction(world.database) as work:
            await work.enqueue_many(world.work.new(Work(str(n))) for n in range(3000))
    if state != "new":
        async with world.database.pool.acquire() as conn:
            await conn.execute("VACUUM ANALYZE job_outbox")
    arguments, index = HOT[name]
    database = await store.connect(
        world.url, session_settings={**PLANNER, "plan_cache_mode": "force_generic_plan"}
    )
    async with database.pool.acquire() as conn:
        chosen = await plan(conn, name, arguments)
    await database.close()
    assert f"using {index} on job_outbox" in chosen
    assert "Index Cond" in chosen
    assert "Seq Scan on job_outbox" not in chosen
