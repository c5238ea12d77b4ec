"""A worker is woken for mailboxes, handles them, and lets no mailbox delay another."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from tests.support.faults.proxy import TcpProxy
from tests.support.mailbox.world import (
    KIND,
    Ledger,
    MailboxWorld,
    Recorder,
    event,
    mailbox_world,
    running,
)
from tests.support.waiting import eventually
from trunkline.bus import connection as bus_connection
from trunkline.bus import mailbox_wakeups
from trunkline.bus.keys import Keys
from trunkline.mailbox import processing
from trunkline.mailbox.handler import Batch, Done, Write
from trunkline.mailbox.inbox import Inbox
from trunkline.mailbox.processing import FailureRule
from trunkline.mailbox.worker import MailboxWorker, WorkerLimits
from trunkline.store import mailboxes
from trunkline.store.database import Connection
from trunkline.store.mailboxes import NewEvent, Parked, Receipt
from trunkline.telemetry import metrics

# So long that nothing in a test is found by the sweep unless the test asks for it.
NEVER_S = 600.0
AT_ONCE = FailureRule(failures_max=3, backoff_first_s=0, backoff_max_s=0)


@pytest.fixture
async def world(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[MailboxWorld]:
    async with mailbox_world(database_url, redis_url, key_prefix) as world:
        yield world


async def deaf_to_sweeps(world: MailboxWorld, handler: Recorder, **limits: Any) -> MailboxWorker:
    """A worker that has done its scan at start, and hears only wakeups from now on."""
    worker = world.worker(handler, sweep_s=NEVER_S, **limits)
    await worker.drain()
    return worker


async def idle(world: MailboxWorld, key: str = "a") -> bool:
    return await world.status(key) == "idle"


async def test_a_worker_logs_an_outage_of_postgres_once(
    world: MailboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two sweeps a run asks nobody: that is no recovery."""
    tries, claim = 0, mailboxes.claim

    async def away(*_: Any, **__: Any) -> Any:
        nonlocal tries
        tries += 1
        raise ConnectionError("Postgres is away")

    monkeypatch.setattr(mailboxes, "claim", away)
    worker = world.worker(Recorder(), sweep_s=1.0)
    with capture_logs() as logs:
        async with running(worker):
            await eventually(lambda: tries >= 6, what="it has asked again and again")
            monkeypatch.setattr(mailboxes, "claim", claim)
            await eventually(
                lambda: any(line["event"] == "loop.recovered" for line in logs), what="it has recovered"
            )
    events = [line["event"] for line in logs if line["event"].startswith("loop.")]
    assert events == ["loop.failed", "loop.recovered"]


# Hearing of work


async def test_a_woken_worker_handles_all_events_of_a_mailbox_in_order(world: MailboxWorld) -> None:
    handler = Recorder()
    worker = await deaf_to_sweeps(world, handler)
    async with running(worker):
        await world.inbox.append_all(event(name=name) for name in "123")
        await eventually(lambda: idle(world))
    assert handler.given == [{"a": ["1", "2", "3"]}]
    assert await world.unprocessed() == []


async def test_events_appended_before_the_worker_started_are_handled(world: MailboxWorld) -> None:
    await world.append(event())
    handler = Recorder()
    async with running(world.worker(handler, sweep_s=NEVER_S)):
        await handler.until(lambda: handler.seen("a") == ["1"])


async def test_an_event_whose_wakeup_was_lost_is_handled_by_the_next_sweep(world: MailboxWorld) -> None:
    handler = Recorder()
    async with running(world.worker(handler, sweep_s=0.05)):
        await world.append(event())  # and no wakeup
        await handler.until(lambda: handler.seen("a") == ["1"])


async def test_events_appended_during_a_turn_are_handled_in_the_next_without_a_sweep(
    world: MailboxWorld,
) -> None:
    """The completion wakes a worker: nobody sweeps here."""
    handler = Recorder()
    worker = await deaf_to_sweeps(world, handler)
    let_go = handler.hold("a")
    async with running(worker):
        await world.inbox.append(event(name="1"))
        await handler.until(lambda: handler.seen("a") == ["1"])
        await world.inbox.append(event(name="2"))
        let_go()
        await handler.until(lambda: handler.seen("a") == ["1", "2"])
        await eventually(lambda: idle(world))
    assert handler.given == [{"a": ["1"]}, {"a": ["2"]}]


