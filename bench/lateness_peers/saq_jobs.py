# mypy: ignore-errors
# It runs in the peers' environment, whose packages ours does not have.
"""SAQ: its worker looks for scheduled jobs once a second; a lock in whole seconds lets it be no faster."""

import asyncio
import json
import sys
import time

import uvloop
from saq import Queue, Worker

CONCURRENCY = 50


async def main(plan):
    due_s = plan["due_s"]
    late_ms = [None] * len(due_s)

    async def handle(_context, *, n):
        late_ms[n] = (time.time() - due_s[n]) * 1000

    queue = Queue.from_url(plan["redis_url"])
    await queue.connect()
    worker = Worker(queue, [("handle", handle)], concurrency=CONCURRENCY)
    working = asyncio.create_task(worker.start())
    for start in range(0, len(due_s), 100):
        await asyncio.gather(
            *(
                queue.enqueue("handle", n=n, scheduled=due_s[n], ttl=1)
                for n in range(start, min(start + 100, len(due_s)))
            )
        )
    while None in late_ms and time.time() < plan["give_up_s"]:  # noqa: ASYNC110 (a look now and then disturbs least)
        await asyncio.sleep(0.2)
    await worker.stop()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    await queue.disconnect()
    return late_ms


print(json.dumps(uvloop.run(main(json.load(sys.stdin)))))
