"""A worker is woken for jobs, runs them, writes their outcomes, and gives back what it cannot run."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, MutableMapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.faults.proxy import TcpProxy
from tests.support.jobs.world import NEVER_S, JobWorld, Work, job_world
from tests.support.metric_values import value
from tests.support.waiting import eventually
from trunkline.handlers import in_thread
from trunkline.jobs import Done, JobType, LeaseLost, Policy, Registry, Run
from trunkline.jobs.maintenance import JobMaintenance
from trunkline.jobs.service import JobService
from trunkline.jobs.wakeups import CANCELLED, CHANNEL
from trunkline.store import job_admin
from trunkline.store.tenants import PLATFORM
from trunkline.telemetry import metrics
from trunkline.testing.clock import ManualClock


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[JobWorld]:
    async with job_world(database_url) as world:
        yield world


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker has claimed it keeps, however long the test is held up."""
    monkeypatch.setattr("trunkline.jobs.executor.QUEUE_AGE_MAX_S", NEVER_S)
    monkeypatch.setattr("trunkline.jobs.lease_renewer.GIVE_BACK_AGE_S", NEVER_S)


# Whose turn it is


async def test_one_job_of_a_type_does_not_wait_for_5000_more_urgent_ones_of_another(world: JobWorld) -> None:
    """Priorities count within a type, and types take turns."""
    urgent = JobType("urgent", Work, Policy(priority=10))
    later = JobType("later", Work, Policy(priority=50))
    for job_type in (urgent, later):
        world.registry.add(job_type, world.workshop.handle)
    async with world.outbox.transaction(world.database) as work:
        await work.enqueue_many(urgent.new(Work("urgent")) for _ in range(5_000))
    enqueued = await world.enqueue("later", kind=later)
    async with world.service(running_max=1):
        await world.ended(enqueued.id)
    assert world.workshop.names.index("later") < 500


# Hearing of work


async def test_happy_path_enqueue_notify_drain_completed(world: JobWorld) -> None:
    async with world.service(probe_s=NEVER_S) as service:
        assert service.listener is not None
        await service.listener.listening.wait()
        enqueued = await world.enqueue("a", "result", wake=True)
        [job] = await world.ended(enqueued.id)
    assert (job.status, job.outcome, job.result) == ("DONE", "succeeded", '{"name":"a"}')
    assert world.workshop.ran == [("a", 1)]


async def test_missed_notify_is_found_by_the_probe(world: JobWorld) -> None:
    before = value(metrics.JOBS_FOUND_BY_POLL)
    async with world.service() as service:
        assert service.listener is not None
        await service.listener.listening.wait()
        await world.ended((await world.enqueue()).id)
    assert value(metrics.JOBS_FOUND_BY_POLL) == before + 1


async def test_a_worker_finds_pending_jobs_at_its_start(world: JobWorld) -> None:
    ids = [(await world.enqueue(str(n))).id for n in range(3)]
    async with world.service(probe_s=NEVER_S, notify=False):
        await world.ended(*ids)


async def test_a_worker_without_notifications_finds_jobs_by_polling(world: JobWorld) -> None:
    async with world.service(notify=False) as service:
        assert service.listener is None
        await world.ended((await world.enqueue(wake=True)).id)


async def test_an_enqueue_in_the_workers_process_wakes_it_without_notify(world: JobWorld) -> None:
    first = await world.enqueue("first")
    async with world.service(probe_s=NEVER_S, notify=False, notifier=world.notifier):
        await world.ended(first.id)  # found by the survey at the start, which is over now
        await world.ended((await world.enqueue("second", wake=True)).id)


async def test_a_delayed_job_runs_at_its_time_without_a_poll(world: JobWorld) -> None:
    async with world.service(probe_s=NEVER_S) as service:
        assert service.listener is not None
        await service.listener.listening.wait()
        run_at = datetime.now(UTC) + timedelta(seconds=0.3)
        enqueued = await world.enqueue(run_at=run_at, wake=True)
        [job] = await world.ended(enqueued.id)
    assert job.started_at is not None
    assert job.started_at >= run_at


