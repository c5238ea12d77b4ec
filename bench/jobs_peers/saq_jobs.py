# mypy: ignore-errors
# It runs in the peers' environment, whose packages ours does not have.
"""SAQ on Valkey: what a queue in memory can do."""

import asyncio
import json
import sys
import time

import uvloop
from saq import Queue, Worker

CONCURRENCY = 100
CHUNK = 200


async def enqueue(plan, do):
    queue = Queue.from_url(plan["redis_url"])
    await queue.connect()
    count, started = plan.get("count", 0), time.perf_counter()
    if do == "bulk":
        for start in range(0, count, CHUNK):
            await asyncio.gather(
                *(queue.enqueue("noop", sent=0.0, ttl=1) for _ in range(min(CHUNK, count - start)))
            )
    elif do == "delay":
        for due in plan["due_s"]:
            await queue.enqueue("noop", sent=due, scheduled=due, ttl=1)
    else:
        for _ in range(count):
            await queue.enqueue("noop", sent=time.time(), ttl=1)
            if do == "send":
                await asyncio.sleep(plan["gap_s"])
    seconds = time.perf_counter() - started
    await queue.disconnect()
    return {"seconds": seconds}


async def work(plan, do):
    late_ms, times, done = [], [], asyncio.Event()

    async def noop(_context, *, sent):
        now = time.time()
        times.append(now)
        late_ms.append((now - sent) * 1000)
        if len(late_ms) == plan["count"]:
            done.set()

    queue = Queue.from_url(plan["redis_url"])
    await queue.connect()
    worker = Worker(queue, [("noop", noop)], concurrency=CONCURRENCY)
    working = asyncio.create_task(worker.start())
    if do == "listen":
        await asyncio.sleep(1.0)
        print("ready", flush=True)
    async with asyncio.timeout(plan["give_up_s"] - time.time()):
        await done.wait()
    await worker.stop()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    await queue.disconnect()
    return {"seconds": times[-1] - times[0], "late_ms": late_ms if do == "listen" else []}


async def main(do, plan):
    if do == "setup":
        return None
    return await (work(plan, do) if do in ("drain", "listen") else enqueue(plan, do))


print(json.dumps(uvloop.run(main(sys.argv[1], json.load(sys.stdin)))))
