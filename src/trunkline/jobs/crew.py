"""Runs claimed jobs, a bounded number at a time.

Claimed jobs wait in a queue of their own, so that a fast type never waits for the database. Runners take from it one
after the other and end when it is empty. How many may wait is learnt: a queue that ran dry although the claim was full
may be longer; one whose head grew old must be shorter, because what waits here cannot run on an idle worker elsewhere.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
import structlog

from trunkline.crashpoint import crash_point
from trunkline.jobs.errors import PayloadRefused
from trunkline.jobs.held import Held, Hold, Stop
from trunkline.jobs.outcomes import (
    Cancel,
    Failed,
    GivenBack,
    Outcome,
    Verdict,
    from_exception,
    understood,
    verdict,
)
from trunkline.jobs.registry import Registry
from trunkline.jobs.run import Run
from trunkline.store.jobs import End, Lane
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

# A runner of jobs that never wait lets others have the event loop this often.
SLICE_S = 0.005
QUEUE_FIRST = 16
# What waited this long here should have been left for others, and what waited that long goes back to them.
QUEUE_AGE_MAX_S = 0.1
GIVE_BACK_AGE_S = 1.0
# Timers of the event loop are rounded to whole milliseconds; a job is never begun before its moment.
TIMER_ROUNDING_S = 0.001


@dataclass(frozen=True, slots=True)
class CrewLimits:
    running_max: int = 100
    queue_max: int = 1000
    # Claimed jobs of every kind, those included whose end could not be written yet.
    held_max: int = 4000


class Crew:
    def __init__(
        self,
        registry: Registry,
        hold: Hold,
        worker: str,
        limits: CrewLimits,
        *,
        now_s: Callable[[], float],
        on_verdict: Callable[[Held, Verdict], None],
        on_finished: Callable[[Held, Sequence[tuple[Lane, datetime]]], None],
        on_room: Callable[[], None],
    ):
        self._registry = registry
        self._hold = hold
        self._worker = worker
        self._limits = limits
        self._now_s = now_s
        self._on_verdict = on_verdict
        # It was finished in the handler's own transaction, which let these in under its key.
        self._on_finished = on_finished
        self._on_room = on_room
        self._queue: deque[Held] = deque()
        self._early: dict[Held, asyncio.TimerHandle] = {}
        self._queue_target = 0
        self._runners: set[asyncio.Task[None]] = set()
        self._running_max = registry.running_max
        self._seconds = {name: metrics.JOB_SECONDS.labels(name) for name in registry.runnable}

    def room(self) -> int:
        """How many jobs to claim now. None until the queue is half empty, so that claims stay large."""
        queued = len(self._queue)
        if queued and self._now_s() - self._queue[0].renewed_s > QUEUE_AGE_MAX_S:
            self._queue_target //= 2
        if queued > self._queue_target // 2:
            return 0
        free = self._limits.running_max - len(self._runners)
        return max(0, min(free + self._queue_target - queued, self._limits.held_max - len(self._hold)))

    def take(self, batch: Sequence[Held], *, was_full: bool) -> None:
        """Run these. `was_full`: the claim got all that it asked for, so there is probably more."""
        if was_full and not self._queue:
            self._queue_target = min(self._limits.queue_max, max(QUEUE_FIRST, 2 * self._queue_target))
        now_s = self._now_s()
        for held in batch:
            self._hold.add(held)
            if held.begin_s > now_s:
                self._await_its_moment(held, held.begin_s - now_s)
            else:
                self._queue.append(held)
        self._start_runners()

    def _await_its_moment(self, held: Held, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._early[held] = loop.call_later(wait_s + TIMER_ROUNDING_S, self._moment_has_come, held)

    def _moment_has_come(self, held: Held) -> None:
        del self._early[held]
        # Before what waits already: it is due now, and the others have been for a while.
        self._queue.appendleft(held)
        self._start_runners()

    def _start_runners(self) -> None:
        for _ in range(min(len(self._queue), self._limits.running_max - len(self._runners))):
            runner = asyncio.create_task(self._run_queue(), name="job_runner")
            self._runners.add(runner)
            runner.add_done_callback(self._ended)

    def give_back(self, *, older_than_s: float = 0.0) -> int:
        """Let go of what was not begun; how much that was."""
        limit_s = self._now_s() - older_than_s
        count = self._give_back_early() if older_than_s == 0 else 0
        while self._queue and self._queue[0].renewed_s <= limit_s:
            held = self._queue.popleft()
            self._conclude(held, GivenBack(counted=False))
            count += 1
        return count

    def _give_back_early(self) -> int:
        early, self._early = self._early, {}
        for held, timer in early.items():
            timer.cancel()
            self._conclude(held, GivenBack(counted=False))
        return len(early)

    def stop_running(self, reason: Stop) -> int:
        running = [held for held in self._hold if held.task is not None]
        for held in running:
            held.stop(reason)
        return len(running)

    async def idle(self) -> None:
        """Until no job runs."""
        while self._runners:
            await asyncio.wait(self._runners)

    def _ended(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        self._on_room()

    async def _run_queue(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        slice_ends_s = time.monotonic() + SLICE_S
        while self._queue:
            held = self._queue.popleft()
            if len(self._queue) == self._queue_target // 2:
                self._on_room()
            await self._run(held, task)
            if time.monotonic() > slice_ends_s:
                await asyncio.sleep(0)
                slice_ends_s = time.monotonic() + SLICE_S

    async def _run(self, held: Held, task: asyncio.Task[None]) -> None:
        now_s = self._now_s()
        if held not in self._hold or held.lease_until_s <= now_s:
            # This process stood still for longer than the lease: the job is somebody else's by now.
            log.warning(
                "job_lease_lost", job_id=held.job.id, job_type=held.job.job_type, fence=held.job.fence
            )
            self._hold.drop(held)
            return
        if held.stop_reason is not None:
            self._conclude(held, self._stopped(held))
            return
        held.started_s, held.task = now_s, task
        structlog.contextvars.bind_contextvars(job_id=str(held.job.id), job_type=held.job.job_type)
        run = Run(held, self._worker, self._running_max)
        outcome = await self._outcome(held, run, task)
        held.task = None
        held.duration_s = self._now_s() - now_s
        self._seconds[held.job.job_type].observe(held.duration_s)
        crash_point("jobs.after_run")
        # One that failed after it had finished was undone with its transaction. If it was not, the fence says so.
        if run.is_finished and not isinstance(outcome, Failed | GivenBack):
            self._on_finished(held, run.let_in)
        else:
            self._conclude(held, outcome)

    async def _outcome(self, held: Held, run: Run, task: asyncio.Task[None]) -> Outcome | GivenBack:
        name = held.job.job_type
        try:
            payload = self._registry[name].decode(held.job.payload)
            return understood(await self._registry.handler(name)(payload, run))
        except PayloadRefused as error:
            return Failed("bad_payload", str(error), final=True)
        except asyncio.CancelledError as error:
            if held.stop_reason is not None:
                return self._stopped(held)
            if task.cancelling():
                raise  # the process ends
            # Something that the handler waited for was cancelled, and nobody asked this job to stop.
            return from_exception(error)
        except Exception as error:
            log.warning("job_raised", attempt=held.job.attempt, exc_info=error)
            return from_exception(error)
        finally:
            if held.stop_reason is not None:
                task.uncancel()

    def _stopped(self, held: Held) -> Outcome | GivenBack:
        assert held.stop_reason is not None
        return _stopped(held.stop_reason, self._registry.policy(held.job.job_type).timeout_s)

    def _conclude(self, held: Held, outcome: Outcome | GivenBack) -> None:
        if held.stop_reason is Stop.LEASE_LOST:
            self._hold.drop(held)
            return
        decided = verdict(held.job, self._registry.policy(held.job.job_type), outcome)
        if held.fraction is not None and isinstance(decided, End):
            decided = msgspec.structs.replace(decided, fraction=held.fraction, note=held.note)
        self._on_verdict(held, decided)


def _stopped(reason: Stop, timeout_s: float) -> Outcome | GivenBack:
    match reason:
        case Stop.TIMEOUT:
            return Failed("timeout", f"The job ran longer than {timeout_s:g} s")
        case Stop.CANCELLED:
            return Cancel("Cancelled while it ran")
        case Stop.SHUTDOWN | Stop.LEASE_LOST:
            return GivenBack(counted=True, reason=reason.value)
