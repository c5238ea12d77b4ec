"""Does every page of the console stay under 100 ms when there are a million leads?

The API with its console and the router are a process of their own, on real engines. Every page is loaded again and
again with 1,000 leads and what hangs on them, then with a million: lists, filters, searches, single objects, and the
first event of a live page. The time is that of the whole answer, as somebody on the same machine waits for it.

    BENCH_SCALE=0.1   a hundred thousand leads, to see that it runs
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import asyncpg

from bench._console_world import Shown, fill, look, make_ground
from bench.ingest import KEY, serve
from bench.platform import SCALE
from bench.report import Report, finish
from bench.startup import wait_ready
from trunkline.embedded import Engines
from trunkline.store.migrate import migrate

FEW, MANY = 1_000, int(1_000_000 * SCALE)
LOADS = 40
GOAL_MS = 100.0
CAMPAIGN = "00000000-0000-7000-8000-000000000000"
Timings = dict[str, list[float]]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(compare(Path(folder)))


async def compare(folder: Path) -> None:
    async with Engines(folder) as engines:
        await migrate(engines.database_url)
        connection = await asyncpg.connect(engines.database_url)
        await make_ground(connection)
        server = serve(engines, "api,router")
        try:
            url = f"http://127.0.0.1:{server.port}"
            await asyncio.to_thread(wait_ready, f"{url}/ready", server.process)
            few = await filled(connection, url, 0, FEW)
            many = await filled(connection, url, FEW, MANY)
        finally:
            server.process.terminate()
            server.process.wait(30)
            await connection.close()
    tell(few, many)


async def filled(
    connection: "asyncpg.Connection[asyncpg.Record]", url: str, before: int, leads: int
) -> Timings:
    began = time.perf_counter()
    await fill(connection, before, leads)
    print(f"{leads:,} leads after {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return await load_all(url, await look(connection))


async def load_all(url: str, shown: Shown) -> Timings:
    async with aiohttp.ClientSession(url, cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        async with session.post("/console/sign-in", data={"key": KEY}) as answer:
            assert answer.status == 200, await answer.text()
        wanted = pages(shown)
        found: Timings = {name: [] for name in [*wanted, "overview live"]}
        for nth in range(LOADS):
            for name, addresses in wanted.items():
                found[name].append(await load(session, addresses[nth % len(addresses)]))
            found["overview live"].append(await first_event(session))
        return found


async def load(session: aiohttp.ClientSession, address: str) -> float:
    began = time.perf_counter()
    async with session.get(f"/console{address}") as answer:
        body = await answer.read()
    took_s = time.perf_counter() - began
    assert answer.status == 200, f"{address}: {answer.status} {body!r}"
    return took_s * 1000


async def first_event(session: aiohttp.ClientSession) -> float:
    began = time.perf_counter()
    async with session.get("/console", headers={"Accept": "text/event-stream"}) as answer:
        async for line in answer.content:
            if line.startswith(b"event: live"):
                break
    return (time.perf_counter() - began) * 1000


def pages(shown: Shown) -> Mapping[str, list[str]]:
    """Every page by name; the addresses of one name are loaded in turn."""
    yesterday = (datetime.now(UTC) - timedelta(days=1)).date()
    return {
        "overview": [""],
        "leads": ["/leads"],
        "leads waiting": ["/leads?status=BACKLOG"],
        "leads finished": ["/leads?status=FINISHED"],
        "leads of the largest merchant": ["/leads?merchant_id=m0"],
        "leads of a small merchant": ["/leads?merchant_id=m7"],
        "its finished leads": ["/leads?merchant_id=m7&status=FINISHED"],
        "leads of a campaign": [f"/leads?campaign_id={CAMPAIGN}"],
        "its leads being called": [f"/leads?campaign_id={CAMPAIGN}&status=PROCESSING"],
        "leads by phone": [f"/leads?find=%2B{shown.phone[1:]}"],
        "leads by request id": [f"/leads?find={shown.request_id}"],
        "leads by id": [f"/leads?find={shown.finished_lead}"],
        "lead that waits": [f"/leads/{each}" for each in shown.leads],
        "lead that finished": [f"/leads/{shown.finished_lead}"],
        "campaigns": ["/campaigns"],
        "campaign of a quarter": [f"/campaigns/{CAMPAIGN}"],
        "reminders": ["/reminders"],
        "reminders of a phone": ["/reminders?phone=%2B12125550199"],
        "reminder": [f"/reminders/{shown.reminder}"],
        "numbers": ["/numbers"],
        "number": [f"/numbers/{shown.number}"],
        "pods": ["/pods"],
        "mailboxes": ["/mailboxes"],
        "mailboxes of a kind": ["/mailboxes/call"],
        "dead mailboxes": ["/mailboxes/issue?status=dead"],
        "queued mailboxes": ["/mailboxes/call?status=queued"],
        "mailbox": [f"/mailboxes/call/{shown.mailbox}"],
        "jobs": ["/jobs"],
        "jobs in progress": ["/jobs?status=IN_PROGRESS"],
        "jobs of a type": ["/jobs?job_type=export"],
        "job": [f"/jobs/{shown.job}"],
        "control": ["/control"],
        "audit": ["/audit"],
        "audit of yesterday": [f"/audit?day={yesterday}"],
        "audit by person": ["/audit?actor=nobody"],
        "audit by action": ["/audit?action=flag"],
        "audit by subject": ["/audit?subject=merchant/m3"],
    }


def tell(few: Timings, many: Timings) -> None:
    for name, timings in many.items():
        p50, p99, worst = median(timings), percentile(timings, 0.99), max(timings)
        ratio = p50 / median(few[name])
        print(f"{name:30} {p50:7.1f} ms  p99 {p99:7.1f}  worst {worst:7.1f}  {ratio:5.2f}x of {FEW:,} leads")
    slowest = max(median(timings) for timings in many.values())
    finish(
        Report(
            "console",
            {"slowest_ms": slowest, "p99_ms": percentile(each(many), 0.99), **medians(many)},
            {f"{FEW:,} leads": {"p99_ms": percentile(each(few), 0.99), **medians(few)}},
            round(max(median(many[name]) / median(few[name]) for name in many), 2),
            f"the median of every page under {GOAL_MS:.0f} ms with {MANY:,} leads",
            slowest < GOAL_MS,
        )
    )


def medians(found: Timings) -> dict[str, float]:
    return {name: median(timings) for name, timings in found.items()}


def median(timings: list[float]) -> float:
    return round(statistics.median(timings), 1)


def each(found: Timings) -> list[float]:
    return [took for timings in found.values() for took in timings]


def percentile(timings: Iterable[float], share: float) -> float:
    ordered = sorted(timings)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 1)


if __name__ == "__main__":
    main()