async def test_two_workers_handle_a_mailbox_once(world: MailboxWorld) -> None:
    await world.append(event())
    handlers = Recorder(), Recorder()
    workers = [world.worker(handler, name=f"w{n}") for n, handler in enumerate(handlers)]
    await asyncio.gather(*(worker.drain() for worker in workers))
    assert sum(len(handler.seen("a")) for handler in handlers) == 1


async def test_only_an_urgent_event_sends_a_wakeup(world: MailboxWorld) -> None:
    for name, urgent, woken in (("1", False, 0), ("2", None, 0), ("3", True, 1), ("4", False, 1)):
        inbox = Inbox(world.database, world.bus)
        await inbox.append(event(name=name, urgent=urgent))
        await inbox.aclose()
        assert await world.bus.client.xlen(world.bus.keys.mailbox_wakeups(KIND)) == woken


async def test_a_worker_gathers_wakeups_for_its_linger_time_into_one_batch(
    world: MailboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two come by themselves while the worker lingers over the first, and all are handled in one go."""
    handler = Recorder()
    worker = await deaf_to_sweeps(world, handler, linger_s=0.05)
    lingers, moment_is_over = asyncio.Event(), asyncio.Event()

    async def linger(_seconds: float) -> None:
        lingers.set()
        await moment_is_over.wait()

    monkeypatch.setattr(worker, "pause", linger)
    async with running(worker):
        await world.inbox.append(event("a"))
        await lingers.wait()
        for key in "bc":
            await world.inbox.append(event(key))
        await eventually(lambda: wakeups_on_the_stream(world, 3))
        moment_is_over.set()
        await handler.until(lambda: bool(handler.given))
    assert handler.given == [{"a": ["1"], "b": ["1"], "c": ["1"]}]


async def wakeups_on_the_stream(world: MailboxWorld, count: int) -> bool:
    return bool(await world.bus.client.xlen(world.bus.keys.mailbox_wakeups(KIND)) == count)


async def test_a_deleted_wakeup_stream_and_its_group_are_made_again(world: MailboxWorld) -> None:
    handler = Recorder()
    worker = await deaf_to_sweeps(world, handler)
    async with running(worker):
        await world.inbox.append(event("a"))
        await handler.until(lambda: bool(handler.seen("a")))
        await world.bus.client.delete(world.bus.keys.mailbox_wakeups(KIND))
        await world.inbox.append(event("b"))
        await handler.until(lambda: bool(handler.seen("b")))


async def test_without_valkey_the_sweep_does_the_work(
    world: MailboxWorld, redis_url: str, key_prefix: str
) -> None:
    handler = Recorder()
    async with TcpProxy.before(redis_url) as proxy:
        bus = bus_connection.connect(proxy.url, Keys(prefix=key_prefix))
        worker = MailboxWorker(world.database, bus, handler, "w", WorkerLimits(sweep_s=0.05))
        async with running(worker):
            await world.append(event("a"))
            await handler.until(lambda: bool(handler.seen("a")))
            proxy.refuse()
            proxy.cut()
            await world.append(event("b"))
            await handler.until(lambda: bool(handler.seen("b")))
            await proxy.heal()
            await world.append(event("c"))
            await handler.until(lambda: bool(handler.seen("c")))
        await bus.close()


async def test_wakeups_are_removed_when_their_mailboxes_are_claimed(world: MailboxWorld) -> None:
    handler = Recorder()
    worker = await deaf_to_sweeps(world, handler)
    async with running(worker):
        await world.inbox.append_all(event(str(n)) for n in range(20))
        await handler.until(lambda: sum(map(len, handler.given)) == 20)
    assert await world.bus.client.xlen(world.bus.keys.mailbox_wakeups(KIND)) == 0


async def test_wakeups_pending_for_dead_workers_are_removed(world: MailboxWorld) -> None:
    stream = world.bus.keys.mailbox_wakeups(KIND)
    await mailbox_wakeups.receive(world.bus, KIND, "dead", count=1, timeout_s=0)  # makes the group
    await mailbox_wakeups.send(world.bus, KIND, ["a", "b"])
    heard = await mailbox_wakeups.receive(world.bus, KIND, "dead", count=1, timeout_s=0)
    assert heard.keys == ("a",)
    assert await mailbox_wakeups.tidy(world.bus, KIND, gone_after_s=60) == 1
    assert await mailbox_wakeups.tidy(world.bus, KIND, gone_after_s=-1) == 0
    assert await world.bus.client.xlen(stream) == 1
    assert await world.bus.client.xinfo_consumers(stream, mailbox_wakeups.GROUP) == []


# One mailbox and the others


async def test_a_slow_mailbox_delays_no_other(world: MailboxWorld) -> None:
    handler = Recorder()
    let_go = handler.hold("slow")
    await world.append(event("slow"))
    async with running(world.worker(handler, batch_max=1, concurrency=2, sweep_s=0.05)):
        await handler.until(lambda: bool(handler.seen("slow")))
        for n in range(5):
            await world.inbox.append(event(f"quick{n}"))
            await eventually(lambda n=n: idle(world, f"quick{n}"))  # type: ignore[misc]
        assert await world.status("slow") == "processing"
        let_go()


async def test_a_slow_batch_delays_no_other(world: MailboxWorld) -> None:
    handler = Recorder()
    let_go = handler.hold("slow")
    await world.append(event("slow"))
    async with running(world.worker(handler, batch_max=100, concurrency=2, sweep_s=0.05)):
        await handler.until(lambda: bool(handler.seen("slow")))
        await world.inbox.append(event("quick"))
        await eventually(lambda: idle(world, "quick"))
        let_go()


async def test_no_more_mailboxes_are_in_processing_than_the_limit(world: MailboxWorld) -> None:
    handler = Recorder()
    gates = [handler.hold(str(n)) for n in range(5)]
    await world.append(*(event(str(n)) for n in range(5)))
    async with running(world.worker(handler, batch_max=1, concurrency=2, sweep_s=0.02)):
        await handler.until(lambda: len(handler.given) == 2)
        assert await world.value("SELECT count(*) FROM mailboxes WHERE processing_status = 'processing'") == 2
        for let_go in gates:
            let_go()
        await handler.until(lambda: len(handler.given) == 5)


async def test_a_poisoned_mailbox_fails_alone(world: MailboxWorld) -> None:
    handler = Ledger()
    await handler.prepare(world)
    handler.poison.add("7")
    await world.append(*(event(str(n)) for n in range(10)))
    worker = world.worker(handler, failure=FailureRule(backoff_first_s=3600))
    await worker.drain()
    rows = await world.rows(
        "SELECT key, processing_status, failures, last_error FROM mailboxes WHERE failures > 0"
    )
    assert [tuple(row) for row in rows] == [("7", "queued", 1, "RuntimeError: 7 is poison")]
    assert await world.value("SELECT count(*) FROM effects") == 9


async def test_a_mailbox_that_failed_before_is_handled_in_its_own_batch(world: MailboxWorld) -> None:
    handler = Recorder(poison={"bad"})
    worker = world.worker(handler, failure=FailureRule(backoff_first_s=3600))
    await world.append(event("bad"), event("good"))
    await worker.drain()
    await world.let_turns_come()
    await world.append(event("good", "2"))
    handler.given.clear()
    await worker.drain()
    assert handler.given == [{"bad": ["1"]}, {"good": ["2"]}]


async def test_a_failed_mailbox_waits_for_its_turn_and_later_events_join(world: MailboxWorld) -> None:
    handler = Recorder(poison={"a"})
    worker = world.worker(handler, failure=FailureRule(backoff_first_s=3600))
    await world.append(event(name="1"))
    await worker.drain()
    await world.append(event(name="2"))
    assert await worker.drain() == 0
    handler.poison.clear()
    await world.let_turns_come()
    await worker.drain()
    assert handler.given == [{"a": ["1"]}, {"a": ["1", "2"]}]
    assert tuple((await world.rows("SELECT processing_status, failures, last_error FROM mailboxes"))[0]) == (
        "idle", 0, None,
    )  # fmt: skip


async def test_the_wait_doubles_with_each_failure_up_to_its_limit() -> None:
    rule = FailureRule(backoff_first_s=1, backoff_max_s=300)
    assert [rule.delay_s(n) for n in (0, 1, 2, 8, 9, 1000)] == [1, 2, 4, 256, 300, 300]


async def test_after_too_many_failures_a_mailbox_is_dead_with_its_error(world: MailboxWorld) -> None:
    handler = Recorder(poison={"a"})
    worker = world.worker(handler, failure=AT_ONCE)
    await world.append(event())
    with capture_logs() as logs:
        await worker.drain()
    assert await world.status() == "dead"
    assert len(handler.given) == 3
    assert await world.value("SELECT last_error FROM mailboxes") == "RuntimeError: a is poison"
    assert [line["event"] for line in logs] == ["mailbox.failed", "mailbox.failed", "mailbox.died"]


async def test_an_append_to_a_dead_mailbox_is_logged_and_counted(world: MailboxWorld) -> None:
    await world.append(event())
    await world.value("UPDATE mailboxes SET processing_status = 'dead', claimable_at = NULL")
    with capture_logs() as logs:
        await world.inbox.append(event(name="2"))
    assert [(line["event"], line["log_level"]) for line in logs] == [("mailbox.append_to_dead", "error")]
    assert await world.status() == "dead"


async def test_a_mailbox_that_kills_its_workers_ends_as_dead(world: MailboxWorld) -> None:
    """No handler failed, none came back: each lost lease counts."""
    handler = Recorder()
    await world.append(event())
    for _ in range(3):
        await world.claim(worker="victim")
        await world.expire_leases()
    worker = world.worker(handler, failure=AT_ONCE)
    await worker.drain()
    assert handler.given == []
    assert await world.status() == "dead"
    assert await world.value("SELECT last_error FROM mailboxes") == "its worker was lost: victim"


async def test_transient_database_errors_do_not_count_towards_a_dead_mailbox(world: MailboxWorld) -> None:
    """A deadlock, a lock that somebody holds, a fail-over: as often as it takes."""

    class Tied(Recorder):
        async def handle(self, batch: Batch) -> Write | Done | None:
            await super().handle(batch)
            if len(self.given) <= 5:
                raise asyncpg.DeadlockDetectedError("a tie")
            return None

    handler = Tied()
    await world.append(event())
    await world.worker(handler, failure=AT_ONCE).drain()
    assert len(handler.given) == 6
    assert await world.status() == "idle"


async def test_a_handler_that_never_returns_fails(world: MailboxWorld) -> None:
    handler = Recorder()
    handler.hold("a")
    await world.append(event())
    worker = world.worker(handler, failure=FailureRule(timeout_s=0.02, failures_max=1))
    await worker.drain()
    assert await world.status() == "dead"


async def test_more_events_than_are_read_at_once_are_handled_in_turns(world: MailboxWorld) -> None:
    handler = Recorder()
    names = [f"{n:02}" for n in range(25)]
    await world.append(*(event(name=name) for name in names))
    await world.worker(handler, events_max=10).drain()
    assert [len(batch["a"]) for batch in handler.given] == [10, 10, 5]
    assert handler.seen("a") == names
    assert await world.unprocessed() == []


async def test_a_mailbox_without_pending_events_becomes_idle_without_its_handler(world: MailboxWorld) -> None:
    await world.append(event())
    await world.value("UPDATE mailbox_events SET processed_at = now(), error = 'set aside by hand'")
    handler = Recorder()
    await world.worker(handler).drain()
    assert handler.given == []
    assert await world.status() == "idle"


# Leases


async def test_the_lease_of_a_long_handler_is_renewed(
    world: MailboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        processing, "BEATS_PER_LEASE", 100
    )  # so that one is soon seen, however busy the machine is
    handler = Ledger()
    await handler.prepare(world)
    let_go = handler.hold("a")
    await world.append(event())
    worker = world.worker(handler, lease_s=10, sweep_s=0.05)
    async with running(worker):
        await handler.until(lambda: bool(handler.given))
        first = await world.value("SELECT claimable_at FROM mailboxes")
        await eventually(lambda: world.value("SELECT claimable_at > $1 FROM mailboxes", first))
        assert await world.claim(worker="thief") == []
        let_go()
        await eventually(lambda: idle(world))
    assert len(handler.given) == 1


async def test_a_handler_whose_lease_was_lost_is_cancelled_and_writes_nothing(world: MailboxWorld) -> None:
    handler = Ledger()
    await handler.prepare(world)
    handler.hold("a")
    await world.append(event())
    worker = world.worker(handler, lease_s=0.2, sweep_s=NEVER_S)
    with capture_logs() as logs:
        async with running(worker):
            await handler.until(lambda: bool(handler.given))
            [thief] = await world.steal()
            await eventually(lambda: any(line["event"] == "mailbox.lease_lost" for line in logs))
    assert await world.status() == "processing"
    assert await world.complete(thief) == {"a": "idle"}
    assert await world.value("SELECT count(*) FROM effects") == 0


async def test_a_batch_that_lost_one_lease_is_rolled_back_and_its_other_mailboxes_handled_again(
    world: MailboxWorld,
) -> None:
    """Its effects were written together: all are undone, and those that are still ours are handled again."""
    handler = Ledger()
    await handler.prepare(world)
    let_go = handler.hold("a")
    await world.append(event("a"), event("b"), event("c"))
    worker = world.worker(handler, sweep_s=NEVER_S)
    async with running(worker):
        await handler.until(lambda: bool(handler.given))
        await world.value("UPDATE mailboxes SET claimable_at = now() WHERE key = 'b'")
        await world.claim(worker="thief")
        let_go()
        await eventually(lambda: idle(world, "c"))
    rows = await world.rows("SELECT key FROM effects ORDER BY key")
    assert [row["key"] for row in rows] == ["a", "c"]
    assert await world.status("b") == "processing"


async def test_a_stopping_worker_finishes_mailboxes_in_processing(world: MailboxWorld) -> None:
    handler = Recorder()
    let_go = handler.hold("a")
    await world.append(event())
    worker = world.worker(handler)
    task = asyncio.create_task(worker.run())
    await handler.until(lambda: bool(handler.given))
    worker.stop()
    let_go()
    await task
    assert await idle(world)


async def test_a_stopping_worker_gives_unfinished_mailboxes_back_without_a_failure(
    world: MailboxWorld,
) -> None:
    handler = Recorder()
    handler.hold("a")
    await world.append(event())
    worker = world.worker(handler, stop_s=0.01)
    with capture_logs() as logs:
        async with running(worker):
            await handler.until(lambda: bool(handler.given))
    [claim] = await world.claim()
    assert claim.claim.failures == 0
    assert [line for line in logs if line["event"] == "mailbox.lease_lost"] == []


async def test_a_cancelled_worker_gives_its_mailboxes_back_at_once(world: MailboxWorld) -> None:
    handler = Recorder()
    handler.hold("a")
    await world.append(event())
    task = asyncio.create_task(world.worker(handler).run())
    await handler.until(lambda: bool(handler.given))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [each.claim.key for each in await world.claim()] == ["a"]


# What a handler gives back


@dataclass(slots=True)
class Answering(Recorder):
    """Gives back what the test says."""

    answer: Write | Done | None = None
    answers: list[Done] = field(default_factory=list)

    async def handle(self, batch: Batch) -> Write | Done | None:
        await Recorder.handle(self, batch)
        return self.answer


async def test_a_write_that_fails_undoes_the_completion(world: MailboxWorld) -> None:
    async def write(tx: Connection) -> None:
        await tx.execute("CREATE TABLE half (n int)")
        raise RuntimeError("no")

    await world.append(event())
    await world.worker(Answering(answer=write)).drain()
    assert await world.unprocessed() == ["1"]
    assert await world.value("SELECT to_regclass('half')") is None


async def test_a_failure_after_the_commit_does_not_repeat_the_turn(world: MailboxWorld) -> None:
    async def after() -> None:
        raise RuntimeError("valkey is away")

    async def write(_tx: Connection) -> object:
        return after

    handler = Answering(answer=write)  # type: ignore[arg-type]
    await world.append(event())
    with capture_logs() as logs:
        await world.worker(handler).drain()
    assert len(handler.given) == 1
    assert await idle(world)
    assert [line["event"] for line in logs] == ["mailbox.follow_up_failed"]


async def test_an_unreadable_event_is_parked_alone_with_its_error(world: MailboxWorld) -> None:
    await world.append(event(name="1"), event(name="2"))
    handler = Answering(answer=Done(parked=[Parked("a", 1, "no such kind")]))
    await world.worker(handler).drain()
    rows = await world.rows(
        "SELECT dedupe_key, processed_at IS NOT NULL, error FROM mailbox_events ORDER BY seq"
    )
    assert [tuple(row) for row in rows] == [("1", True, "no such kind"), ("2", True, None)]
    assert await idle(world)


async def test_a_handler_appends_to_other_mailboxes_in_its_own_transaction(world: MailboxWorld) -> None:
    handler = Answering(answer=Done(send=[event("other", "from a", kind="reply"), event("a", "again")]))
    worker = await deaf_to_sweeps(world, handler)
    async with running(worker):
        await world.inbox.append(event(name="1"))
        await handler.until(lambda: handler.seen("a") == ["1", "again"])
        await eventually(lambda: idle(world))
    assert await world.status("other", "reply") == "queued"
    assert await world.bus.client.xlen(world.bus.keys.mailbox_wakeups("reply")) > 0


async def test_two_handlers_that_write_to_each_other_do_not_deadlock(
    world: MailboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stops when it has appended, until the other has too or waits. If neither has locked its own mailbox by
    then, each completes into the other's lock."""
    both = asyncio.Barrier(2)
    appended: list[NewEvent] = []
    append = mailboxes.append

    async def meet(_tx: Connection) -> None:
        if not appended:
            await both.wait()

    async def stop_after(conn: Connection, events: Sequence[NewEvent]) -> list[Receipt]:
        receipts = await append(conn, events)
        appended.extend(events)
        await eventually(other_is_there)
        return receipts

    async def other_is_there() -> bool:
        return len(appended) > 1 or await world.waiting_for_a_lock()

    await world.append(event("x", "1", kind="left"), event("x", "1", kind="right"))
    monkeypatch.setattr(mailboxes, "append", stop_after)
    handlers = [
        Answering(kind=own, answer=Done(write=meet, send=[event("x", "hello", kind=other)]))
        for own, other in (("left", "right"), ("right", "left"))
    ]
    with capture_logs() as logs:
        await asyncio.gather(*(world.worker(handler).drain() for handler in handlers))
    assert [line for line in logs if line["event"] == "mailbox.failed"] == []


async def test_a_commit_whose_reply_is_lost_takes_effect_once(world: MailboxWorld, database_url: str) -> None:
    handler = Ledger()
    await handler.prepare(world)
    await world.append(event())
    async with (
        TcpProxy.before(database_url) as proxy,
        mailbox_world(proxy.url, "redis://127.0.0.1:1", "none") as behind,
    ):
        let_go = handler.hold("a")
        task = asyncio.create_task(behind.worker(handler).drain())
        await handler.until(lambda: bool(handler.given))
        proxy.swallow_reply(after=b"COMMIT;")
        let_go()
        await proxy.swallowed()
        await task
    await world.worker(Ledger()).drain()
    assert await world.value("SELECT count(*) FROM effects") == 1
    assert await idle(world)


async def test_issue_metrics_have_the_names_of_the_source_documents(world: MailboxWorld) -> None:
    def sample(name: str) -> float:
        return metrics.REGISTRY.get_sample_value(name) or 0.0

    names = (
        "issues_queued_total",
        "issues_processed_total",
        "issues_processing_duration_seconds_count",
        "events_per_issue_batch_count",
        "events_per_issue_batch_sum",
    )
    before = {name: sample(name) for name in names}
    for name in ("1", "2"):
        await world.inbox.append(event("a", name, kind="issue"))
    await world.inbox.append(event("b", kind="issue"))
    await world.worker(Recorder(kind="issue")).drain()
    assert [sample(name) - before[name] for name in names] == [2, 2, 2, 2, 3]
    assert metrics.REGISTRY.get_sample_value("redis_pending_messages") is not None
