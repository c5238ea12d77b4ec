"""How fast are jobs? Enqueue, drain, pickup and lateness beside the queues that people use, on one Postgres that syncs
every commit; SAQ on Valkey stands for what a queue in memory can do.

Everybody has a database of its own on the same server, one process that enqueues and one that works. How fast a queue
is drained is asked in turns, and the median of the rounds counts. How soon a single job is picked up, and how late a
delayed one is, is asked of all at the same time, a few jobs each second: what the machine does, it does to all.
"""

import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import uvloop

from bench import peers
from bench.platform import scaled
from bench.report import Report, finish
from trunkline.embedded import Engines

PYTHON = (
    "pgqueuer[asyncpg]==1.6.0", "procrastinate==3.10.0", "saq[redis,hiredis]==0.26.4", "uvloop==0.23.0",
)  # fmt: skip
NODE = ("graphile-worker@0.18.0", "pg-boss@12.33.7", "pg@8.16.3")
ROUNDS = 3
SINGLES = scaled(1000, least=100)
PICKUPS = scaled(500, least=50)
# Of each queue: six of them are sixty jobs a second, which leaves the machine idle.
GAP_S = 0.1
DELAYED = scaled(500, least=50)
DELAYED_RATE_PER_S = 10.0
# Six processes start and enqueue meanwhile.
HEAD_START_S = 15.0
BURST = 100
BURST_ROUNDS = 10
PATIENCE_S = 180.0


@dataclass
class Queue:
    """A queue and how many jobs it gets to drain: a slow one gets fewer, or we would wait for minutes."""

    name: str
    command: list[str]
    drained: int
    in_postgres: bool = True
    # It complains about being used like this.
    is_chatty: bool = False
    plan: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, list[float]] = field(default_factory=dict)

    def note(self, **values: float) -> None:
        for name, value in values.items():
            self.figures.setdefault(name, []).append(value)

    def summary(self) -> dict[str, float]:
        """The median of the rounds: one disturbed round does not count, and neither does a lucky one."""
        return {name: round(statistics.median(values), 1) for name, values in self.figures.items()}


