"""Each race is forced. Take away the sentence that closes it, and the test of its name fails."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from tests.support.jobs.world import JobWorld, Work, job_world
from trunkline.jobs import finisher
from trunkline.jobs import reaper as reaper_module
from trunkline.jobs.finisher import WrittenVerdicts
from trunkline.jobs.reaper import Reaper
from trunkline.store import job_admin, job_upkeep, jobs
from trunkline.store.database import Connection
from trunkline.store.jobs import (
    BEGINNING,
    FIRST_KEY,
    Claimant,
    Death,
    End,
    EndedJob,
    Inserted,
    JobClaim,
    Lane,
    LanePosition,
    Returned,
    ReturnedClaim,
)
from trunkline.store.tenants import PLATFORM

KEYED = {Lane("keyed_work", 50, keyed=True): LanePosition(BEGINNING)}


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[JobWorld]:
    async with job_world(database_url) as world:
        yield world


async def enqueue_keyed(world: JobWorld, *names: str, key: str = "k") -> list[object]:
    return [(await world.enqueue(name, kind=world.keyed, concurrency_key=key)).id for name in names]


async def end(world: JobWorld, *claims: JobClaim, worker: str = "w1") -> WrittenVerdicts:
    async with world.database.transaction() as tx:
        verdicts = [End(claim.id, claim.fence) for claim in claims]
        return await finisher.write(tx, verdicts, worker, world.registry.running_max)


async def give_up(world: JobWorld, *claims: JobClaim, worker: str = "w1") -> WrittenVerdicts:
    """Their runs failed."""
    async with world.database.transaction() as tx:
        verdicts = [ReturnedClaim(claim.id, claim.fence, 0.0, True, "E", "m") for claim in claims]
        return await finisher.write(tx, verdicts, worker, world.registry.running_max)


async def running(world: JobWorld, key: str = "k") -> int:
    count: int = await world.sql("SELECT running FROM job_keys WHERE key = $1", key)
    return count


# A unique key covers PENDING only


async def test_a_unique_key_enqueued_during_its_jobs_run_makes_another_job(world: JobWorld) -> None:
    first = await world.enqueue(unique_key="u")
    await world.claim()
    second = await world.enqueue(unique_key="u")
    assert second.is_new
    assert second.id != first.id


async def test_a_pending_job_found_by_its_key_is_not_claimed_before_the_finder_commits(
    world: JobWorld,
) -> None:
    """Else its run would read the state from before the change, and the change would be swallowed."""
    first = await world.enqueue(unique_key="u")
    async with world.database.transaction() as tx:
        found = await world.outbox.enqueue(tx, world.work, Work("a"), unique_key="u")
        assert found.id == first.id
        assert await world.claim() == []
    assert [job.id for job in await world.claim()] == [first.id]


async def test_a_unique_key_whose_job_is_being_claimed_makes_another_job(world: JobWorld) -> None:
    first = await world.enqueue(unique_key="u")
    async with world.database.transaction() as tx:
        await jobs.claim(tx, {Lane("work", 50): LanePosition(BEGINNING)}, 1, Claimant("w1"))
        second = await world.enqueue(unique_key="u")
    assert second.id != first.id


async def beside_a_newer_one(world: JobWorld) -> tuple[JobClaim, JobClaim]:
    """A running job whose key a newer one has by now, and a bystander of the same batch."""
    await world.enqueue("old", unique_key="u")
    await world.enqueue("bystander")
    by_name = {world.work.decode(job.payload).name: job for job in await world.claim("w1")}
    await world.enqueue("new", unique_key="u")
    return by_name["old"], by_name["bystander"]


async def test_a_failed_job_beside_a_newer_one_is_superseded_alone(world: JobWorld) -> None:
    old, bystander = await beside_a_newer_one(world)
    await give_up(world, old, bystander)
    assert ((await world.job(old.id)).status, (await world.job(old.id)).outcome) == ("DONE", "superseded")
    assert (await world.job(bystander.id)).status == "PENDING"


async def test_a_lost_lease_beside_a_newer_job_does_not_stop_the_reaper(world: JobWorld) -> None:
    old, bystander = await beside_a_newer_one(world)
    await world.sql(
        "UPDATE job_outbox SET lease_expires_at = now() - interval '1 s' WHERE status = 'IN_PROGRESS'"
    )
    assert await Reaper(world.database, world.registry, world.notifier).run_once() == 2
    assert (await world.job(old.id)).outcome == "superseded"
    assert (await world.job(bystander.id)).last_error_code == "lease_lost"


async def test_a_snoozed_or_given_back_job_beside_a_newer_one_is_superseded(world: JobWorld) -> None:
    old, _ = await beside_a_newer_one(world)
    async with world.database.transaction() as tx:
        await jobs.put_back(tx, [ReturnedClaim(old.id, old.fence, 60.0, counted=False)], "w1")
    assert (await world.job(old.id)).outcome == "superseded"


async def test_a_replayed_letter_beside_a_newer_job_is_superseded(world: JobWorld) -> None:
    old, _ = await beside_a_newer_one(world)
    async with world.database.transaction() as tx:
        await jobs.bury(tx, [Death(old.id, old.fence, "E", "m")], "w1")
    async with world.database.transaction() as tx:
        assert await job_admin.replay(tx, PLATFORM) == (1, [])
    assert (await world.job(old.id)).outcome == "superseded"


@pytest.mark.parametrize(("commits", "status"), [(True, "DONE"), (False, "PENDING")])
async def test_a_failed_job_waits_for_a_newer_one_that_is_not_yet_committed(
    world: JobWorld, commits: bool, status: str
) -> None:
    await world.enqueue("old", unique_key="u")
    [old] = await world.claim("w1")
    async with world.database.pool.acquire() as conn:
        transaction = conn.transaction()
        await transaction.start()
        await world.outbox.enqueue(conn, world.work, Work("new"), unique_key="u")
        failing = asyncio.create_task(give_up(world, old))
        await world.blocked()
        await (transaction.commit() if commits else transaction.rollback())
    await failing
    assert (await world.job(old.id)).status == status


@pytest.mark.parametrize("together", [True, False])
async def test_unique_keys_in_opposite_order_do_not_deadlock(world: JobWorld, together: bool) -> None:
    """Each has a key that the other one wants next. Nobody waits for the other's end."""

    async def enqueue(tx: Connection, *keys: str) -> list[Inserted]:
        if together:
            return await world.outbox.enqueue_many(tx, [world.work.new(Work(k), unique_key=k) for k in keys])
        return [await world.outbox.enqueue(tx, world.work, Work(key), unique_key=key) for key in keys]

    async with world.database.transaction() as one, world.database.transaction() as other:
        await enqueue(one, "a")
        await enqueue(other, "b")
        beside = [*await enqueue(one, "b", "c"), *await enqueue(other, "a", "d")]
    assert all(job.is_new for job in beside)
    async with world.service():
        await world.ended(*(job.id for job in beside))
    assert sorted(world.workshop.names) == ["a", "a", "b", "b", "c", "d"]


