"""An application that enqueues jobs, as a process of its own: `python -m tests.support.jobs.caller URL`.

All that it is told to enqueue is in one transaction, which it commits when its input ends. Each line names keys; it
answers with how many of their jobs are new.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.support.jobs.process import WORK
from tests.support.jobs.world import Work, job_world


@dataclass(frozen=True, slots=True)
class Caller:
    process: asyncio.subprocess.Process

    async def enqueue(self, *keys: str) -> int:
        """Those of one line are enqueued at once. How many are new."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{' '.join(keys)}\n".encode())
        answer = await self.process.stdout.readline()
        assert answer, "the transaction failed"
        return int(answer)

    async def commit(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert await self.process.wait() == 0


@asynccontextmanager
async def caller_process(url: str) -> AsyncIterator[Caller]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.jobs.caller", url,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Caller(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _main(url: str) -> None:
    async with job_world(url) as world, world.outbox.transaction(world.database) as work:
        while keys := (await asyncio.to_thread(sys.stdin.readline)).split():
            jobs = await work.enqueue_many(WORK.new(Work(key), unique_key=key) for key in keys)
            print(sum(job.is_new for job in jobs), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