async def test_a_wakeup_of_another_version_costs_one_poll(world: JobWorld) -> None:
    async with world.service(probe_s=NEVER_S) as service:
        assert service.listener is not None
        await service.listener.listening.wait()
        enqueued = await world.enqueue()
        await world.sql("SELECT pg_notify($1, $2)", CHANNEL, '{"job_type": "work"}')
        await world.ended(enqueued.id)


async def test_a_killed_listener_reconnects_and_finds_missed_jobs(world: JobWorld) -> None:
    async with world.service(probe_s=NEVER_S) as service:
        listener = service.listener
        assert listener is not None
        await listener.listening.wait()
        listener.listening.clear()
        missed = await world.enqueue("said while deaf")
        await world.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'trunkline listener' AND datname = current_database()"
        )
        await listener.listening.wait()
        heard = await world.enqueue("said afterwards", wake=True)
        await world.ended(missed.id, heard.id)


async def test_received_notifications_are_counted(world: JobWorld) -> None:
    counter = metrics.JOB_NOTIFICATIONS_RECEIVED.labels(CHANNEL)
    before = value(counter)
    async with world.service(probe_s=NEVER_S) as service:
        assert service.listener is not None
        await service.listener.listening.wait()
        await world.ended((await world.enqueue(wake=True)).id)
        await eventually(lambda: value(counter) > before)
    assert value(counter) == before + 1


# Running it


async def test_concurrent_workers_run_each_job_once(world: JobWorld) -> None:
    async with world.outbox.transaction(world.database) as work:
        enqueued = await work.enqueue_many(world.work.new(Work(str(n))) for n in range(300))
    async with world.service(), world.service(), world.service():
        await world.ended(*(job.id for job in enqueued))
    assert sorted(world.workshop.names) == sorted(str(n) for n in range(300))


async def test_no_more_jobs_run_at_once_than_running_max(world: JobWorld) -> None:
    ids = [(await world.enqueue(f"{n}", "hold")).id for n in range(5)]
    async with world.service(running_max=2):
        for n in range(5):
            await world.workshop.started[f"{n}"].wait()
            world.workshop.gates[f"{n}"].set()
        await world.ended(*ids)
    assert world.workshop.most_running == 2


async def test_a_job_under_a_busy_key_waits_for_it(world: JobWorld) -> None:
    first = await world.enqueue("first", "hold", kind=world.keyed, concurrency_key="k")
    second = await world.enqueue("second", kind=world.keyed, concurrency_key="k")
    other = await world.enqueue("other", kind=world.keyed, concurrency_key="l")
    async with world.service(), world.service():
        await world.ended(other.id)
        assert "second" not in world.workshop.names
        world.workshop.gates["first"].set()
        await world.ended(first.id, second.id)


async def test_freeing_a_key_wakes_the_next_job_without_a_probe(world: JobWorld) -> None:
    names = ("a", "b", "c")
    ids = [(await world.enqueue(name, "hold", kind=world.keyed, concurrency_key="k")).id for name in names]
    async with world.service(probe_s=NEVER_S, notify=False):
        for name in names:
            await world.workshop.started[name].wait()
            world.workshop.gates[name].set()
        await world.ended(*ids)
    assert world.workshop.most_running == 1


async def forgets_none(_: JobMaintenance) -> int:
    return 0


async def test_a_job_whose_key_was_locked_is_claimed_again_without_a_probe(
    world: JobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobMaintenance, "recount_keys", forgets_none)  # it removes keys that nobody uses
    before = await world.enqueue("before", kind=world.keyed, concurrency_key="busy")
    async with world.service(probe_s=NEVER_S, notifier=world.notifier):
        await world.ended(before.id)
        async with world.database.transaction() as tx:
            assert await tx.fetchval("SELECT key FROM job_keys WHERE key = 'busy' FOR UPDATE")
            passed_over = await world.enqueue("a", kind=world.keyed, concurrency_key="busy", wake=True)
            beside = await world.enqueue("b", kind=world.keyed, concurrency_key="free", wake=True)
            await world.ended(beside.id)
            assert "a" not in world.workshop.names
        await world.ended(passed_over.id)