async def test_a_job_put_back_is_found_by_its_unique_key(world: JobWorld) -> None:
    async with world.database.transaction() as tx:
        await world.outbox.enqueue(tx, world.work, Work("first"), unique_key="u")
        beside = await world.enqueue("beside", unique_key="u")
    claims = {job.id: job for job in await world.claim("w1")}
    await give_up(world, claims[beside.id])
    found = await world.enqueue("again", unique_key="u")
    assert (found.id, found.is_new) == (beside.id, False)


# Concurrency keys


async def test_two_claims_at_once_never_run_two_jobs_of_one_key(world: JobWorld) -> None:
    """The first takes one job and has not committed: the second sees another one, and nothing running."""
    ids = await enqueue_keyed(world, "a", "b", "c")
    async with world.claiming_keyed("w1", limit=1) as first:
        assert await world.claim_keyed("w2") == []
    assert [job.id for job in first] == ids[:1]
    assert await world.claim_keyed("w2") == []
    assert await running(world) == 1


async def test_many_claims_at_once_keep_to_the_limit(world: JobWorld) -> None:
    for key in ("k", "l"):
        await enqueue_keyed(world, *(f"{key}{n}" for n in range(10)), key=key)
    for _ in range(10):
        shares = await asyncio.gather(*(world.claim_keyed(f"w{n}") for n in range(5)))
        claims = [(f"w{n}", job) for n, share in enumerate(shares) for job in share]
        assert len({job.concurrency_key for _, job in claims}) == len(claims)
        for worker, job in claims:
            await end(world, job, worker=worker)
    await claim_and_end_the_rest(world)
    assert await world.sql("SELECT count(*) FROM job_history") == 20


async def claim_and_end_the_rest(world: JobWorld) -> None:
    while claims := await world.claim_keyed("w1"):
        await end(world, *claims)


async def test_parked_jobs_are_not_due_until_their_key_is_free(world: JobWorld) -> None:
    """A worker that saw them as due would spin."""
    ids = await enqueue_keyed(world, "a", "b", "c")
    [first] = await world.claim_keyed()
    async with world.database.connection() as conn:
        assert await jobs.survey(conn, ["keyed_work"]) == []
        assert [found.due_in_s for found in await jobs.next_due(conn, KEYED, datetime.now(UTC))] == [None]
    written = await end(world, first)
    assert [lane for lane, _ in written.places] == [Lane("keyed_work", 50, keyed=True)]
    assert [job.id for job in await world.claim_keyed()] == ids[1:2]


