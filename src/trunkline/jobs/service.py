"""All that a process with the role `jobs` runs. `__init__` shows the parts, `start` and `stop` their order.

async with JobService.open(config, registry, database_url) as service:
    …
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

from trunkline.clock import Clock, SystemClock
from trunkline.jobs.crew import Crew, CrewLimits
from trunkline.jobs.finisher import Finisher
from trunkline.jobs.held import Hold, Stop
from trunkline.jobs.keeper import LeaseKeeper
from trunkline.jobs.listener import Listener
from trunkline.jobs.outbox import Outbox
from trunkline.jobs.poker import Poker
from trunkline.jobs.reaper import Reaper
from trunkline.jobs.recurring import Recurring, Scheduler
from trunkline.jobs.registry import Registry
from trunkline.jobs.surveyor import SurveyLimits, Surveyor
from trunkline.jobs.upkeep import Upkeep, UpkeepLimits
from trunkline.jobs.worker import ClaimLimits, JobWorker
from trunkline.loops.base import Loop
from trunkline.settings import Settings
from trunkline.store import database as store
from trunkline.store.database import Database
from trunkline.store.jobs import SESSION, Claimant
from trunkline.telemetry import get_logger

log = get_logger(__name__)

# One that claims, one that finishes, one that renews, one that surveys, and one for the duties in the background.
CONNECTIONS = 5


@dataclass(frozen=True, slots=True)
class JobConfig:
    identity: str = "jobs"
    claims: ClaimLimits = field(default_factory=ClaimLimits)
    survey: SurveyLimits = field(default_factory=SurveyLimits)
    crew: CrewLimits = field(default_factory=CrewLimits)
    upkeep: UpkeepLimits = field(default_factory=UpkeepLimits)
    lease_s: float = 15.0
    renew_s: float = 5.0
    # Without notifications jobs are found by surveys and timers alone.
    notify: bool = True
    # How long a stopping worker waits for what it runs.
    drain_s: float = 25.0

    @classmethod
    def of(cls, settings: Settings) -> "JobConfig":
        jobs = settings.jobs
        return cls(
            identity=settings.identity,
            survey=SurveyLimits(probe_s=jobs.probe_s, poll_s=jobs.poll_s),
            crew=CrewLimits(running_max=jobs.concurrency),
            upkeep=UpkeepLimits(history_s=jobs.history_s, dead_s=jobs.dead_s),
            lease_s=jobs.lease_s,
            renew_s=jobs.renew_s,
            notify=jobs.notify,
            # Others stop within the same limit, after us.
            drain_s=settings.http.shutdown_timeout_s * 0.8,
        )


class JobService:
    def __init__(
        self,
        config: JobConfig,
        registry: Registry,
        database: Database,
        poker: Poker,
        direct_url: str | None,
        recurring: Sequence[Recurring] = (),
        clock: Clock | None = None,
    ):
        now_s = (clock or SystemClock()).boottime_s
        # A restarted process is another worker, also under the same pod name.
        claimant = Claimant(f"{config.identity}/{uuid4().hex[:8]}", config.lease_s)
        self.worker_id = claimant.worker
        self._config = config
        self.poker = poker
        self.hold = Hold()
        self.finisher = Finisher(
            database, self.hold, poker, self.worker_id, registry.running_max,
            now_s=now_s, on_room=lambda: self.worker.room_again(),
        )  # fmt: skip
        self.crew = Crew(
            registry, self.hold, self.worker_id, config.crew,
            now_s=now_s, on_verdict=self.finisher.add, on_finished=self.finisher.finished,
            on_room=lambda: self.worker.room_again(),
        )  # fmt: skip
        self.surveyor = Surveyor(
            database,
            registry,
            config.survey,
            now_s=now_s,
            on_found=lambda *found: self.worker.surveyed(*found),
        )
        self.worker = JobWorker(
            database, registry, self.hold, self.crew, claimant, config.claims,
            now_s=now_s, on_doubt=self.surveyor.look_now,
        )  # fmt: skip
        self.keeper = LeaseKeeper(
            database, registry, self.hold, self.crew, claimant, renew_s=config.renew_s, now_s=now_s,
            interval_s=min(1.0, config.renew_s / 2),
        )  # fmt: skip
        self.reaper = Reaper(database, registry, poker)
        self.scheduler = Scheduler(database, Outbox(registry, poker), recurring)
        self.upkeep = Upkeep(database, registry, poker, config.upkeep)
        self.listener = (
            Listener(
                direct_url,
                on_poke=self.worker.wake,
                on_cancel=self._check_cancelled,
                own_pid=lambda: poker.pid,
            )
            if direct_url is not None and config.notify
            else None
        )
        poker.tell(self.worker.wake)
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
        poker: Poker | None = None,
        clock: Clock | None = None,
    ) -> "AsyncIterator[JobService]":
        """Connect, start, and give everything back at the end. A poker that is given is the process's own: what is
        enqueued here then needs no way over the network, and its owner closes it."""
        direct_url = direct_url or (None if behind_pooler else database_url)
        database = await store.connect(
            database_url,
            pool_size=CONNECTIONS,
            behind_pooler=behind_pooler,
            application_name=f"trunkline jobs {config.identity}",
            session_settings=SESSION,
        )
        own_poker = Poker(direct_url if config.notify else None)
        service = cls(config, registry, database, poker or own_poker, direct_url, recurring, clock)
        try:
            await service.poker.warm()
            service.start()
            try:
                yield service
            finally:
                await service.stop()
        finally:
            await own_poker.close()
            await database.close()

    def start(self) -> None:
        for loop in self._loops():
            self._tasks[loop] = asyncio.create_task(loop.run(), name=loop.name)
        log.info("jobs_started", worker_id=self.worker_id)

    async def stop(self) -> None:
        """Claim nothing more, give back what was not begun, let what runs finish within the limit."""
        await self._end(self.worker)
        given_back = self.crew.give_back()
        try:
            async with asyncio.timeout(self._config.drain_s):
                await self.crew.idle()
        except TimeoutError:
            stopped = self.crew.stop_running(Stop.SHUTDOWN)
            log.warning("job_drain_limit_reached", stopped=stopped)
            await self.crew.idle()
        await self.finisher.flushed()
        for loop in self._loops():
            await self._end(loop)
        log.info("jobs_stopped", worker_id=self.worker_id, given_back=given_back)

    async def _end(self, loop: Loop) -> None:
        loop.stop()
        if (task := self._tasks.pop(loop, None)) is not None:
            await asyncio.wait([task])

    def _loops(self) -> list[Loop]:
        loops: list[Loop] = [
            self.worker,
            self.surveyor,
            self.keeper,
            self.reaper,
            self.scheduler,
            self.upkeep,
        ]
        return loops if self.listener is None else [*loops, self.listener]

    def _check_cancelled(self) -> None:
        check = asyncio.create_task(self.keeper.check_cancelled(), name="job_cancellations")
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)