async def test_a_job_that_runs_for_longer_than_a_lease_keeps_it(world: JobWorld) -> None:
    enqueued = await world.enqueue("a", "hold")
    async with world.service(lease_s=5.0, renew_s=0.05):
        await eventually(
            lambda: world.sql("SELECT lease_expires_at > locked_at + interval '5.2 s' FROM job_outbox")
        )
        world.workshop.gates["a"].set()
        [job] = await world.ended(enqueued.id)
    assert (job.attempt_count, job.outcome) == (1, "succeeded")


async def test_a_failure_is_tried_again_at_once_and_then_later(world: JobWorld) -> None:
    enqueued = await world.enqueue("a", "raise")
    async with world.service():
        await eventually(lambda: len(world.workshop.ran) == 2)

    job = await world.job(enqueued.id)
    assert (job.status, job.attempt_count) == ("PENDING", 2)
    assert (job.last_error_code, job.last_error_message) == ("RuntimeError", "something broke")
    assert job.run_at is not None
    assert job.run_at - job.created_at >= timedelta(seconds=30)


async def test_a_job_that_fails_max_attempts_times_is_a_dead_letter(world: JobWorld) -> None:
    enqueued = await world.enqueue("a", "fail", max_attempts=2)
    async with world.service():
        [job] = await world.ended(enqueued.id)
    assert (job.status, job.attempt_count, job.last_error_code) == ("FAILED", 2, "told_to")


async def test_a_snooze_waits_and_does_not_count_as_an_attempt(world: JobWorld) -> None:
    enqueued = await world.enqueue("a", "snooze")
    async with world.service():
        await world.workshop.started["a"].wait()
    job = await world.job(enqueued.id)
    assert (job.status, job.attempt_count, job.last_error_code) == ("PENDING", 0, None)
    assert job.run_at is not None
    assert job.run_at - datetime.now(UTC) > timedelta(minutes=50)


async def test_a_payload_of_a_newer_version_waits_for_one_of_its_workers(world: JobWorld) -> None:
    enqueued = await world.enqueue()
    await world.sql("UPDATE job_outbox SET payload = '[1]'")

    async def is_back() -> bool:
        job = await world.job(enqueued.id)
        return job.status == "PENDING" and job.last_error_code == "bad_payload"

    async with world.service():
        await eventually(is_back)
    assert (await world.job(enqueued.id)).attempt_count == 0

    async def read(_: list[int], _run: Run) -> None:
        return None

    newer = Registry()
    newer.add(JobType("work", list[int], Policy()), read)
    await world.sql("UPDATE job_outbox SET run_at = now()")
    async with world.service(registry=newer):
        [job] = await world.ended(enqueued.id)
    assert (job.outcome, job.attempt_count) == ("succeeded", 1)


async def test_a_payload_unreadable_for_a_day_is_a_dead_letter(world: JobWorld) -> None:
    enqueued = await world.enqueue()
    await world.sql("UPDATE job_outbox SET payload = '[1]', created_at = now() - interval '25 h'")
    async with world.service():
        [job] = await world.ended(enqueued.id)
    assert (job.status, job.last_error_code, job.attempt_count) == ("FAILED", "bad_payload", 1)


async def test_a_job_of_an_unknown_type_stays_pending_and_delays_no_other(world: JobWorld) -> None:
    await world.enqueue("a")
    await world.sql("UPDATE job_outbox SET job_type = 'of_tomorrow'")
    enqueued = await world.enqueue("b")
    async with world.service():
        await world.ended(enqueued.id)
    assert await world.sql("SELECT status FROM job_outbox") == "PENDING"