async def test_a_job_parked_while_its_key_is_freed_becomes_claimable(world: JobWorld) -> None:
    """The end of the first waits for the key's lock, and must then see what was parked under it."""
    ids = await enqueue_keyed(world, "a")
    [first] = await world.claim_keyed()
    ids += await enqueue_keyed(world, "b")
    async with world.claiming_keyed("w2") as second:
        assert second == []
        assert (await end(world, first)).postponed == {first.id}
    assert len((await end(world, first)).places) == 1
    assert [job.id for job in await world.claim_keyed("w2")] == ids[1:]


@pytest.mark.parametrize("how", ["failed", "expired", "died"])
async def test_every_end_of_a_run_frees_its_key(world: JobWorld, how: str) -> None:
    ids = await enqueue_keyed(world, "a", "b")
    [first] = await world.claim_keyed()
    if how == "failed":
        await give_up(world, first)
    elif how == "expired":
        await world.sql(
            "UPDATE job_outbox SET lease_expires_at = now() - interval '1 s' WHERE id = $1", ids[0]
        )
        await Reaper(world.database, world.registry, world.notifier).run_once()
    else:
        async with world.database.transaction() as tx:
            await finisher.write(
                tx, [Death(first.id, first.fence, "E", "m")], "w1", world.registry.running_max
            )
    assert await running(world) == 0
    assert len(await world.claim_keyed()) == 1


async def test_a_stale_owner_does_not_free_a_key_twice(world: JobWorld) -> None:
    [job_id] = await enqueue_keyed(world, "a")
    [stale] = await world.claim_keyed("w1")
    await world.sql("UPDATE job_outbox SET lease_expires_at = now() - interval '1 s' WHERE id = $1", job_id)
    await Reaper(world.database, world.registry, world.notifier).run_once()
    [current] = await world.claim_keyed("w2")
    await end(world, stale, worker="w1")
    assert await running(world) == 1
    await end(world, current, worker="w2")
    assert await running(world) == 0


async def test_a_locked_key_delays_only_its_own_jobs(world: JobWorld) -> None:
    for key in ("k", "l"):
        await enqueue_keyed(world, "a", key=key)
    by_key = {job.concurrency_key: job for job in await world.claim_keyed("w1")}
    async with world.database.transaction() as tx:
        await tx.execute("SELECT FROM job_keys WHERE key = 'k' FOR UPDATE")
        written = await end(world, by_key["k"], by_key["l"])
        assert ([e.id for e in written.ended], written.postponed) == ([by_key["l"].id], {by_key["k"].id})
    assert [e.id for e in (await end(world, by_key["k"])).ended] == [by_key["k"].id]
    assert [await running(world, key) for key in ("k", "l")] == [0, 0]


async def test_jobs_under_a_key_that_is_held_do_not_hide_another(world: JobWorld) -> None:
    await enqueue_keyed(world, *(str(n) for n in range(30)), key="held")
    [other] = await enqueue_keyed(world, "other", key="free")
    await world.sql("INSERT INTO job_keys (job_type, key) VALUES ('keyed_work', 'held')")
    async with world.database.transaction() as tx:
        await tx.execute("SELECT FROM job_keys WHERE key = 'held' FOR UPDATE")
        async with world.service(running_max=5):
            [job] = await world.ended(other)  # type: ignore[arg-type]
    assert job.outcome == "succeeded"


async def test_a_recount_corrects_a_keys_running_count(world: JobWorld) -> None:
    ids = await enqueue_keyed(world, "a", "b")
    await world.claim_keyed()
    await world.sql("DELETE FROM job_outbox WHERE id = $1", ids[0])
    assert await world.claim_keyed() == []
    async with world.database.transaction() as tx:
        keys = await job_upkeep.lock_keys(tx, FIRST_KEY, 100)
        wrong, let_in = await job_upkeep.recount_keys(tx, keys, world.registry.running_max)
    assert (wrong, [lane for lane, _ in let_in]) == (1, [Lane("keyed_work", 50, keyed=True)])
    assert [job.id for job in await world.claim_keyed()] == ids[1:]


async def test_a_recount_deletes_idle_keys_only(world: JobWorld) -> None:
    await enqueue_keyed(world, "a", key="idle")
    await enqueue_keyed(world, "b", key="busy")
    by_key = {job.concurrency_key: job for job in await world.claim_keyed()}
    await end(world, by_key["idle"])
    async with world.database.transaction() as tx:
        keys = await job_upkeep.lock_keys(tx, FIRST_KEY, 100)
        assert await job_upkeep.recount_keys(tx, keys, world.registry.running_max) == (0, [])
    assert await world.sql("SELECT array_agg(key) FROM job_keys") == ["busy"]


