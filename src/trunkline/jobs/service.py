"""Everything that a process with the role `jobs` runs. `__init__` lists the components, `start` and `stop` their order.

async with JobService.open(config, registry, database_url) as service:
    …
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from trunkline.clock import Clock, SystemClock
from trunkline.event_loop import ends_within
from trunkline.handlers import LoopWatch
from trunkline.jobs.executor import Executor, ExecutorLimits
from trunkline.jobs.finisher import Finisher
from trunkline.jobs.lease_renewer import LeaseRenewer
from trunkline.jobs.maintenance import JobMaintenance, JobMaintenanceLimits
from trunkline.jobs.outbox import Outbox
from trunkline.jobs.reaper import Reaper
from trunkline.jobs.recurring import Recurring, Scheduler
from trunkline.jobs.registry import Registry
from trunkline.jobs.run import ClaimedJobs, StopReason
from trunkline.jobs.wakeups import JobNotifier, Listener
from trunkline.jobs.worker import ClaimLimits, JobWorker, PollLimits
from trunkline.loops.base import Loop
from trunkline.settings import Settings
from trunkline.store import database as store
from trunkline.store import jobs
from trunkline.store.database import Database
from trunkline.store.jobs import SESSION, Claimant
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

# One for each component that may need one at the same time, so that none waits for another: claims, two kinds of
# verdict writes, renewals, the check for cancelled jobs, the poller, the reaper, the scheduler and the maintenance.
CONNECTIONS = 9
# How long a stopping loop may take to end its current run.
END_S = 5.0


@dataclass(frozen=True, slots=True)
class JobConfig:
    identity: str = "jobs"
    claims: ClaimLimits = field(default_factory=ClaimLimits)
    survey: PollLimits = field(default_factory=PollLimits)
    executor: ExecutorLimits = field(default_factory=ExecutorLimits)
    maintenance: JobMaintenanceLimits = field(default_factory=JobMaintenanceLimits)
    lease_s: float = 15.0
    renew_s: float = 5.0
    # Without notifications only the poller and timers find jobs.
    notify: bool = True
    # How long a stopping worker waits for running jobs.
    drain_s: float = 25.0
    # How long a cancelled handler may still run. Then the worker logs it and releases its slot and lease.
    cancel_grace_s: float = 5.0

    @classmethod
    def of(cls, settings: Settings) -> "JobConfig":
        jobs = settings.jobs
        return cls(
            identity=settings.identity,
            survey=PollLimits(probe_s=jobs.probe_s, poll_s=jobs.poll_s),
            executor=ExecutorLimits(running_max=jobs.concurrency),
            maintenance=JobMaintenanceLimits(history_s=jobs.history_s, dead_s=jobs.dead_s),
            lease_s=jobs.lease_s,
            renew_s=jobs.renew_s,
            notify=jobs.notify,
            # Other components stop after the jobs, within the same limit.
            drain_s=settings.http.shutdown_timeout_s * 0.8,
        )


class JobService:
    def __init__(
        self,
        config: JobConfig,
        registry: Registry,
        database: Database,
        notifier: JobNotifier,
        direct_url: str | None,
        recurring: Sequence[Recurring] = (),
        clock: Clock | None = None,
    ):
        # A restarted process is another worker, also under the same pod name.
        claimant = Claimant(f"{config.identity}/{uuid4().hex[:8]}", config.lease_s)
        self.worker_id = claimant.worker
        self._config = config
        self.notifier = notifier
        self.claimed_jobs = claimed = ClaimedJobs(claimant, (clock or SystemClock()).boottime_s)
        self.finisher = Finisher(database, claimed, notifier, registry.running_max, self._on_room)
        self.executor = Executor(
            registry, claimed, self.finisher, config.executor, self._on_room, config.cancel_grace_s
        )
        self.worker = JobWorker(database, claimed, self.executor, config.claims, config.survey)
        self.poller = self.worker.poller
        self.lease_renewer = LeaseRenewer(database, claimed, self.executor, config.renew_s)
        self.reaper = Reaper(
            database,
            registry,
            notifier,
            lease_s=config.lease_s,
            on_clock_forward=self.lease_renewer.renew_all,
        )
        self.scheduler = Scheduler(database, Outbox(registry, notifier), recurring)
        self.maintenance = JobMaintenance(database, registry, notifier, config.maintenance)
        self.listener = (
            Listener(direct_url, notifier, on_wakeup=self.worker.wake, on_cancel=self._check_cancelled)
            if direct_url is not None and config.notify
            else None
        )
        self._watch = LoopWatch(config.lease_s / 3, self._blocked)
        notifier.add_listener(self.worker.wake)
        self._tasks: dict[Loop, asyncio.Task[None]] = {}
        self._checks: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        config: JobConfig,
        registry: Registry,
        database_url: str,
        *,
        direct_url: str | None = None,
        behind_pooler: bool = False,
        recurring: Sequence[Recurring] = (),
        notifier: JobNotifier | None = None,
        clock: Clock | None = None,
        search_path: str | None = None,
    ) -> "AsyncIterator[JobService]":
        """Connect, start, and close everything at the end. A notifier passed in is that of the process, whose jobs then
        wake this worker without the network; its owner closes it. The tables must be on the search path: `Jobs` creates
        them in a schema of their own, and passes its path."""
        direct_url = direct_url or (None if behind_pooler else database_url)
        database = await store.connect(
            database_url,
            pool_size=CONNECTIONS,
            behind_pooler=behind_pooler,
            application_name=f"trunkline jobs {config.identity}",
            session_settings=SESSION,
            search_path=search_path,
        )
        try:
            async with database.connection() as connection:
                await jobs.check_tables(connection)
        except BaseException:
            await database.close()
            raise
        own_notifier = JobNotifier(direct_url if config.notify else None)
        service = cls(config, registry, database, notifier or own_notifier, direct_url, recurring, clock)
        try:
            await service.notifier.warm()
            service.start()
            try:
                yield service
            finally:
                await service.stop()
        finally:
            await own_notifier.close()
            await database.close()

    def start(self) -> None:
        for loop in self._loops():
            self._tasks[loop] = asyncio.create_task(loop.run(), name=loop.name)
        self._watch.start()
        log.info("jobs.started", worker_id=self.worker_id)

    async def stop(self) -> None:
        """Stop claiming, return claims of jobs that did not begin, and let running jobs finish within the limit. Jobs
        that do not stop are logged and abandoned, so that this always ends."""
        await self._end(self.worker)
        given_back = self.executor.give_back()
        unfinished: list[str] = []
        loop = asyncio.get_running_loop()
        grace_ends_s = loop.time()
        if not await ends_within(self._config.drain_s, self.executor.idle()):
            stopped = self.executor.stop_running(StopReason.SHUTDOWN)
            grace_ends_s = loop.time() + self._config.cancel_grace_s
            log.warning("jobs.drain_limit_reached", stopped=stopped)
            if not await ends_within(self._config.cancel_grace_s, self.executor.idle()):
                unfinished = [
                    f"{held.job.job_type} {held.job.id} at {self.executor.abandon(held)}"
                    for held in self.executor.running
                ]
        unfinished += await self.executor.threads.end(grace_ends_s - loop.time())
        if not await ends_within(self._config.lease_s, self.finisher.flushed()):
            log.error("jobs.results_unwritten", count=len(self.claimed_jobs))
        await self._end(*self._loops())
        self._watch.stop()
        log.info("jobs.stopped", worker_id=self.worker_id, given_back=given_back, unfinished=unfinished)

    async def _end(self, *loops: Loop) -> None:
        """A loop ends after its current run. One whose run does not end is cancelled."""
        tasks = [task for loop in loops if (task := self._tasks.pop(loop, None)) is not None]
        for loop in loops:
            loop.stop()
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=END_S)
        for task in late:
            log.warning("loop.cancelled", loop=task.get_name())
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=END_S)

    def _blocked(self, task: "asyncio.Task[Any] | None", for_s: float, place: str) -> None:
        """Called from another thread while the event loop is blocked."""
        held = self.executor.find_by_task(task)
        if held is None:
            # Not a job's handler: a mailbox's, which its own worker logs, or other code of the application.
            log.warning("jobs.stands_still", for_s=round(for_s, 1), where=place)
            return
        metrics.HANDLERS_STUCK.labels("job", held.job.job_type, "blocks").inc()
        log.error(
            "jobs.blocks_the_event_loop",
            job_id=held.job.id,
            job_type=held.job.job_type,
            for_s=round(for_s, 1),
            where=place,
        )

    def _loops(self) -> list[Loop]:
        loops: list[Loop] = [
            self.worker,
            self.poller,
            self.lease_renewer,
            self.reaper,
            self.scheduler,
            self.maintenance,
        ]
        return loops if self.listener is None else [*loops, self.listener]

    def _on_room(self) -> None:
        self.worker.room_again()

    def _check_cancelled(self) -> None:
        check = asyncio.create_task(self.lease_renewer.check_cancelled(), name="job_cancellations")
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)
