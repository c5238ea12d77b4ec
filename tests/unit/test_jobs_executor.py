"""The executor runs what is still ours, no more at once than allowed, and hoards nothing."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from tests.support.waiting import eventually
from trunkline.jobs.executor import QUEUE_FIRST, Executor, ExecutorLimits
from trunkline.jobs.outcomes import JobVerdict, Outcome, Policy
from trunkline.jobs.registry import Handler, JobType, Registry
from trunkline.jobs.run import ClaimedJob, ClaimedJobs, Run, StopReason
from trunkline.model import new_id
from trunkline.store.jobs import Claimant, Death, End, JobClaim, ReturnedClaim
from trunkline.testing.clock import ManualClock

NOW = datetime(2025, 1, 1, tzinfo=UTC)


class Deck:
    """A executor whose handler waits at a gate."""

    def __init__(
        self,
        running_max: int = 2,
        queue_max: int = 64,
        is_open: bool = True,
        handler: Handler[str] | None = None,
    ):
        self.clock = ManualClock()
        self.gate = asyncio.Event()
        if is_open:
            self.gate.set()
        self.ran: list[str] = []
        self.verdicts: list[JobVerdict] = []
        self.claimed_jobs = ClaimedJobs(Claimant("w1"), self.clock.boottime_s)
        finisher: Any = self
        registry = Registry()
        registry.add(JobType("work", str, Policy()), handler or self.handle)
        self.executor = Executor(
            registry,
            self.claimed_jobs,
            finisher,
            ExecutorLimits(running_max=running_max, queue_max=queue_max, held_max=100),
            on_room=lambda: None,
        )

    async def handle(self, name: str, run: Run) -> Outcome | None:
        self.ran.append(name)
        await self.gate.wait()
        return None

    def add(self, held: ClaimedJob, verdict: JobVerdict) -> None:
        self.verdicts.append(verdict)
        self.claimed_jobs.drop(held)

    def held(self, *names: str, lease_s: float = 15.0) -> list[ClaimedJob]:
        return [
            ClaimedJob(
                JobClaim(new_id(), 1, "work", 50, NOW, NOW, 1, 4, None, None, None, None, f'"{name}"'),
                self.clock.boottime_s(),
                self.clock.boottime_s() + lease_s,
            )
            for name in names
        ]

    def take(self, *names: str, was_full: bool = False) -> list[ClaimedJob]:
        batch = self.held(*names)
        self.executor.take(batch, was_full=was_full)
        return batch


async def settle() -> None:
    """Let every task that can run do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_executor_runs_jobs_in_order_and_ends_them() -> None:
    deck = Deck(running_max=1)
    deck.take("a", "b", "c")
    await deck.executor.idle()
    assert deck.ran == ["a", "b", "c"]
    assert all(isinstance(verdict, End) for verdict in deck.verdicts)
    assert len(deck.claimed_jobs) == 0


async def test_a_job_taken_while_the_last_runner_ends_is_started() -> None:
    """Between a runner's last look at the queue and its end stands one turn of the event loop."""

    async def handle(name: str, _: Run) -> Outcome | None:
        ran.append(name)
        if name == "a":
            asyncio.get_running_loop().call_soon(deck.take, "b")
        return None

    ran: list[str] = []
    deck = Deck(running_max=1, handler=handle)
    deck.take("a")
    await deck.executor.idle()
    await settle()
    assert ran == ["a", "b"]


async def test_a_job_that_waited_past_its_lease_is_not_started() -> None:
    """The process was stopped and continued: by now the job may be running elsewhere."""
    deck = Deck(running_max=1, is_open=False)
    deck.take("a", "b")
    await settle()
    deck.clock.suspend(16)
    deck.gate.set()
    await deck.executor.idle()
    assert deck.ran == ["a"]
    assert len(deck.claimed_jobs) == 0


async def test_a_job_claimed_again_while_it_waited_is_started_once() -> None:
    deck = Deck(running_max=1, is_open=False)
    [_, waiting] = deck.take("a", "b")
    await settle()
    again = ClaimedJob(waiting.job, deck.clock.boottime_s(), deck.clock.boottime_s() + 15)
    deck.executor.take([again], was_full=False)
    deck.gate.set()
    await deck.executor.idle()
    assert deck.ran == ["a", "b"]
    assert waiting.stop_reason is StopReason.LEASE_LOST


async def test_a_stopped_job_does_not_stop_its_runner() -> None:
    deck = Deck(running_max=1, is_open=False)
    [first, _] = deck.take("a", "b")
    await settle()
    first.stop(StopReason.TIMEOUT)
    await settle()
    assert deck.ran == ["a", "b"]
    deck.gate.set()
    await deck.executor.idle()
    timed_out, done = deck.verdicts
    assert isinstance(timed_out, ReturnedClaim)
    assert timed_out.error_code == "timeout"
    assert isinstance(done, End)