async def test_a_handler_may_finish_its_job_in_its_own_transaction(world: JobWorld) -> None:
    await world.sql("CREATE TABLE effects (name text)")
    kind: JobType[Work] = JobType("transactional", Work, Policy())

    async def handle(work: Work, run: Run) -> None:
        async with world.database.transaction() as tx:
            await tx.execute("INSERT INTO effects VALUES ($1)", work.name)
            await run.finish(tx, {"wrote": work.name})

    registry = Registry()
    registry.add(kind, handle)
    enqueued = await world.enqueue("a", kind=kind)
    async with world.service(registry=registry) as service:
        [job] = await world.ended(enqueued.id)
        await eventually(lambda: len(service.claimed_jobs) == 0)
    assert job.result == '{"wrote":"a"}'
    assert await world.sql("SELECT count(*) FROM effects") == 1


async def test_a_handler_that_fails_after_it_finished_is_tried_again_at_once(world: JobWorld) -> None:
    kind: JobType[Work] = JobType("transactional", Work, Policy())

    async def handle(work: Work, run: Run) -> None:
        async with world.database.transaction() as tx:
            await run.finish(tx, run.attempt)
            if run.attempt == 1:
                raise RuntimeError("undone")

    registry = Registry()
    registry.add(kind, handle)
    enqueued = await world.enqueue("a", kind=kind)
    async with world.service(registry=registry, lease_s=NEVER_S):
        [job] = await world.ended(enqueued.id)
    assert (job.result, job.attempt_count, job.last_error_code) == ("2", 2, "RuntimeError")


async def test_a_key_freed_in_the_handlers_transaction_starts_the_next_job_without_a_probe(
    world: JobWorld,
) -> None:
    kind: JobType[Work] = JobType("transactional", Work, Policy(per_key=1))
    second_is_parked = asyncio.Event()

    async def handle(work: Work, run: Run) -> None:
        if work.name == "first":
            await second_is_parked.wait()
        async with world.database.transaction() as tx:
            await run.finish(tx)

    registry = Registry()
    registry.add(kind, handle)
    ids = [(await world.enqueue(name, kind=kind, concurrency_key="k")).id for name in ("first", "second")]
    before = completed("transactional")
    async with world.service(registry=registry, probe_s=NEVER_S, notify=False):
        await eventually(lambda: world.sql("SELECT count(*) FROM job_outbox WHERE parked"))
        second_is_parked.set()
        await world.ended(*ids)
    assert completed("transactional") == before + 2


def completed(job_type: str) -> float:
    return value(metrics.JOBS_COMPLETED.labels(job_type, "success"))


async def test_idempotency_effects_of_a_handler_that_lost_its_lease_are_rolled_back(world: JobWorld) -> None:
    await world.sql("CREATE TABLE effects (attempt int)")
    kind: JobType[Work] = JobType("transactional", Work, Policy())
    first_runs, second_done, first_undone = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(work: Work, run: Run) -> None:
        if run.attempt == 1:
            first_runs.set()
            await second_done.wait()
        try:
            async with world.database.transaction() as tx:
                await tx.execute("INSERT INTO effects VALUES ($1)", run.attempt)
                await run.finish(tx)
        except LeaseLost:
            first_undone.set()
            raise
        second_done.set()

    registry = Registry()
    registry.add(kind, handle)
    enqueued = await world.enqueue("a", kind=kind)
    # A lease as long as this: the first must learn of its loss from Postgres, however slow this machine is.
    async with world.service(registry=registry, renew_s=NEVER_S, lease_s=NEVER_S) as first:
        await first_runs.wait()
        first.worker.stop()  # so that it is the other one that claims it anew
        async with world.service(registry=registry, renew_s=NEVER_S, lease_s=NEVER_S) as second:
            await world.sql("UPDATE job_outbox SET lease_expires_at = now() - interval '1 s'")
            await second.reaper.run_once()
            [job] = await world.ended(enqueued.id)
            await first_undone.wait()
    assert await world.sql("SELECT array_agg(attempt) FROM effects") == [2]
    assert (job.outcome, job.attempt_count) == ("succeeded", 2)


