"""A million rows into a campaign over HTTP, and the dry run of a hundred thousand: how fast, and in how much memory?

The file is sent as it is written and never held. While it is taken in, the memory of the API's process is looked at
twenty times a second, beside somebody who asks for /health. The peer is the same upload of a tenth: if memory grew with
the file, ten times the rows would show.

    BENCH_SCALE=0.1   a tenth of the rows, to see that it runs
"""

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import psutil

from bench.ingest import KEY, SET_UP, ask_again_and_again, serve
from bench.platform import SCALE
from bench.report import Report, finish
from bench.startup import wait_ready
from trunkline.embedded import Engines
from trunkline.store.migrate import migrate

ROWS = int(1_000_000 * SCALE)
FEW = ROWS // 10
PLANNED = 100_000
PLAN_GOAL_S = 5.0
GROWN_GOAL_MB = 64.0
ROWS_PER_PIECE = 1000


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder)))


async def measure(folder: Path) -> None:
    async with Engines(folder) as engines:
        await migrate(engines.database_url)
        connection = await asyncpg.connect(engines.database_url)
        await connection.execute(SET_UP)
        server = serve(engines)
        try:
            url = f"http://127.0.0.1:{server.port}"
            await asyncio.to_thread(wait_ready, f"{url}/ready", server.process)
            async with aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {KEY}"}, timeout=aiohttp.ClientTimeout(3000)
            ) as session:
                await compare(session, url, server.process)
        finally:
            server.process.terminate()
            server.process.wait(30)
            await connection.close()


async def compare(session: aiohttp.ClientSession, url: str, server: psutil.Popen) -> None:
    pings: list[float] = []
    before_s = cpu_s(server)
    plan_s = await plan(session, url)
    plan_cpu_s = cpu_s(server) - before_s
    few_s, few_mb = await upload(session, url, server, FEW, [])
    print(f"{FEW} rows in {few_s:.1f} s, at most {few_mb:.0f} MB", flush=True)
    many_s, many_mb = await upload(session, url, server, ROWS, pings)
    pings.sort()
    grown_mb = many_mb - few_mb
    finish(
        Report(
            "campaigns",
            {
                "rows_per_s": round(ROWS / many_s),
                "memory_mb": round(many_mb),
                "others_wait_p50_ms": round(pings[len(pings) // 2] * 1000, 1),
                "others_wait_p99_ms": round(pings[len(pings) * 99 // 100] * 1000, 1),
                "plan_of_100k_s": round(plan_s, 2),
                "plan_of_100k_cpu_s": round(plan_cpu_s, 2),
            },
            {
                "the same with a tenth of the rows": {
                    "rows_per_s": round(FEW / few_s),
                    "memory_mb": round(few_mb),
                }
            },
            round(many_mb / few_mb, 2),
            f"ten times the rows in at most {GROWN_GOAL_MB:.0f} MB more; a plan in under {PLAN_GOAL_S:.0f} s of CPU",
            grown_mb <= GROWN_GOAL_MB and plan_cpu_s < PLAN_GOAL_S,
        )
    )


async def upload(
    session: aiohttp.ClientSession, url: str, server: psutil.Popen, rows: int, pings: list[float]
) -> tuple[float, float]:
    """How long it took, and the most memory that the server had meanwhile, in MB."""
    async with session.post(f"{url}/api/v1/campaigns", json={"name": "bench", "merchant_id": "m1"}) as answer:
        campaign = (await answer.json())["id"]
    seen: list[float] = []
    watching = [
        asyncio.create_task(ask_again_and_again(session, url, pings)),
        asyncio.create_task(watch(server, seen)),
    ]
    began = time.perf_counter()
    try:
        where, kind = f"{url}/api/v1/campaigns/{campaign}/leads", {"Content-Type": "text/csv"}
        async with session.post(
            where, params={"map": "phone:Mobile"}, data=people(rows), headers=kind
        ) as answer:
            report: dict[str, Any] = json.loads(await answer.read())
        assert report["created"] == rows, {name: report.get(name) for name in ("created", "refused", "error")}
    finally:
        for task in watching:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    return time.perf_counter() - began, max(seen)


def cpu_s(server: psutil.Popen) -> float:
    times = server.cpu_times()
    return float(times.user + times.system)


async def watch(server: psutil.Popen, seen: list[float]) -> None:
    while True:
        seen.append(server.memory_info().rss / 1e6)
        await asyncio.sleep(0.05)


async def plan(session: aiohttp.ClientSession, url: str) -> float:
    windows = [{"spans": [{"start": "09:00", "end": "18:00"}], "holidays": [{"country": "US"}]}]
    settings = {"policy": {"packs": ["us-tcpa", "us-fl", "us-ok"], "windows": windows, "starts_per_s": 5}}
    query = {"settings": json.dumps(settings), "map": "phone:Mobile"}
    began = time.perf_counter()
    where, kind = f"{url}/api/v1/campaigns/plan", {"Content-Type": "text/csv"}
    async with session.post(where, params=query, data=people(PLANNED), headers=kind) as answer:
        report = await answer.json()
    assert report["people"] == PLANNED, report
    return time.perf_counter() - began


async def people(rows: int) -> AsyncIterator[bytes]:
    """Everybody has a phone of their own."""
    yield b"Mobile,Full name,Plan\n"
    areas = (212, 303, 404, 512, 617)
    for first in range(0, rows, ROWS_PER_PIECE):
        lines = (
            f"+1{areas[n % 5]}{2_000_000 + n},Customer {n},gold\n"
            for n in range(first, min(rows, first + ROWS_PER_PIECE))
        )
        yield "".join(lines).encode()


if __name__ == "__main__":
    main()