async def test_a_job_cancelled_before_its_start_is_not_started() -> None:
    deck = Deck(running_max=1, is_open=False)
    [_, waiting] = deck.take("a", "b")
    await settle()
    waiting.stop(StopReason.CANCELLED)
    deck.gate.set()
    await deck.executor.idle()
    assert deck.ran == ["a"]
    cancelled = deck.verdicts[-1]
    assert isinstance(cancelled, End)
    assert cancelled.outcome == "cancelled"


async def test_an_unrequested_cancellation_is_a_failure_and_does_not_end_the_runner() -> None:
    """The handler waited for a task, and that one was cancelled."""

    async def handle(_name: str, _run: Run) -> None:
        inner = asyncio.ensure_future(asyncio.Event().wait())
        inner.cancel()
        await inner

    deck = Deck(running_max=1, handler=handle)
    deck.take("a", "b")
    await deck.executor.idle()
    assert [(type(v), getattr(v, "error_code", None)) for v in deck.verdicts] == [
        (ReturnedClaim, "CancelledError")
    ] * 2
    assert len(deck.claimed_jobs) == 0


async def test_a_handler_that_swallows_its_stop_does_not_cancel_the_next_job() -> None:
    async def handle(name: str, _run: Run) -> None:
        if name == "deaf":
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        else:
            assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]

    deck = Deck(running_max=1, handler=handle)
    [deaf, _] = deck.take("deaf", "next")
    await settle()
    deaf.stop(StopReason.SHUTDOWN)
    await deck.executor.idle()
    assert [type(verdict) for verdict in deck.verdicts] == [End, End]


async def test_a_handler_result_that_is_no_outcome_is_a_dead_letter() -> None:
    async def handle(_name: str, _run: Run) -> Any:
        return {"rows": 3}

    deck = Deck(handler=handle)
    deck.take("a")
    await deck.executor.idle()
    [dead] = deck.verdicts
    assert isinstance(dead, Death)
    assert dead.error_code == "bad_outcome"
    assert "returned dict" in dead.error_message


async def test_a_job_that_lost_its_lease_writes_no_verdict() -> None:
    deck = Deck(is_open=False)
    [held] = deck.take("a")
    await settle()
    held.stop(StopReason.LEASE_LOST)
    await deck.executor.idle()
    assert deck.verdicts == []
    assert len(deck.claimed_jobs) == 0


async def test_the_executors_room_grows_beyond_running_max_when_its_queue_runs_dry() -> None:
    deck = Deck(running_max=2, is_open=False)
    assert deck.executor.room() == 2
    deck.take("a", "b", was_full=True)
    await settle()
    assert deck.executor.room() == QUEUE_FIRST
    deck.take(*map(str, range(QUEUE_FIRST)), was_full=True)
    assert deck.executor.room() == QUEUE_FIRST


async def test_queued_jobs_behind_slow_ones_are_given_back() -> None:
    deck = Deck(running_max=1, is_open=False)
    deck.take("a", was_full=True)
    await settle()
    deck.take(*map(str, range(QUEUE_FIRST)), was_full=True)
    deck.clock.advance(0.5)
    while deck.executor._queue_target:
        deck.executor.room()
    assert deck.executor.room() == 0
    deck.clock.advance(0.6)
    assert deck.executor.give_back(older_than_s=1.0) == QUEUE_FIRST
    given_back = [verdict for verdict in deck.verdicts if isinstance(verdict, ReturnedClaim)]
    assert len(given_back) == QUEUE_FIRST
    assert not any(verdict.counted for verdict in given_back)
    deck.gate.set()
    await deck.executor.idle()


async def test_a_job_claimed_early_starts_at_its_time() -> None:
    deck = Deck()
    loop = asyncio.get_running_loop()
    [held] = deck.held("a")
    held.begin_s = deck.clock.boottime_s() + 0.02
    before_s = loop.time()
    deck.executor.take([held], was_full=False)
    assert held in deck.claimed_jobs
    await eventually(lambda: deck.ran == ["a"])
    assert loop.time() - before_s >= 0.02
    await deck.executor.idle()


async def test_a_job_claimed_early_can_be_given_back() -> None:
    deck = Deck()
    [held] = deck.held("a")
    held.begin_s = deck.clock.boottime_s() + 600
    deck.executor.take([held], was_full=False)
    assert deck.executor.give_back() == 1
    assert len(deck.claimed_jobs) == 0
    assert isinstance(deck.verdicts[0], ReturnedClaim)


async def test_the_executor_has_no_room_beyond_its_maximum() -> None:
    deck = Deck(running_max=2, queue_max=1000, is_open=False)
    deck.take(*map(str, range(100)))
    assert deck.executor.room() == 0
    deck.gate.set()
    await deck.executor.idle()


async def test_a_runner_of_jobs_that_never_wait_yields_the_event_loop() -> None:
    deck = Deck(running_max=1, queue_max=100_000)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while len(deck.ran) < 20_000:
            turns += 1
            await asyncio.sleep(0)

    deck.take(*map(str, range(20_000)))
    await count_turns()
    assert turns > 3
