"""A worker as a process of its own, to be killed and stopped by tests: `python -m tests.support.jobs.process URL`.

It keeps a ledger of what it truly ran, in a table that the platform does not know.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import uvloop

from tests.support.jobs.world import Work
from tests.support.waiting import eventually
from trunkline.handlers import in_thread
from trunkline.jobs.outcomes import Failed, Outcome, Policy
from trunkline.jobs.poller import PollLimits
from trunkline.jobs.registry import JobType, Registry
from trunkline.jobs.run import Run
from trunkline.jobs.service import JobConfig, JobService
from trunkline.jobs.worker import ClaimLimits

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
KEYED: JobType[Work] = JobType("keyed_work", Work, Policy(backoff_s=(0.0,), max_attempts=50, per_key=1))


class Ledger:
    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]"):
        self._pool = pool

    async def handle(self, work: Work, run: Run) -> Outcome | None:
        """`hold` waits until somebody opens the gate of its name, `fail` fails then. `early` finishes its job first, in
        a transaction that it keeps open until then. `block` blocks the event loop the first time, `stubborn` holds and
        cannot be cancelled, `thread` does so in a thread. Anything else takes a few milliseconds."""
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
    for job_type in (WORK, BRIEF, KEYED):
        found.add(job_type, handler.handle)
    if newer:
        found.add(NEWER, handler.handle_newer)
    else:
        found.add(OLDER, handler.handle)
    return found


async def serve(url: str, lease_s: float, *, newer: bool) -> None:
    async with asyncpg.create_pool(url, min_size=1, max_size=4) as pool:
        config = JobConfig(
            identity=f"process-{os.getpid()}",
            claims=ClaimLimits(batch_max=20),
            survey=PollLimits(probe_s=0.2),
            lease_s=lease_s,
            renew_s=lease_s / 3,
            drain_s=2.0,
            cancel_grace_s=0.5,
        )
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with JobService.open(config, registry(Ledger(pool), newer=newer), url):
            print("ready", flush=True)  # noqa: T201
            await stop.wait()


@asynccontextmanager
async def job_process(
    url: str, *, lease_s: float = 1.0, newer: bool = False
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Such a process, started. It is killed at the end if the test did not do so itself."""
    async with job_processes(url, 1, lease_s=lease_s, newer=newer) as [process]:
        yield process


@asynccontextmanager
async def job_processes(
    url: str, count: int, *, lease_s: float = 1.0, newer: bool = False
) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """Several at once: most of a start is importing."""
    processes = [
        await asyncio.create_subprocess_exec(
            *command(url, lease_s, newer=newer),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
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


def command(url: str, lease_s: float = 1.0, *, newer: bool = False) -> list[str]:
    version = ["newer"] if newer else []
    return [sys.executable, "-m", "tests.support.jobs.process", url, str(lease_s), *version]


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], float(sys.argv[2]), newer="newer" in sys.argv[3:]))