async def test_a_jobs_progress_can_be_read_while_it_runs_and_afterwards(world: JobWorld) -> None:
    kind: JobType[Work] = JobType("long_work", Work, Policy())
    gate = asyncio.Event()

    async def handle(work: Work, run: Run) -> Done:
        run.progress(0.25, "reading")
        await gate.wait()
        run.progress(1.5, "written")
        return Done({"rows": 4})

    registry = Registry()
    registry.add(kind, handle)
    enqueued = await world.enqueue("a", kind=kind)
    async with world.service(registry=registry):

        async def reported() -> bool:
            job = await world.job(enqueued.id)
            return (job.fraction, job.note) == (0.25, "reading")

        await eventually(reported)
        gate.set()
        [job] = await world.ended(enqueued.id)
    assert (job.fraction, job.note, job.result) == (1.0, "written", '{"rows":4}')


# Stopping it


async def test_a_running_job_can_be_cancelled(world: JobWorld) -> None:
    enqueued = await world.enqueue("a", "hold")
    async with world.service(probe_s=NEVER_S) as service:
        assert service.listener is not None
        await service.listener.listening.wait()
        await world.workshop.started["a"].wait()
        async with world.database.transaction() as tx:
            assert await job_admin.cancel(tx, PLATFORM, enqueued.id, "no") == "asked"
        world.notifier.broadcast(CANCELLED)
        [job] = await world.ended(enqueued.id)
    assert (job.status, job.outcome) == ("DONE", "cancelled")


async def test_a_job_that_runs_too_long_is_stopped_and_has_failed(world: JobWorld) -> None:
    kind: JobType[Work] = JobType("slow_work", Work, Policy(timeout_s=60, max_attempts=1))
    clock = ManualClock()
    registry = Registry()
    registry.add(kind, world.workshop.handle)
    enqueued = await world.enqueue("a", "hold", kind=kind)
    async with world.service(registry=registry, clock=clock) as service:
        await world.workshop.started["a"].wait()
        clock.advance(61)
        for held in service.claimed_jobs:
            held.lease_until_s += 100
        [job] = await world.ended(enqueued.id)
    assert (job.status, job.last_error_code) == ("FAILED", "timeout")


async def test_a_shutdown_puts_unstarted_jobs_back_and_lets_running_ones_finish(world: JobWorld) -> None:
    held = await world.enqueue("running", "hold")
    async with world.service(running_max=1) as service:
        await world.workshop.started["running"].wait()
        async with world.outbox.transaction(world.database) as work:
            waiting = await work.enqueue_many(world.work.new(Work(f"waiting {n}")) for n in range(3))
        await eventually(lambda: len(service.executor._queue) == len(waiting))
        finishing = asyncio.create_task(finish_when_given_back(world, service))
    await finishing
    assert (await world.job(held.id)).status == "DONE"
    for job in waiting:
        given_back = await world.job(job.id)
        assert (given_back.status, given_back.attempt_count) == ("PENDING", 0)
        assert given_back.run_at == job.run_at


async def finish_when_given_back(world: JobWorld, service: JobService) -> None:
    await eventually(lambda: not service.executor._queue)
    world.workshop.gates["running"].set()


async def test_a_shutdown_that_takes_too_long_stops_what_runs(world: JobWorld) -> None:
    enqueued = await world.enqueue("a", "hold")
    async with world.service(drain_s=0.05):
        await world.workshop.started["a"].wait()
    job = await world.job(enqueued.id)
    assert (job.status, job.attempt_count, job.last_error_code) == ("PENDING", 1, "shutdown")


# What it says


async def test_log_events_and_metrics_have_the_names_of_the_source_documents(world: JobWorld) -> None:
    done = await world.enqueue("a", unique_key="item-1")
    dead = await world.enqueue("b", "die")
    with capture_logs() as logs:
        async with world.service() as service:
            await world.ended(done.id, dead.id)
    lines = {(line["event"], line["job_id"]): line for line in logs if "job_id" in line}
    claimed = lines["job_claimed", done.id]
    assert (claimed["item_id"], claimed["attempt"], claimed["worker_id"]) == ("item-1", 1, service.worker_id)
    assert lines["job_completed", done.id]["duration_ms"] >= 0
    failed = lines["job_failed", dead.id]
    assert (failed["error_code"], failed["will_retry"]) == ("told_to", False)
    body = metrics.render()[0].decode()
    for sample in (
        f'job_claimed_total{{job_type="work",worker_id="{service.worker_id}"}} 2.0',
        'job_completed_total{job_type="work",status="success"}',
        'job_completed_total{job_type="work",status="dead"}',
        'job_processing_seconds_count{job_type="work"}',
        "job_poll_scanned_total",
    ):
        assert sample in body


