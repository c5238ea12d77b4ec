"""A worker as a process of its own, to be killed and stopped by tests:

    python -m tests.support.jobs.process URL LEASE_S [FLAG ...]

It keeps a ledger of what it truly ran, in a table that the platform does not know. Flags:

    newer    it is of the newer version of the application
    ahead    it claims jobs 5 s before they are due
    on_call  its reaper looks when SIGUSR1 comes, and not by itself
    patient  it waits for a lock for as long as somebody holds it
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg
import uvloop

from tests.support.jobs.world import Work
from tests.support.waiting import eventually
from trunkline.handlers import in_thread
from trunkline.jobs.outcomes import Failed, Outcome, Policy
from trunkline.jobs.registry import JobType, Registry
from trunkline.jobs.run import Run
from trunkline.jobs.service import JobConfig, JobService
from trunkline.jobs.worker import ClaimLimits, PollLimits
from trunkline.store.jobs import SESSION

LEDGER = """
CREATE TABLE runs (
    job_id uuid, name text, attempt int, pid int, started timestamptz DEFAULT clock_timestamp(), ended timestamptz
);
CREATE TABLE gates (name text);
CREATE TABLE finished (name text)
"""

# How long a job blocks its process that does `block`.
BLOCK_S = 4.0

WORK: JobType[Work] = JobType("work", Work, Policy(backoff_s=(0.0, 0.0, 0.0), max_attempts=50))
BRIEF: JobType[Work] = JobType("brief_work", Work, Policy(backoff_s=(600.0,), max_attempts=2, timeout_s=0.5))
# The same type in two versions of an application: the older one cannot read what the newer one writes.
OLDER: JobType[Work] = JobType("versioned", Work, Policy())
NEWER: JobType[list[str]] = JobType("versioned", list[str], Policy())
OTHER: JobType[Work] = JobType("other_work", Work, Policy())
KEYED: JobType[Work] = JobType("keyed_work", Work, Policy(backoff_s=(0.0,), max_attempts=50, per_key=1))


class Ledger:
    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]"):
        self._pool = pool

    async def handle(self, work: Work, run: Run) -> Outcome | None:
        """`hold` waits until somebody opens the gate of its name, `fail` fails then. `early` finishes its job first, in
        a transaction that it keeps open until then. `block` blocks the event loop the first time, `stubborn` holds and
        cannot be cancelled, `thread` does so in a thread, `stay` lasts as long as its process. Anything else takes a
        few milliseconds."""
        await self._pool.execute(
            "INSERT INTO runs (job_id, name, attempt, pid) VALUES ($1, $2, $3, $4)",
            run.job_id, work.name, run.attempt, os.getpid(),
        )  # fmt: skip
        if work.do == "early":
            async with self._pool.acquire() as connection, connection.transaction():
                await run.finish(connection)
                await self._pool.execute("INSERT INTO finished VALUES ($1)", work.name)
                await self._gate(work)
        elif work.do in ("hold", "fail"):
            await self._gate(work)
        elif work.do == "block" and run.attempt == 1:
            time.sleep(BLOCK_S)  # noqa: ASYNC251, as handlers do that know no better
        elif work.do == "stay":
            await asyncio.Event().wait()
        elif work.do == "thread":
            await in_thread(threading.Event().wait)
        elif work.do == "stubborn":
            while not await self._is_open_whatever_happens(work.name):
                pass
        await self._pool.execute(
            "UPDATE runs SET ended = clock_timestamp() WHERE job_id = $1 AND attempt = $2",
            run.job_id,
            run.attempt,
        )
        return Failed("told_to", retry_in_s=0.0) if work.do == "fail" else None

    async def handle_newer(self, names: list[str], run: Run) -> None:
        await self.handle(Work(*names), run)

    async def _gate(self, work: Work) -> None:
        await eventually(lambda: self._is_open(work.name), timeout_s=600)

    async def _is_open_whatever_happens(self, name: str) -> bool:
        """As code does that catches everything and goes on."""
        try:
            await asyncio.sleep(0.02)
            return await self._is_open(name)
        except BaseException:
            return False

    async def _is_open(self, name: str) -> bool:
        return bool(await self._pool.fetchval("SELECT count(*) FROM gates WHERE name = $1", name))


def registry(handler: "Ledger", *, newer: bool = False) -> Registry:
    found = Registry()
    for job_type in (WORK, BRIEF, OTHER, KEYED):
        found.add(job_type, handler.handle)
    if newer:
        found.add(NEWER, handler.handle_newer)
    else:
        found.add(OLDER, handler.handle)
    return found


async def serve(url: str, lease_s: float, flags: Sequence[str]) -> None:
    if "patient" in flags:
        SESSION["lock_timeout"] = "10min"
    async with asyncpg.create_pool(url, min_size=1, max_size=4) as pool:
        config = JobConfig(
            identity=f"process-{os.getpid()}",
            claims=ClaimLimits(batch_max=20, ahead_s=5.0 if "ahead" in flags else 0.025),
            survey=PollLimits(probe_s=0.2),
            lease_s=lease_s,
            renew_s=lease_s / 3,
            drain_s=2.0,
            cancel_grace_s=0.5,
        )
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        async with JobService.open(config, registry(Ledger(pool), newer="newer" in flags), url) as service:
            looks: list[asyncio.Task[None]] = []

            async def look() -> None:
                await service.reaper.run_once()
                print("looked", flush=True)  # noqa: T201

            if "on_call" in flags:
                service.reaper.interval_s = 600.0
                await service.reaper.run_once()
                loop.add_signal_handler(signal.SIGUSR1, lambda: looks.append(loop.create_task(look())))
            print("ready", flush=True)  # noqa: T201
            await stop.wait()


async def look(process: asyncio.subprocess.Process) -> None:
    """The reaper of a process that is `on_call` has looked when this returns."""
    process.send_signal(signal.SIGUSR1)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"looked\n"


@asynccontextmanager
async def job_process(
    url: str, *flags: str, lease_s: float = 1.0
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Such a process, started. It is killed at the end if the test did not do so itself."""
    async with job_processes(url, 1, *flags, lease_s=lease_s) as [process]:
        yield process


@asynccontextmanager
async def job_processes(
    url: str, count: int, *flags: str, lease_s: float = 1.0
) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """Several at once: most of a start is importing."""
    processes = [
        await asyncio.create_subprocess_exec(
            *command(url, lease_s, *flags), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        for _ in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
        yield processes
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def command(url: str, lease_s: float = 1.0, *flags: str) -> list[str]:
    return [sys.executable, "-m", "tests.support.jobs.process", url, str(lease_s), *flags]


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], float(sys.argv[2]), sys.argv[3:]))
