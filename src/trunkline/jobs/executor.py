"""Runs claimed jobs, a bounded number at a time.

Claimed jobs wait in a local queue, so that a fast type never waits for the database. Runners take jobs from it one by
one and end when it is empty. The length of the queue adapts: if it ran dry although the claim was full, it may be
longer; if its head is too old, it must be shorter, because a job in it cannot run on an idle worker elsewhere.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import structlog

from trunkline.crashpoint import crash_point
from trunkline.handlers import GRACE_S, HandlerScope, HandlerThreads, abandon, place_of
from trunkline.jobs.finisher import Finisher
from trunkline.jobs.outcomes import (
    Cancel,
    Failed,
    GivenBack,
    Outcome,
    from_exception,
    to_outcome,
    unreadable,
    verdict,
)
from trunkline.jobs.registry import PayloadRefused, Registry
from trunkline.jobs.run import ClaimedJob, ClaimedJobs, Run, StopReason
from trunkline.store.jobs import End
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

# How long a runner of jobs that never await may keep the event loop.
SLICE_S = 0.005
QUEUE_FIRST = 16
# A queue whose head is older than the first is shortened; jobs older than the second are returned to other workers.
QUEUE_AGE_MAX_S = 0.1
GIVE_BACK_AGE_S = 1.0
# Timers of the event loop are rounded to whole milliseconds; a job never begins before it is due.
TIMER_ROUNDING_S = 0.001


@dataclass(frozen=True, slots=True)
class ExecutorLimits:
    running_max: int = 100
    queue_max: int = 1000
    # All claimed jobs, including those whose verdict is not written yet.
    held_max: int = 4000


class Executor:
    def __init__(
        self,
        registry: Registry,
        claimed_jobs: ClaimedJobs,
        finisher: Finisher,
        limits: ExecutorLimits,
        on_room: Callable[[], None],
        cancel_grace_s: float = GRACE_S,
    ):
        self.registry = registry
        self._claimed_jobs = claimed_jobs
        self._now_s = claimed_jobs.now_s
        self._finisher = finisher
        self._limits = limits
        self._on_room = on_room
        # How long a cancelled handler may still run.
        self.cancel_grace_s = cancel_grace_s
        self.threads = HandlerThreads()
        self._queue: deque[ClaimedJob] = deque()
        # Claimed before they are due, each with the timer of its time.
        self._early: dict[ClaimedJob, asyncio.TimerHandle] = {}
        self._queue_target = 0
        self._runners: set[asyncio.Task[None]] = set()
        self._running: dict[asyncio.Task[None], ClaimedJob] = {}
        self._changed = asyncio.Event()
        self._running_max = registry.running_max
        self._seconds = {name: metrics.JOB_SECONDS.labels(name) for name in registry.runnable}

    def room(self) -> int:
        """How many jobs to claim now: 0 until the queue is half empty, so that claims stay large."""
        queued = len(self._queue)
        if queued and self._now_s() - self._queue[0].renewed_s > QUEUE_AGE_MAX_S:
            self._queue_target //= 2
        if queued > self._queue_target // 2:
            return 0
        free = self._limits.running_max - len(self._runners)
        return max(
            0, min(free + self._queue_target - queued, self._limits.held_max - len(self._claimed_jobs))
        )

    def take(self, batch: Sequence[ClaimedJob], *, was_full: bool) -> None:
        """Run these. `was_full`: the claim returned as many as its limit, so there are probably more."""
        if was_full and not self._queue:
            self._queue_target = min(self._limits.queue_max, max(QUEUE_FIRST, 2 * self._queue_target))
        now_s, loop = self._now_s(), asyncio.get_running_loop()
        for held in batch:
            self._claimed_jobs.add(held)
            if held.begin_s > now_s:
                wait_s = held.begin_s - now_s + TIMER_ROUNDING_S
                self._early[held] = loop.call_later(wait_s, self._on_due, held)
            else:
                self._queue.append(held)
        self._start_runners()

    def _on_due(self, held: ClaimedJob) -> None:
        del self._early[held]
        # Ahead of the queue: the others are late already, this one can still be on time.
        self._queue.appendleft(held)
        self._start_runners()

    def _start_runners(self) -> None:
        for _ in range(min(len(self._queue), self._limits.running_max - len(self._runners))):
            runner = asyncio.create_task(self._run_queue(), name="job_runner")
            self._runners.add(runner)
            runner.add_done_callback(self._ended)

    def give_back(self, *, older_than_s: float = 0.0) -> int:
        """Return the claims of jobs that did not begin. Returns how many."""
        unbegun: list[ClaimedJob] = []
        if older_than_s == 0:
            for timer in self._early.values():
                timer.cancel()
            unbegun += self._early
            self._early.clear()
        limit_s = self._now_s() - older_than_s
        while self._queue and self._queue[0].renewed_s <= limit_s:
            unbegun.append(self._queue.popleft())
        for held in unbegun:
            self._conclude(held, GivenBack(counted=False))
        return len(unbegun)

    @property
    def running(self) -> list[ClaimedJob]:
        """The jobs that run now, including those whose claim was lost."""
        return list(self._running.values())

    def find_by_task(self, task: "asyncio.Task[Any] | None") -> ClaimedJob | None:
        """The job that this task runs. Called from another thread too."""
        return self._running.get(task) if task is not None else None

    def stop_running(self, reason: StopReason) -> int:
        running = self.running
        for held in running:
            held.stop(reason)
        return len(running)

    def abandon(self, held: ClaimedJob) -> str:
        """The job was cancelled and runs on: free its slot, and end it by its stop reason. The fence refuses what it
        still writes. Returns the source line at which it is."""
        task = held.task
        assert task is not None, "it runs"
        place = abandon(task, held.scope)
        self._report_stuck(held, place_of(self.registry.handler(held.job.job_type)), place)
        held.is_abandoned, held.task = True, None
        self._running.pop(task, None)
        self._runners.discard(task)
        self._conclude(held, self._stopped(held))
        self._changed.set()
        self._start_runners()
        self._on_room()
        return place

    async def idle(self) -> None:
        """Wait until no job runs."""
        while self._runners:
            self._changed.clear()
            await self._changed.wait()

    def _ended(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        self._running.pop(runner, None)
        self._changed.set()
        # Jobs that were queued since its last look at the queue have no runner: its slot still counted as used.
        if not runner.cancelled():
            self._start_runners()
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
            if held.is_abandoned:
                return
            if time.monotonic() > slice_ends_s:
                await asyncio.sleep(0)
                slice_ends_s = time.monotonic() + SLICE_S

    async def _run(self, held: ClaimedJob, task: asyncio.Task[None]) -> None:
        now_s = self._now_s()
        if held not in self._claimed_jobs or held.lease_until_s <= now_s:
            # This process was paused for longer than the lease: another worker may have the job by now.
            job = held.job
            log.warning("jobs.lease_lost", job_id=job.id, job_type=job.job_type, fence=job.fence)
            self._claimed_jobs.drop(held)
            return
        if held.stop_reason is not None:
            self._conclude(held, self._stopped(held))
            return
        held.started_s, held.task = now_s, task
        self._running[task] = held
        structlog.contextvars.bind_contextvars(job_id=str(held.job.id), job_type=held.job.job_type)
        run = Run(held, self._claimed_jobs.claimant.worker, self._running_max)
        outcome = await self._outcome(held, run, task)
        if held.is_abandoned:
            log.warning("jobs.ended_after_all", job_id=held.job.id, job_type=held.job.job_type)
            return
        held.task = None
        del self._running[task]
        held.duration_s = self._now_s() - now_s
        self._seconds[held.job.job_type].observe(held.duration_s)
        crash_point("jobs.after_run")
        # A failure after `run.finish` rolled its transaction back. If it did not, the fence refuses the verdict.
        if run.is_finished and not isinstance(outcome, Failed | GivenBack):
            self._finisher.finished(held, run.unparked)
        else:
            self._conclude(held, outcome)

    async def _outcome(self, held: ClaimedJob, run: Run, task: asyncio.Task[None]) -> Outcome | GivenBack:
        name = held.job.job_type
        try:
            payload = self.registry[name].decode(held.job.payload)
            held.scope = HandlerScope(
                "job",
                name,
                self.threads,
                grace_s=self.cancel_grace_s,
                on_stuck_thread=partial(self._report_stuck, held, how="thread"),
            )
            with held.scope:
                return to_outcome(await self.registry.handler(name)(payload, run))
        except PayloadRefused as error:
            return unreadable(held.job, str(error), datetime.now(UTC))
        except asyncio.CancelledError as error:
            if held.stop_reason is not None:
                return self._stopped(held)
            if task.cancelling():
                raise  # the process ends
            # Something that the handler awaited was cancelled; the job itself was not.
            return from_exception(error)
        except Exception as error:
            log.warning("jobs.raised", attempt=held.job.attempt, exc_info=error)
            return from_exception(error)
        finally:
            held.scope = None
            if held.stop_reason is not None:
                task.uncancel()

    def _report_stuck(self, held: ClaimedJob, handler: str, place: str, how: str | None = None) -> None:
        """A handler, or a function that it called in a thread, outlived its cancellation."""
        job = held.job
        metrics.HANDLERS_STUCK.labels("job", job.job_type, how or "ignores_cancellation").inc()
        log.error(
            "jobs.ignores_cancellation",
            job_id=job.id,
            job_type=job.job_type,
            handler=handler,
            told=held.stop_reason,
            where=place,
            **({"how": how} if how else {}),
        )

    def _stopped(self, held: ClaimedJob) -> Outcome | GivenBack:
        match held.stop_reason:
            case StopReason.TIMEOUT:
                timeout_s = self.registry.policy(held.job.job_type).timeout_s
                return Failed("timeout", f"The job ran longer than {timeout_s:g} s")
            case StopReason.CANCELLED:
                return Cancel("Cancelled while it ran")
            case reason:
                assert reason is not None, "stopped"
                return GivenBack(counted=True, reason=reason.value)

    def _conclude(self, held: ClaimedJob, outcome: Outcome | GivenBack) -> None:
        if held.stop_reason is StopReason.LEASE_LOST:
            self._claimed_jobs.drop(held)
            return
        decided = verdict(held.job, self.registry.policy(held.job.job_type), outcome)
        if held.fraction is not None and isinstance(decided, End):
            decided = msgspec.structs.replace(decided, fraction=held.fraction, note=held.note)
        self._finisher.add(held, decided)
