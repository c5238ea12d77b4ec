"""Postgres' clock is set forward or back while workers run: no job waits for the length of the jump."""

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import pytest

from tests.support.jobs.world import JobWorld, Work, job_world
from tests.support.store.server_clock import jump, make_settable
from tests.support.waiting import eventually
from trunkline.jobs.reaper import Reaper
from trunkline.jobs.recurring import Recurring, Scheduler
from trunkline.jobs.worker import ClaimLimits
from trunkline.store import jobs
from trunkline.store.jobs import ReturnedClaim

AN_HOUR_S = 3600.0


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[JobWorld]:
    await make_settable(database_url)
    async with job_world(database_url) as world:
        yield world


async def test_a_clock_that_is_set_back_parks_no_job_that_was_due(world: JobWorld) -> None:
    first = await world.enqueue("first", "hold")
    async with world.service(running_max=1) as service:
        await world.workshop.started["first"].wait()
        waiting = await world.enqueue("waiting")
        on_purpose = await world.enqueue("on_purpose", run_at=waiting.run_at + timedelta(hours=2))
        await service.reaper.run_once()
        await jump(world.url, -AN_HOUR_S)
        world.workshop.gates["first"].set()
        await world.ended(first.id, waiting.id)
        assert (await world.job(on_purpose.id)).run_at == on_purpose.run_at


async def test_a_clock_that_is_set_back_parks_no_job_that_went_back_to_wait(world: JobWorld) -> None:
    """It waits for as long as it was told to, and not for the hour as well."""
    returned = await world.enqueue("returned")
    [claim] = await world.claim("w1")
    async with world.database.transaction() as tx:
        await jobs.put_back(tx, [ReturnedClaim(claim.id, claim.fence, 300.0)], "w1")
    reaper = Reaper(world.database, world.registry, world.notifier)
    await reaper.run_once()
    await jump(world.url, -AN_HOUR_S)
    await reaper.run_once()
    assert await world.sql(
        "SELECT run_at BETWEEN clock_timestamp() AND clock_timestamp() + interval '301 s' "
        "FROM job_outbox WHERE id = $1",
        returned.id,
    )


async def test_a_clock_that_is_set_back_prolongs_no_lease_of_a_dead_worker(world: JobWorld) -> None:
    enqueued = await world.enqueue()
    await world.claim("gone", lease_s=1.0)
    async with world.service(lease_s=1.0, renew_s=0.3) as service:
        await service.reaper.run_once()
        await jump(world.url, -AN_HOUR_S)
        [job] = await world.ended(enqueued.id)
    assert job.outcome == "succeeded"


async def test_a_clock_that_is_set_back_parks_no_recurring_job(world: JobWorld) -> None:
    """Nor if nobody saw it: another process comes after the jump."""
    minutely = Recurring("minutely", world.work, Work("tick"), "every 60")
    await Scheduler(world.database, world.outbox, [minutely]).run_once()
    await jump(world.url, -AN_HOUR_S)
    await Scheduler(world.database, world.outbox, [minutely]).run_once()
    assert await world.sql("SELECT next_at - clock_timestamp() <= interval '60 s' FROM job_schedules")


async def test_a_small_correction_of_the_clock_repeats_no_tick(world: JobWorld) -> None:
    """The last tick comes once more by the clock: it was enqueued, and the one after it is next."""
    daily = Recurring("daily", world.work, Work("tick"), "cron @daily")
    scheduler = Scheduler(world.database, world.outbox, [daily])
    await scheduler.run_once()
    enqueued, next_at = "date_trunc('day', next_at, 'UTC')", "next_at + interval '1 day'"
    await world.sql(f"UPDATE job_schedules SET last_at = {enqueued}, next_at = {next_at}")
    before = await world.sql("SELECT next_at FROM job_schedules")
    assert await scheduler.run_once() == 0
    assert await world.sql("SELECT next_at FROM job_schedules") == before


async def test_a_clock_that_was_set_back_while_no_worker_ran_parks_nothing(world: JobWorld) -> None:
    waiting = await world.enqueue("waiting")
    returned = await world.enqueue("returned")
    later = await world.enqueue("later", run_at=waiting.run_at + timedelta(hours=2))
    claims = {claim.id: claim for claim in await world.claim("gone", lease_s=1.0)}
    async with world.database.transaction() as tx:
        claim = claims[returned.id]
        await jobs.put_back(tx, [ReturnedClaim(claim.id, claim.fence, 0.0)], "gone")
    unclaimed = await world.enqueue("unclaimed")
    await jump(world.url, -AN_HOUR_S)
    async with world.service(lease_s=1.0, renew_s=0.3):
        ended = await world.ended(waiting.id, returned.id, unclaimed.id)
        assert (await world.job(later.id)).run_at == later.run_at
    assert {job.outcome for job in ended} == {"succeeded"}


async def test_a_clock_that_is_set_forward_takes_no_job_from_a_live_worker(world: JobWorld) -> None:
    enqueued = await world.enqueue("a", "hold")
    async with world.service(renew_s=0.5) as runs, world.service(renew_s=0.5) as other:
        await world.workshop.started["a"].wait()
        for service in (runs, other):
            await service.reaper.run_once()
        await jump(world.url, AN_HOUR_S)
        for service in (runs, other):
            await service.reaper.run_once()
        await eventually(lambda: is_leased(world, enqueued.id), what="the lease renewed on the new clock")
        world.workshop.gates["a"].set()
        await world.ended(enqueued.id)
    assert world.workshop.ran == [("a", 1)]


async def test_a_clock_that_is_set_forward_hides_no_job_of_a_dead_worker(world: JobWorld) -> None:
    """Its lease was over before. One that the jump alone ended is its owner's to renew."""
    reaper = Reaper(world.database, world.registry, world.notifier)
    await reaper.run_once()
    dead = await world.enqueue("dead")
    await world.claim("gone", lease_s=0.0)
    alive = await world.enqueue("alive")
    await world.claim("other", lease_s=600.0)
    await jump(world.url, AN_HOUR_S)
    assert await reaper.run_once() == 1
    assert [(await world.job(job.id)).status for job in (dead, alive)] == ["PENDING", "IN_PROGRESS"]


async def is_leased(world: JobWorld, job_id: UUID) -> bool:
    return bool(
        await world.sql("SELECT lease_expires_at > clock_timestamp() FROM job_outbox WHERE id = $1", job_id)
    )


async def test_a_job_claimed_ahead_of_a_clock_that_was_set_begins_at_its_moment(world: JobWorld) -> None:
    """What was known of the clock before the jump says nothing of the moment after it."""
    async with world.service(claims=ClaimLimits(ahead_s=5.0)) as service:
        await world.ended((await world.enqueue("first", wake=True)).id)
        await jump(world.url, AN_HOUR_S)
        due = await world.sql("SELECT clock_timestamp() + interval '2 s'")
        job = await world.enqueue("soon", run_at=due)
        service.poller.poll_now()
        await world.ended(job.id)
