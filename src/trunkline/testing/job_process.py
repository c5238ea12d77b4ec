"""A worker as a process of its own, to be killed and stopped by tests: `python -m trunkline.testing.job_process URL`.

It keeps a ledger of what it truly ran, in a table that the platform does not know.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import uvloop

from trunkline.jobs.outcomes import Policy
from trunkline.jobs.registry import JobType, Registry
from trunkline.jobs.run import Run
from trunkline.jobs.service import JobConfig, JobService
from trunkline.jobs.surveyor import SurveyLimits
from trunkline.jobs.worker import ClaimLimits
from trunkline.testing.job_world import Work
from trunkline.testing.waiting import eventually

LEDGER = """
CREATE TABLE runs (
    job_id uuid, name text, attempt int, pid int, started timestamptz DEFAULT clock_timestamp(), ended timestamptz
);
CREATE TABLE gates (name text)
"""

WORK: JobType[Work] = JobType("work", Work, Policy(backoff_s=(0.0, 0.0, 0.0), max_attempts=50))
KEYED: JobType[Work] = JobType("keyed_work", Work, Policy(backoff_s=(0.0,), max_attempts=50, per_key=1))


class Ledger:
    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]"):
        self._pool = pool

    async def handle(self, work: Work, run: Run) -> None:
        """`hold` waits until somebody opens the gate of its name; anything else takes a few milliseconds."""
        await self._pool.execute(
            "INSERT INTO runs (job_id, name, attempt, pid) VALUES ($1, $2, $3, $4)",
            run.job_id, work.name, run.attempt, os.getpid(),
        )  # fmt: skip
        if work.do == "hold":
            await eventually(lambda: self._is_open(work.name), timeout_s=600)
        await self._pool.execute(
            "UPDATE runs SET ended = clock_timestamp() WHERE job_id = $1 AND attempt = $2",
            run.job_id,
            run.attempt,
        )

    async def _is_open(self, name: str) -> bool:
        return bool(await self._pool.fetchval("SELECT count(*) FROM gates WHERE name = $1", name))


def registry(handler: "Ledger | None" = None) -> Registry:
    found = Registry()
    for job_type in (WORK, KEYED):
        found.add(job_type, handler.handle if handler else None)
    return found


async def serve(url: str, lease_s: float) -> None:
    async with asyncpg.create_pool(url, min_size=1, max_size=4) as pool:
        config = JobConfig(
            identity=f"process-{os.getpid()}",
            claims=ClaimLimits(batch_max=20),
            survey=SurveyLimits(probe_s=0.2),
            lease_s=lease_s,
            renew_s=lease_s / 3,
            drain_s=2.0,
        )
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with JobService.open(config, registry(Ledger(pool)), url):
            print("ready", flush=True)  # noqa: T201
            await stop.wait()


@asynccontextmanager
async def job_process(url: str, *, lease_s: float = 1.0) -> AsyncIterator[asyncio.subprocess.Process]:
    """Such a process, started. It is killed at the end if the test did not do so itself."""
    async with job_processes(url, 1, lease_s=lease_s) as [process]:
        yield process


@asynccontextmanager
async def job_processes(
    url: str, count: int, *, lease_s: float = 1.0
) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """Several at once: most of a start is importing."""
    processes = [
        await asyncio.create_subprocess_exec(
            *command(url, lease_s), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
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


def command(url: str, lease_s: float = 1.0) -> list[str]:
    return [sys.executable, "-m", "trunkline.testing.job_process", url, str(lease_s)]


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], float(sys.argv[2])))
