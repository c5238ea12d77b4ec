"""Jobs for tests: an outbox, types that do as their payload says, and workers on demand."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec

from tests.support.waiting import eventually
from trunkline.clock import Clock
from trunkline.jobs.executor import ExecutorLimits
from trunkline.jobs.outbox import Outbox
from trunkline.jobs.outcomes import Cancel, Done, Failed, Outcome, Policy, Snooze
from trunkline.jobs.recurring import Recurring
from trunkline.jobs.registry import JobType, Registry
from trunkline.jobs.run import Run
from trunkline.jobs.service import JobConfig, JobService
from trunkline.jobs.wakeups import JobNotifier
from trunkline.jobs.worker import PollLimits
from trunkline.store import database as store
from trunkline.store import job_admin, jobs
from trunkline.store.database import Database
from trunkline.store.job_admin import StoredJob as Job
from trunkline.store.jobs import BEGINNING, Claimant, Inserted, JobClaim, Lane, LanePosition
from trunkline.store.tenants import PLATFORM

# Nothing is found by looking at everything unless the test asks for it.
NEVER_S = 600.0


class Work(msgspec.Struct):
    """`do`: done, result, fail, die, snooze, cancel, raise, hold (until the gate of its name is opened)."""

    name: str
    do: str = "done"


class Workshop:
    """Handles jobs of the type `work`, and remembers what it did."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, int]] = []
        self.running: set[str] = set()
        self.most_running = 0
        self.gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.started: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def handle(self, work: Work, run: Run) -> Outcome | None:
        self.ran.append((work.name, run.attempt))
        self.running.add(work.name)
        self.most_running = max(self.most_running, len(self.running))
        self.started[work.name].set()
        try:
            return await self._do(work)
        finally:
            self.running.discard(work.name)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.ran]

    async def _do(self, work: Work) -> Outcome | None:
        match work.do:
            case "hold":
                await self.gates[work.name].wait()
                return None
            case "result":
                return Done({"name": work.name})
            case "fail":
                return Failed("told_to", "It was told to fail")
            case "die":
                return Failed("told_to", "It was told to die", final=True)
            case "snooze":
                return Snooze(3600)
            case "cancel":
                return Cancel("told to")
            case "raise":
                raise RuntimeError("something broke")
            case _:
                return None


class JobWorld:
    def __init__(self, url: str, database: Database):
        self.url = url
        self.database = database
        self.workshop = Workshop()
        self.work: JobType[Work] = JobType("work", Work, Policy())
        self.keyed: JobType[Work] = JobType("keyed_work", Work, Policy(per_key=1))
        self.registry = Registry()
        self.registry.add(self.work, self.workshop.handle)
        self.registry.add(self.keyed, self.workshop.handle)
        self.notifier = JobNotifier(url)
        self.outbox = Outbox(self.registry, self.notifier)

    async def enqueue(
        self,
        name: str = "a",
        do: str = "done",
        *,
        wake: bool = False,
        kind: JobType[Work] | None = None,
        **options: Any,
    ) -> Inserted:
        async with self.database.transaction() as tx:
            job = await self.outbox.enqueue(tx, kind or self.work, Work(name, do), **options)
        if wake:
            self.outbox.wake(job)
        return job

    def service(
        self,
        *,
        url: str | None = None,
        running_max: int = 100,
        probe_s: float = 0.05,
        registry: Registry | None = None,
        clock: Clock | None = None,
        notifier: JobNotifier | None = None,
        recurring: Sequence[Recurring] = (),
        **config: Any,
    ) -> AbstractAsyncContextManager[JobService]:
        """A worker. With `probe_s=NEVER_S` it looks at everything once, when it starts."""
        survey = PollLimits(probe_s=probe_s, poll_s=max(probe_s, 30.0))
        given = JobConfig(
            survey=survey, executor=ExecutorLimits(running_max=running_max), **{"drain_s": 5.0, **config}
        )
        return JobService.open(
            given,
            registry or self.registry,
            url or self.url,
            clock=clock,
            notifier=notifier,
            recurring=recurring,
        )

    async def claim(
        self, worker: str = "w1", *, limit: int = 100, lease_s: float = 15.0, priority: int = 50
    ) -> list[JobClaim]:
        """Claim unkeyed work as a worker of this name would."""
        async with self.database.connection() as conn:
            look = await jobs.claim(
                conn, {Lane("work", priority): LanePosition(BEGINNING)}, limit, Claimant(worker, lease_s)
            )
        return look.claimed

    async def claim_keyed(
        self, worker: str = "w1", *, limit: int = 100, lease_s: float = 15.0
    ) -> list[JobClaim]:
        async with self.claiming_keyed(worker, limit=limit, lease_s=lease_s) as claimed:
            return claimed

    @asynccontextmanager
    async def claiming_keyed(
        self, worker: str = "w1", *, limit: int = 100, lease_s: float = 15.0, per_key: int = 1
    ) -> AsyncIterator[list[JobClaim]]:
        """A claim that is committed at the end of the block."""
        lanes = {Lane("keyed_work", 50, keyed=True): LanePosition(BEGINNING)}
        async with self.database.connection() as conn:
            _, candidates = await jobs.keyed_candidates(conn, lanes, limit)
        async with self.database.transaction() as tx:
            claimed, _ = await jobs.claim_keyed(
                tx, candidates, Claimant(worker, lease_s), {"keyed_work": per_key}
            )
            yield claimed

    async def job(self, job_id: UUID) -> Job:
        async with self.database.connection() as conn:
            found = await job_admin.get(conn, PLATFORM, job_id)
        assert found is not None, f"job {job_id} is lost"
        return found

    async def ended(self, *ids: UUID, timeout_s: float = 20) -> list[Job]:
        """Wait until all of them are finished or dead."""

        async def all_ended() -> list[Job] | None:
            found = [await self.job(job_id) for job_id in ids]
            return found if all(job.status in ("DONE", "FAILED") for job in found) else None

        return await eventually(all_ended, timeout_s=timeout_s, what="all jobs ended")

    async def sql(self, statement: str, *values: Any) -> Any:
        async with self.database.connection() as conn:
            return await conn.fetchval(statement, *values)

    async def blocked(self) -> None:
        """Until some statement waits for a lock."""
        await eventually(
            lambda: self.sql(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE wait_event_type = 'Lock' AND datname = current_database()"
            ),
            what="a statement that waits for a lock",
        )


@asynccontextmanager
async def job_world(url: str) -> AsyncIterator[JobWorld]:
    database = await store.connect(url)
    world = JobWorld(url, database)
    try:
        yield world
    finally:
        await world.notifier.close()
        await database.close()
