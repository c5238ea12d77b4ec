# mypy: ignore-errors
# It runs in the peers' environment, whose packages ours does not have.
"""PgQueuer on asyncpg and uvloop, the fastest that it runs on."""

import asyncio
import json
import sys
import time
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.queries import Queries

BATCH_SIZE = 200
CHUNK = 5000


async def enqueue(plan, do):
    connection = await asyncpg.connect(plan["database_url"])
    queries = Queries.from_asyncpg_connection(connection)
    count, started = plan.get("count", 0), time.perf_counter()
    if do == "bulk":
        for start in range(0, count, CHUNK):
            n = min(CHUNK, count - start)
            await queries.enqueue(["noop"] * n, [b"0"] * n, [0] * n)
    elif do == "delay":
        due, now = plan["due_s"], time.time()
        await queries.enqueue(
            ["noop"] * len(due),
            [str(s).encode() for s in due],
            [0] * len(due),
            [timedelta(seconds=s - now) for s in due],
        )
    else:
        for _ in range(count):
            await queries.enqueue("noop", str(time.time()).encode())
            if do == "send":
                await asyncio.sleep(plan["gap_s"])
    seconds = time.perf_counter() - started
    await connection.close()
    return {"seconds": seconds}


async def work(plan, do):
    late_ms, times, done = [], [], asyncio.Event()
    pool = await asyncpg.create_pool(plan["database_url"], min_size=4, max_size=8)
    worker = PgQueuer.from_asyncpg_pool(pool)

    @worker.entrypoint("noop")
    async def noop(job):
        now = time.time()
        times.append(now)
        late_ms.append((now - float(job.payload)) * 1000)
        if len(late_ms) == plan["count"]:
            done.set()

    working = asyncio.create_task(worker.run(batch_size=BATCH_SIZE, dequeue_timeout=timedelta(seconds=1)))
    if do == "listen":
        await asyncio.sleep(1.5)
        print("ready", flush=True)
    async with asyncio.timeout(plan["give_up_s"] - time.time()):
        await done.wait()
    worker.shutdown.set()
    await asyncio.wait([working], timeout=5)
    pool.terminate()
    return {"seconds": times[-1] - times[0], "late_ms": late_ms if do == "listen" else []}


async def setup(plan):
    connection = await asyncpg.connect(plan["database_url"])
    await Queries.from_asyncpg_connection(connection).install()
    await connection.close()


async def main(do, plan):
    if do == "setup":
        return await setup(plan)
    return await (work(plan, do) if do in ("drain", "listen") else enqueue(plan, do))


print(json.dumps(uvloop.run(main(sys.argv[1], json.load(sys.stdin)))))