# Leases


async def test_an_owner_that_returns_during_a_reap_ends_nothing(world: JobWorld) -> None:
    enqueued = await world.enqueue()
    [claim] = await world.claim("w1", lease_s=-1)
    async with world.database.transaction() as tx:
        [expired] = await jobs.lock_expired(tx, BEGINNING, 10)
        assert (await end(world, claim)).postponed == {claim.id}
        await jobs.put_back(tx, [ReturnedClaim(expired.id, expired.fence, 0.0)], None)
    written = await end(world, claim)
    assert (written.ended, written.postponed) == ([], set())
    assert (await world.job(enqueued.id)).status == "PENDING"


def returned(job_id: UUID, fence: int) -> ReturnedClaim:
    return ReturnedClaim(job_id, fence, 0.0)


def dead(job_id: UUID, fence: int) -> Death:
    return Death(job_id, fence, "told_to", "It was told to die")


def ids_of(written: Sequence[EndedJob | Returned]) -> list[UUID]:
    return [each.id for each in written]


@pytest.mark.parametrize(
    ("write", "verdict"),
    [(jobs.finish, End), (jobs.finish_at_once, End), (jobs.put_back, returned), (jobs.bury, dead)],
)
async def test_a_fence_is_compared_with_that_of_its_own_job(
    world: JobWorld, write: Callable[..., Any], verdict: Callable[[UUID, int], Any]
) -> None:
    """A stale end of one job, in a batch with the fence of another, ends nothing of a newer claim."""
    first = await world.enqueue("a")
    [stale] = await world.claim("w1", lease_s=-1)
    await Reaper(world.database, world.registry, world.notifier).run_once()
    await world.enqueue("b")
    claims = {job.id: job for job in await world.claim("w1")}
    other = next(job for job in claims.values() if job.id != first.id)
    await world.sql("UPDATE job_outbox SET fence = $1", other.fence)
    verdicts = [verdict(stale.id, stale.fence), verdict(other.id, other.fence)]
    async with world.database.transaction() as tx:
        assert ids_of(await write(tx, verdicts, "w1")) == [other.id]
    assert (await world.job(first.id)).status == "IN_PROGRESS"


async def test_the_reaper_leaves_jobs_with_unique_keys_for_later_when_its_time_is_up(
    world: JobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that open transactions hold cost a moment each. Jobs of dead workers without one do not wait for that."""
    keyed = [await world.enqueue(key, unique_key=key) for key in ("a", "b", "c")]
    plain = await world.enqueue("plain")
    await world.claim("gone", lease_s=-1)
    reaper = Reaper(world.database, world.registry, world.notifier)
    monkeypatch.setattr(reaper_module, "CONTENDED_TURN_S", -1.0)
    assert await reaper.run_once() == 1
    assert (await world.job(plain.id)).status == "PENDING"
    monkeypatch.undo()
    assert await reaper.run_once() == 3
    assert {(await world.job(job.id)).status for job in keyed} == {"PENDING"}


async def test_the_reaper_passes_over_a_job_that_is_just_being_finished(world: JobWorld) -> None:
    enqueued = await world.enqueue()
    [claim] = await world.claim("w1", lease_s=-1)
    async with world.database.transaction() as tx:
        await jobs.finish(tx, [End(claim.id, claim.fence)], "w1")
        assert await Reaper(world.database, world.registry, world.notifier).run_once() == 0
    assert (await world.job(enqueued.id)).status == "DONE"


# Cancellation


async def test_a_job_claimed_while_it_is_cancelled_is_stopped(world: JobWorld) -> None:
    enqueued = await world.enqueue()
    async with world.database.transaction() as tx:
        [claim] = (
            await jobs.claim(tx, {Lane("work", 50): LanePosition(BEGINNING)}, 1, Claimant("w1"))
        ).claimed
        cancelling = asyncio.create_task(cancel(world, enqueued.id))
        await world.blocked()
    assert await cancelling == "asked"
    await give_up(world, claim)
    assert (await world.job(enqueued.id)).outcome == "cancelled"


async def cancel(world: JobWorld, job_id: object) -> str | None:
    async with world.database.transaction() as tx:
        return await job_admin.cancel(tx, PLATFORM, job_id, "not wanted")  # type: ignore[arg-type]


async def test_a_cancelled_job_is_never_claimed(world: JobWorld) -> None:
    enqueued = await world.enqueue()
    assert await cancel(world, enqueued.id) == "cancelled"
    assert await world.claim() == []
    assert await cancel(world, enqueued.id) is None