def queues() -> list[Queue]:
    folder = Path(__file__).parent / "jobs_peers"
    interpreter, modules = str(peers.python(*PYTHON)), peers.node(*NODE)
    os.environ["NODE_PATH"] = str(modules / "node_modules")
    full = scaled(50_000, least=2000)
    return [
        Queue("ours", [sys.executable, "-m", "bench.jobs_peers.ours"], full),
        Queue("PgQueuer", [interpreter, str(folder / "pgqueuer_jobs.py")], full),
        Queue("graphile-worker", ["node", str(modules / "graphile_jobs.cjs")], full),
        Queue("pg-boss", ["node", str(modules / "pgboss_jobs.cjs")], full // 5),
        Queue(
            "Procrastinate", [interpreter, str(folder / "procrastinate_jobs.py")], full // 50, is_chatty=True
        ),
        Queue(
            "SAQ (Valkey)",
            [interpreter, str(folder / "saq_jobs.py")],
            full // 10,
            in_postgres=False,
            is_chatty=True,
        ),
    ]


async def main() -> None:
    everybody = queues()
    place_programs()
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as folder:
        async with Engines(Path(folder)) as engines:
            for number, queue in enumerate(everybody):
                await prepare(queue, engines, f"queue_{number}")
            await pickup(everybody)
            await lateness(everybody)
            for _ in range(ROUNDS):
                for queue in everybody:
                    await throughput(queue)
            await burst(everybody[0])
    for queue in everybody:
        print(f"{queue.name}: {queue.summary()}", file=sys.stderr)
    finish(judge(everybody[0], everybody[1:]))


def place_programs() -> None:
    """Node looks for modules beside the program: `import` does not know NODE_PATH."""
    for program in (Path(__file__).parent / "jobs_peers").glob("*.cjs"):
        (peers.NODE_HOME / program.name).write_text(program.read_text())


async def prepare(queue: Queue, engines: Engines, database: str) -> None:
    admin = await asyncpg.connect(engines.database_url)
    await admin.execute(f"CREATE DATABASE {database}")
    setting = await admin.fetchval("SHOW synchronous_commit")
    await admin.close()
    assert setting == "on"
    assert engines.postgres is not None
    queue.plan = {"database_url": engines.postgres.url(database), "redis_url": engines.redis_url}
    await ask(queue, "setup")


async def pickup(everybody: Sequence[Queue]) -> None:
    """From before the enqueue to the first line of the handler, in another process."""
    heard_by = await heard(everybody, "send", PICKUPS, lambda _: {"gap_s": GAP_S})
    for queue, late_ms in zip(everybody, heard_by, strict=True):
        queue.note(pickup_p50_ms=percentile(late_ms, 0.5), pickup_p99_ms=percentile(late_ms, 0.99))


async def lateness(everybody: Sequence[Queue]) -> None:
    """From the moment for which a job was asked to the first line of its handler."""
    heard_by = await heard(everybody, "delay", DELAYED, lambda seed: {"due_s": moments(seed)})
    for queue, late_ms in zip(everybody, heard_by, strict=True):
        queue.note(late_p50_ms=percentile(late_ms, 0.5), late_p99_ms=percentile(late_ms, 0.99))


def moments(seed: int) -> list[float]:
    """Of each queue its own, or all would wake at the same instant."""
    dice = random.Random(seed)
    start_s = time.time() + HEAD_START_S
    return sorted(start_s + dice.random() * DELAYED / DELAYED_RATE_PER_S for _ in range(DELAYED))


async def throughput(queue: Queue) -> None:
    single = await ask(queue, "single", count=SINGLES)
    queue.note(single_per_s=SINGLES / single["seconds"])
    await ask(queue, "drain", count=SINGLES)
    bulk = await ask(queue, "bulk", count=queue.drained)
    queue.note(bulk_per_s=queue.drained / bulk["seconds"])
    drain = await ask(queue, "drain", count=queue.drained)
    queue.note(drain_per_s=queue.drained / drain["seconds"])


async def burst(ours: Queue) -> None:
    """A hundred jobs at once: from before the first is made until the last is run."""
    for _ in range(BURST_ROUNDS):
        [late_ms] = await heard([ours], "burst", BURST, lambda _: {})
        ours.note(burst_of_100_ms=max(late_ms))


async def heard(
    queues: Sequence[Queue], do: str, count: int, plan: Callable[[int], Mapping[str, Any]]
) -> list[list[float]]:
    """Workers listen while other processes enqueue; how late each of their jobs began. Plans are made when all listen:
    on a busy machine it takes a while until they do."""
    workers = [await start(queue, "listen", count=count) for queue in queues]
    for worker in workers:
        assert worker.stdout is not None
        assert (await worker.stdout.readline()).strip() == b"ready"
    asked = [ask(queue, do, count=count, **plan(number)) for number, queue in enumerate(queues)]
    await asyncio.gather(*asked)
    said = await asyncio.gather(*(worker.communicate() for worker in workers))
    return [json.loads(out.splitlines()[-1])["late_ms"] for out, _ in said]


async def ask(queue: Queue, do: str, **plan: Any) -> Any:
    process = await start(queue, do, **plan)
    out, _ = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"{queue.name} cannot {do}")
    return json.loads(out.splitlines()[-1])


async def start(queue: Queue, do: str, **plan: Any) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *queue.command,
        do,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL if queue.is_chatty else None,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps({**queue.plan, **plan, "give_up_s": time.time() + PATIENCE_S}).encode())
    process.stdin.close()
    return process


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def judge(ours: Queue, others: Sequence[Queue]) -> Report:
    mine, theirs = ours.summary(), {queue.name: queue.summary() for queue in others}
    on_postgres = [theirs[queue.name] for queue in others if queue.in_postgres]
    pgqueuer, graphile = theirs["PgQueuer"], theirs["graphile-worker"]
    goals: Mapping[str, bool] = {
        "drain 1.3 times PgQueuer": mine["drain_per_s"] >= 1.3 * pgqueuer["drain_per_s"],
        "drain not below graphile-worker": mine["drain_per_s"] >= graphile["drain_per_s"],
        "bulk above all": mine["bulk_per_s"] > max(peer["bulk_per_s"] for peer in theirs.values()),
        "pickup p50 at the best on Postgres": mine["pickup_p50_ms"]
        <= min(p["pickup_p50_ms"] for p in on_postgres),
        "pickup p99 at the best on Postgres": mine["pickup_p99_ms"]
        <= min(p["pickup_p99_ms"] for p in on_postgres),
        "lateness p99 a tenth of PgQueuer's": mine["late_p99_ms"] <= pgqueuer["late_p99_ms"] / 10,
        "100 at once within 100 ms": mine["burst_of_100_ms"] <= 100,
    }
    for goal, met in goals.items():
        print(f"{'met' if met else 'MISSED'}: {goal}", file=sys.stderr)
    ratio = mine["drain_per_s"] / pgqueuer["drain_per_s"]
    return Report("jobs", mine, theirs, round(ratio, 2), "; ".join(goals), all(goals.values()))


if __name__ == "__main__":
    uvloop.run(main())
