"""Does the outbox stay quick while a long transaction keeps every dead row alive? Ten minutes at 1,000 jobs a second:
two alone, five beside a transaction that holds its snapshot, three after it.

Nothing can be removed that an open snapshot might still see. So beside it there are two dead rows for each job, one of
its claim and one of its end; the question is whether claims grow slower by them, and whether they are gone afterwards.

    BENCH_SCALE=0.1   a minute instead of ten
"""

import asyncio
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import structlog
import uvloop

from bench.platform import scaled
from bench.report import Report, finish
from trunkline.embedded import Engines
from trunkline.jobs.outbox import Outbox
from trunkline.jobs.outcomes import Policy
from trunkline.jobs.registry import JobType, Registry
from trunkline.jobs.run import Run
from trunkline.jobs.service import JobConfig, JobService
from trunkline.jobs.wakeups import JobNotifier
from trunkline.store import database as store
from trunkline.store import jobs as claims
from trunkline.store.jobs import ClaimResult
from trunkline.store.migrate import migrate

ALONE_S, BESIDE_S, AFTER_S = scaled(120, least=6), scaled(300, least=15), scaled(180, least=9)
# In transactions of ten: 100 commits a second.
BATCH, BATCHES_PER_S = 10, 100
# So many may be under way at once; a machine that cannot keep the pace is noticed, and not buried.
UNDER_WAY_MAX = 50
# The end of each phase counts, when what it does to the table has been done.
TAIL_S = scaled(60, least=5)
OLD_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ"
STATE = """
SELECT s.n_dead_tup AS dead, pg_table_size(s.relid) / 1048576.0 AS table_mb,
       pg_indexes_size(s.relid) / 1048576.0 AS index_mb, (SELECT count(*) FROM job_history) AS done
FROM pg_stat_user_tables AS s WHERE s.relname = 'job_outbox'
"""


class Job(msgspec.Struct):
    sent_s: float


JOB: JobType[Job] = JobType("noop", Job, Policy())


@dataclass(frozen=True, slots=True)
class Phase:
    """The last minute of a phase. `late` is from before the enqueue to the handler's first line."""

    claim_p50_ms: float
    claim_p99_ms: float
    late_p50_ms: float
    late_p99_ms: float
    dead_rows: int
    table_mb: float
    index_mb: float
    done_per_s: float
    load_average: float


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as folder:
        async with Engines(Path(folder)) as engines:
            url = engines.database_url
            await migrate(url)
            async with process("work", url) as worker, process("enqueue", url):
                phases = await watch(url)
                worker.stdin.write(b"stop\n")  # type: ignore[union-attr]
                said = json.loads(await worker.stdout.readline())  # type: ignore[union-attr]
    report(phases, said)


async def watch(url: str) -> list[tuple[float, float, dict[str, Any]]]:
    """Live through the phases; when the tail of each began and ended, and how the table was then."""
    looker = await asyncpg.connect(url)
    # Our own Postgres ends a transaction that stands still for a minute; others' do not.
    reader = await asyncpg.connect(url, server_settings={"idle_in_transaction_session_timeout": "0"})
    phases = [await live(looker, "alone", ALONE_S)]
    await reader.execute(OLD_SNAPSHOT)
    await reader.fetchval("SELECT count(*) FROM job_outbox")
    phases.append(await live(looker, "beside", BESIDE_S))
    await reader.execute("COMMIT")
    phases.append(await live(looker, "after", AFTER_S))
    await reader.close()
    await looker.close()
    return phases


async def live(looker: Any, name: str, seconds: float) -> tuple[float, float, dict[str, Any]]:
    await asyncio.sleep(seconds - TAIL_S)
    began_s, before = time.time(), dict(await looker.fetchrow(STATE))
    await asyncio.sleep(TAIL_S)
    ended_s, state = time.time(), dict(await looker.fetchrow(STATE))
    state["done_per_s"] = (state["done"] - before["done"]) / (ended_s - began_s)
    state["load_average"] = round(os.getloadavg()[1], 1)
    print(f"{name}: {state}", file=sys.stderr, flush=True)
    return began_s, ended_s, state