async def test_the_depth_of_the_queue_is_measured(world: JobWorld) -> None:
    for n in range(3):
        await world.enqueue(str(n), run_at=datetime.now(UTC) + timedelta(days=1))
    async with world.service() as service:
        await service.maintenance.measure_depth()
    assert 'job_queue_depth{job_type="work"} 3.0' in metrics.render()[0].decode()


# When the network fails


async def test_a_claim_whose_reply_is_lost_is_undone_at_once(world: JobWorld) -> None:
    async with TcpProxy.before(world.url) as proxy, world.service(url=proxy.url, notify=False) as service:
        proxy.swallow_reply(after=service.worker_id.encode())
        enqueued = await world.enqueue("a", "result")
        await proxy.swallowed()
        [job] = await world.ended(enqueued.id)
    assert (job.outcome, job.attempt_count) == ("succeeded", 1)
    assert world.workshop.ran == [("a", 1)]


async def test_a_completion_whose_reply_is_lost_happens_once(world: JobWorld) -> None:
    async with TcpProxy.before(world.url) as proxy, world.service(url=proxy.url, notify=False):
        enqueued = await world.enqueue("a", "hold")
        await world.workshop.started["a"].wait()
        proxy.swallow_reply(after=b"succeeded")
        world.workshop.gates["a"].set()
        await proxy.swallowed()
        [job] = await world.ended(enqueued.id)
        assert await world.sql("SELECT count(*) FROM job_history") == 1
    assert (job.outcome, job.attempt_count) == ("succeeded", 1)
    assert world.workshop.ran == [("a", 1)]


