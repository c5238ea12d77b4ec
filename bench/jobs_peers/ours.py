"""Ours, as it runs by default; log lines of single jobs are off, as they are for everybody here."""

import asyncio
import logging
import sys
import time
from datetime import UTC, datetime

import msgspec
import structlog
import uvloop

from trunkline.jobs.outbox import Outbox
from trunkline.jobs.outcomes import Policy
from trunkline.jobs.registry import JobType, Registry
from trunkline.jobs.run import Run
from trunkline.jobs.service import JobConfig, JobService
from trunkline.jobs.wakeups import JobNotifier
from trunkline.store import database as store
from trunkline.store.database import Database
from trunkline.store.migrate import migrate


class Plan(msgspec.Struct):
    database_url: str
    redis_url: str = ""
    count: int = 0
    gap_s: float = 0.0
    due_s: list[float] = []
    give_up_s: float = 0.0


class Job(msgspec.Struct):
    sent: float


JOB: JobType[Job] = JobType("noop", Job, Policy())


class Runner:
    def __init__(self, count: int):
        self.count = count
        self.late_ms: list[float] = []
        self.first_s = self.last_s = 0.0
        self.done = asyncio.Event()

    async def run(self, job: Job, _run: Run) -> None:
        now = time.time()
        self.first_s = self.first_s or now
        self.last_s = now
        self.late_ms.append((now - job.sent) * 1000)
        if len(self.late_ms) == self.count:
            self.done.set()


async def enqueue(plan: Plan, do: str) -> dict[str, float]:
    database = await store.connect(plan.database_url)
    notifier = JobNotifier(plan.database_url)
    outbox = Outbox(Registry([JOB]), notifier)
    await notifier.warm()
    started = time.perf_counter()
    match do:
        case "bulk":
            async with outbox.transaction(database) as work:
                await work.enqueue_many(JOB.new(Job(0.0)) for _ in range(plan.count))
        case "burst":
            async with outbox.transaction(database) as work:
                await work.enqueue_many(JOB.new(Job(time.time())) for _ in range(plan.count))
        case "delay":
            async with outbox.transaction(database) as work:
                await work.enqueue_many(
                    JOB.new(Job(due), run_at=datetime.fromtimestamp(due, UTC)) for due in plan.due_s
                )
        case _:
            await one_by_one(plan, database, outbox, paced=do == "send")
    seconds = time.perf_counter() - started
    await notifier.close()
    await database.close()
    return {"seconds": seconds}


async def one_by_one(plan: Plan, database: Database, outbox: Outbox, *, paced: bool) -> None:
    for _ in range(plan.count):
        await outbox.submit(database, JOB, Job(time.time()))
        if paced:
            await asyncio.sleep(plan.gap_s)


async def work(plan: Plan, do: str) -> dict[str, object]:
    runner = Runner(plan.count)
    registry = Registry()
    registry.add(JOB, runner.run)
    async with JobService.open(JobConfig(), registry, plan.database_url) as service:
        if do == "listen":
            assert service.listener is not None
            await service.listener.listening.wait()
            print("ready", flush=True)
        async with asyncio.timeout(plan.give_up_s - time.time()):
            await runner.done.wait()
    return {"seconds": runner.last_s - runner.first_s, "late_ms": runner.late_ms if do == "listen" else []}


async def main(do: str, plan: Plan) -> object:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    if do == "setup":
        return await migrate(plan.database_url)
    return await (work(plan, do) if do in ("drain", "listen") else enqueue(plan, do))


if __name__ == "__main__":
    found = uvloop.run(main(sys.argv[1], msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)))
    print(msgspec.json.encode(found).decode())
