# mypy: ignore-errors
# It runs in the peers' environment, whose packages ours does not have.
"""Procrastinate on psycopg, its only asynchronous driver."""

import asyncio
import json
import sys
import time
from datetime import UTC, datetime

import procrastinate
import uvloop

CONCURRENCY = 100
CHUNK = 5000
late_ms, times = [], []


def make_app(plan):
    app = procrastinate.App(
        connector=procrastinate.PsycopgConnector(conninfo=plan["database_url"], min_size=2, max_size=10)
    )

    @app.task(name="noop")
    async def noop(sent):
        now = time.time()
        times.append(now)
        late_ms.append((now - sent) * 1000)

    return app, noop


async def enqueue(plan, do):
    app, noop = make_app(plan)
    async with app.open_async():
        count, started = plan.get("count", 0), time.perf_counter()
        if do == "bulk":
            for start in range(0, count, CHUNK):
                await noop.batch_defer_async(*({"sent": 0.0} for _ in range(min(CHUNK, count - start))))
        elif do == "delay":
            for due in plan["due_s"]:
                await noop.configure(schedule_at=datetime.fromtimestamp(due, UTC)).defer_async(sent=due)
        else:
            for _ in range(count):
                await noop.defer_async(sent=time.time())
                if do == "send":
                    await asyncio.sleep(plan["gap_s"])
        return {"seconds": time.perf_counter() - started}


async def work(plan, do):
    app, _ = make_app(plan)
    async with app.open_async():
        working = asyncio.create_task(
            app.run_worker_async(concurrency=CONCURRENCY, delete_jobs="always", install_signal_handlers=False)
        )
        if do == "listen":
            await asyncio.sleep(1.5)
            print("ready", flush=True)
        while len(late_ms) < plan["count"] and time.time() < plan["give_up_s"]:  # noqa: ASYNC110 (disturbs least)
            await asyncio.sleep(0.05)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    return {"seconds": times[-1] - times[0], "late_ms": late_ms if do == "listen" else []}


async def setup(plan):
    app, _ = make_app(plan)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def main(do, plan):
    if do == "setup":
        return await setup(plan)
    return await (work(plan, do) if do in ("drain", "listen") else enqueue(plan, do))


print(json.dumps(uvloop.run(main(sys.argv[1], json.load(sys.stdin)))))