def report(phases: Sequence[tuple[float, float, dict[str, Any]]], said: dict[str, list[list[float]]]) -> None:
    alone, beside, after = (phase(*found, said) for found in phases)
    made_beside = BATCH * BATCHES_PER_S * BESIDE_S
    goals = {
        "claims beside it at most 1.5 times as slow": beside.claim_p50_ms <= 1.5 * alone.claim_p50_ms,
        "at most 2.2 dead rows for each job beside it": beside.dead_rows <= 2.2 * made_beside + 50_000,
        "under 50,000 of them afterwards": after.dead_rows < 50_000,
        "nothing piles up": min(p.done_per_s for p in (alone, beside, after)) > 0.97 * BATCH * BATCHES_PER_S,
    }
    for goal, met in goals.items():
        print(f"{'met' if met else 'MISSED'}: {goal}", file=sys.stderr)
    ratio = round(beside.claim_p50_ms / alone.claim_p50_ms, 2)
    peers = {"alone": asdict(alone), "after": asdict(after)}
    finish(Report("jobs_bloat", asdict(beside), peers, ratio, "; ".join(goals), all(goals.values())))


def phase(began_s: float, ended_s: float, state: dict[str, Any], said: dict[str, list[list[float]]]) -> Phase:
    def during(name: str) -> list[float]:
        return sorted(ms for at_s, ms in said[name] if began_s <= at_s < ended_s)

    claim, late = during("claims"), during("late")
    return Phase(
        claim_p50_ms=percentile(claim, 0.5),
        claim_p99_ms=percentile(claim, 0.99),
        late_p50_ms=percentile(late, 0.5),
        late_p99_ms=percentile(late, 0.99),
        dead_rows=state["dead"],
        table_mb=round(float(state["table_mb"]), 1),
        index_mb=round(float(state["index_mb"]), 1),
        done_per_s=round(state["done_per_s"], 1),
        load_average=state["load_average"],
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)


@asynccontextmanager
async def process(role: str, url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """One of us, ready, and gone at the end."""
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.jobs_bloat", role, url,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**28,
    )  # fmt: skip
    assert started.stdout is not None
    try:
        assert await started.stdout.readline() == b"ready\n"
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def enqueue(url: str) -> None:
    """At the given pace; a commit that is slow does not slow the next."""
    database, notifier = await store.connect(url), JobNotifier(url)
    outbox = Outbox(Registry([JOB]), notifier)
    await notifier.warm()
    print("ready", flush=True)
    loop, number = asyncio.get_running_loop(), 0
    started_s, tasks = loop.time(), set[asyncio.Task[None]]()
    while True:
        await asyncio.sleep(max(0.0, started_s + number / BATCHES_PER_S - loop.time()))
        while len(tasks) >= UNDER_WAY_MAX:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        number += 1
        task = asyncio.create_task(enqueue_batch(database, outbox))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def enqueue_batch(database: store.Database, outbox: Outbox) -> None:
    sent = Job(time.time())
    async with outbox.transaction(database) as work:
        await work.enqueue_many([JOB.new(sent) for _ in range(BATCH)])


class Watch:
    """Notes how long claims take and how late jobs begin, one in ten of each that there are many of."""

    def __init__(self) -> None:
        self.claims: list[tuple[float, float]] = []
        self.late: list[tuple[float, float]] = []
        self._count = 0
        self._claim = claims.claim

    async def claim(self, *args: Any, **options: Any) -> ClaimResult:
        started_s = time.perf_counter()
        look = await self._claim(*args, **options)
        self.claims.append((time.time(), (time.perf_counter() - started_s) * 1000))
        return look

    async def run(self, job: Job, _run: Run) -> None:
        self._count += 1
        if self._count % 10 == 0:
            now_s = time.time()
            self.late.append((now_s, (now_s - job.sent_s) * 1000))


async def work(url: str) -> None:
    watch = Watch()
    claims.claim = watch.claim
    registry = Registry()
    registry.add(JOB, watch.run)
    async with JobService.open(JobConfig(), registry, url):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    print(json.dumps({"claims": watch.claims, "late": watch.late}), flush=True)


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    match sys.argv[1:]:
        case ["work", url]:
            uvloop.run(work(url))
        case ["enqueue", url]:
            uvloop.run(enqueue(url))
        case _:
            uvloop.run(main())
