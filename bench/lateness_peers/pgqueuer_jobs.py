# mypy: ignore-errors
# It runs in the peers' environment, whose packages ours does not have.
"""PgQueuer: its worker sleeps until the next job is due. asyncpg and uvloop are the fastest of what it runs on."""

import asyncio
import json
import sys
import time
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.queries import Queries

BATCH_SIZE = 100


async def main(plan):
    due_s = plan["due_s"]
    late_ms = [None] * len(due_s)
    pool = await asyncpg.create_pool(plan["database_url"], min_size=4, max_size=8)
    queries = Queries.from_asyncpg_pool(pool)
    await queries.install()
    worker = PgQueuer.from_asyncpg_pool(pool)

    @worker.entrypoint("handle")
    async def handle(job):
        n = int(job.payload)
        late_ms[n] = (time.time() - due_s[n]) * 1000

    now = time.time()
    count = len(due_s)
    await queries.enqueue(
        ["handle"] * count,
        [str(n).encode() for n in range(count)],
        [0] * count,
        [timedelta(seconds=due - now) for due in due_s],
    )
    working = asyncio.create_task(worker.run(batch_size=BATCH_SIZE, dequeue_timeout=timedelta(seconds=1)))
    while None in late_ms and time.time() < plan["give_up_s"]:  # noqa: ASYNC110 (a look now and then disturbs least)
        await asyncio.sleep(0.2)
    worker.shutdown.set()
    await asyncio.wait([working], timeout=5)
    pool.terminate()
    return late_ms


print(json.dumps(uvloop.run(main(json.load(sys.stdin)))))