async def test_a_listener_with_a_dead_connection_reconnects(
    world: JobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunkline.jobs.wakeups.ALIVE_EVERY_S", 0.05)
    monkeypatch.setattr("trunkline.jobs.wakeups.ALIVE_TIMEOUT_S", 0.2)
    async with TcpProxy.before(world.url) as proxy, world.service(url=proxy.url, probe_s=NEVER_S) as service:
        listener = service.listener
        assert listener is not None
        await listener.listening.wait()
        proxy.black_hole()
        await eventually(lambda: not listener.listening.is_set())
        proxy.cut()
        await proxy.heal()
        await listener.listening.wait()
        await world.ended((await world.enqueue(wake=True)).id)


# Handlers that do not behave


async def swallow_everything(_: Work, _run: Run) -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except BaseException:
            continue


async def test_a_handler_that_ignores_its_timeout_is_logged_with_its_source_line(world: JobWorld) -> None:
    stuck = metrics.HANDLERS_STUCK.labels("job", "brief_work", "ignores_cancellation")
    before = value(stuck)
    registry = Registry()
    brief = JobType("brief_work", Work, Policy(timeout_s=0.05, max_attempts=1))
    registry.add(brief, swallow_everything)
    registry.add(world.work, world.workshop.handle)
    with capture_logs() as logs:
        async with world.service(registry=registry, renew_s=0.1, cancel_grace_s=0.1, running_max=1):
            enqueued = await world.enqueue(kind=brief)
            [job] = await world.ended(enqueued.id)
            # The one slot is free for others, although the handler still runs.
            other = await world.enqueue("other")
            await world.ended(other.id)
    assert (job.status, job.last_error_code) == ("FAILED", "timeout")
    [told] = [line for line in logs if line["event"] == "jobs.ignores_cancellation"]
    assert "swallow_everything" in told["handler"]
    assert "swallow_everything" in told["where"]
    assert (told["job_id"], told["told"]) == (enqueued.id, "timeout")
    assert value(stuck) - before == 1


async def test_a_stopped_worker_logs_the_handlers_that_did_not_end(world: JobWorld) -> None:
    registry = Registry()
    registry.add(world.work, swallow_everything)
    with capture_logs() as logs:
        async with world.service(registry=registry, drain_s=0.05, cancel_grace_s=0.05) as service:
            enqueued = await world.enqueue()
            await eventually(lambda: service.executor.running)
    [stopped] = [line for line in logs if line["event"] == "jobs.stopped"]
    [unfinished] = stopped["unfinished"]
    assert str(enqueued.id) in unfinished
    assert "swallow_everything" in unfinished
    job = await world.job(enqueued.id)
    assert (job.status, job.last_error_code) == ("PENDING", "shutdown")


async def test_a_thread_that_outlives_its_cancellation_is_named_and_costs_no_other_type(
    world: JobWorld,
) -> None:
    """As many as the type may have: its next job waits for a thread, and nobody else's does."""
    stuck = metrics.HANDLERS_STUCK.labels("job", "brief_work", "thread")
    before = value(stuck)
    let_go = threading.Event()

    def hang() -> None:
        let_go.wait()

    async def hung(_: Work, _run: Run) -> None:
        await in_thread(hang)

    async def other(_: Work, _run: Run) -> None:
        await in_thread(time.monotonic)

    registry = Registry()
    brief = JobType("brief_work", Work, Policy(timeout_s=0.05, max_attempts=1))
    registry.add(brief, hung)
    registry.add(world.work, other)
    try:
        with capture_logs() as logs:
            async with world.service(registry=registry, renew_s=0.1, cancel_grace_s=0.05) as service:
                service.executor.threads._most = 2
                bad = [await world.enqueue(kind=brief) for _ in range(3)]
                ended = await world.ended(*(job.id for job in bad))
                innocent = await world.enqueue("innocent")
                [done] = await world.ended(innocent.id)
                named = "jobs.ignores_cancellation"
                await eventually(lambda: sum(line["event"] == named for line in logs) == 2)
    finally:
        let_go.set()
    assert {job.last_error_code for job in ended} == {"timeout"}
    assert done.outcome == "succeeded"
    told = [line for line in logs if line["event"] == named]
    assert {(line["job_type"], line["told"], line["how"]) for line in told} == {
        ("brief_work", "timeout", "thread")
    }
    assert "hang" in told[0]["handler"]
    assert "in test_a_thread_that_outlives" in told[0]["where"]
    [stopped] = [line for line in logs if line["event"] == "jobs.stopped"]
    assert ["brief_work in a thread" in each for each in stopped["unfinished"]] == [True, True]
    assert value(stuck) - before == 2


async def test_a_job_that_blocks_the_event_loop_is_logged_while_it_does(world: JobWorld) -> None:
    stuck = metrics.HANDLERS_STUCK.labels("job", world.work.name, "blocks")
    before = value(stuck)
    named = threading.Event()

    async def block(_: Work, _run: Run) -> None:
        named.wait(20)  # until the watch has told of it: nothing else of this process can

    def hear(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if line.get("event") == "jobs.blocks_the_event_loop":
            told.append(line)
            named.set()
        return line

    told: list[MutableMapping[str, Any]] = []
    registry = Registry()
    registry.add(world.work, block)
    with capture_logs(processors=[hear]):
        async with world.service(registry=registry, lease_s=1.5, renew_s=0.5):
            enqueued = await world.enqueue()
            await world.ended(enqueued.id)
    assert told[0]["job_id"] == enqueued.id
    assert "block" in str(told[0]["where"])
    assert value(stuck) - before == len(told)


async def test_a_blocked_event_loop_is_logged_without_a_job_if_none_blocks_it(world: JobWorld) -> None:
    with capture_logs() as logs:
        async with world.service() as service:
            service._blocked(asyncio.current_task(), 1.0, "elsewhere.py:1")
    assert [line["where"] for line in logs if line["event"] == "jobs.stands_still"] == ["elsewhere.py:1"]
    assert not any(line["event"] == "jobs.blocks_the_event_loop" for line in logs)
