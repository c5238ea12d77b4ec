"""How late is a call? From the moment a lead is due to the moment the carrier has the request.

Beside it, in the same run and on the same engines: the delayed jobs of BullMQ, PgQueuer, SAQ and Celery, and the plain
way (a ZSET, a tick of 200 ms, a list), each from due to the first line of its handler. Ours does more by then: gates,
an intent committed in Postgres, and an HTTP request. While each one runs, bare timers in this process are as late as
the machine makes everybody: that is the floor under all figures, and it says how busy the machine was.
"""

import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import uvloop

from bench import peers
from bench._calls import HEAD_START_S, judge, lateness_ms, load, percentile, prepare, spread, until
from bench.platform import platform, scaled
from bench.report import Report, finish
from trunkline.embedded import Engines

COUNT = scaled(2000, least=200)
RATE_PER_S = 125.0
# A peer that has not begun a job by then never will, for this purpose.
PATIENCE_S = 10.0
MERCHANTS = [f"m{n}" for n in range(10)]
CHANNELS = [50] * 10
TIME_SCALE = 0.05
PODS = 120

PYTHON = ("celery[redis]==5.7.0", "pgqueuer[asyncpg]==1.6.0", "saq[redis,hiredis]==0.26.4", "uvloop==0.23.0")
NODE = ("bullmq@6.7.0", "ioredis@5.9.2")
PROGRAMS = {
    "BullMQ": "bullmq_jobs.cjs",
    "PgQueuer": "pgqueuer_jobs.py",
    "SAQ": "saq_jobs.py",
    "Celery": "celery_jobs.py",
    "tick of 200 ms": "tick.py",
}
QUARTER_OF, THRICE = ("BullMQ", "PgQueuer"), "Celery"

Figures = Mapping[str, float]


async def main() -> None:
    commands = install()
    ours = await measure_ours()
    found = {name: await measure_peer(command) for name, command in commands.items()}
    for name, figures in {"ours": ours, **found}.items():
        print(f"{name}: {figures}", file=sys.stderr)
    ratio = ours["p99_ms"] / min(found[name]["p99_ms"] for name in QUARTER_OF)
    met = ratio <= 0.25 and ours["p99_ms"] <= 3 * found[THRICE]["p99_ms"]
    goal = f"p99 at most a quarter of {' and '.join(QUARTER_OF)}, and within three times that of {THRICE}"
    finish(Report("lateness", ours, found, round(ratio, 3), goal, met))


def install() -> dict[str, list[str]]:
    """How each peer's program is run."""
    interpreter, modules = str(peers.python(*PYTHON)), peers.node(*NODE)
    os.environ["NODE_PATH"] = str(modules / "node_modules")
    folder = Path(__file__).parent / "lateness_peers"
    return {
        name: ["node" if file.endswith("cjs") else interpreter, str(folder / file)]
        for name, file in PROGRAMS.items()
    }


def moments() -> list[float]:
    """Random, the same for everybody but for when they begin."""
    dice = random.Random(1)
    start_s = time.time() + HEAD_START_S
    return sorted(start_s + dice.random() * COUNT / RATE_PER_S for _ in range(COUNT))


async def measure_ours() -> Figures:
    async with platform(time_scale=TIME_SCALE, pods=PODS) as running:
        numbers = await prepare(running.client, MERCHANTS, CHANNELS)
        due_s = moments()
        leads = list(spread(0, COUNT, MERCHANTS, due_s.__getitem__))
        await load(running.database, leads)
        timers = asyncio.create_task(floor_ms(due_s))
        await until(due_s[0])
        before = await running.meter.read()
        await until(due_s[-1] + 1.0)
        spent = await running.meter.since(before)
        dials = await running.dials()
        while len(dials) < COUNT and time.time() < due_s[-1] + PATIENCE_S:
            await until(time.time() + 0.5)
            dials = await running.dials()
        judge(dials, numbers)
        of_carrier = round(spent.cpu_s["ours"] / spent.cpu_s["carrier"], 2)
        return {**summary(lateness_ms(dials, leads), await timers), "of_carrier": of_carrier}


async def measure_peer(command: Sequence[str]) -> Figures:
    """On engines of its own, so that nobody has another's leftovers."""
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as folder:
        async with Engines(Path(folder)) as engines:
            due_s = moments()
            plan = {
                "database_url": engines.database_url,
                "redis_url": engines.redis_url,
                "due_s": due_s,
                "give_up_s": due_s[-1] + PATIENCE_S,
            }
            timers = asyncio.create_task(floor_ms(due_s))
            late_ms = await run(command, plan, due_s[-1] + PATIENCE_S + 10.0)
            return summary(late_ms, await timers)


async def run(command: Sequence[str], plan: Mapping[str, object], end_s: float) -> list[float]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(end_s - time.time()):
            out, complaints = await process.communicate(json.dumps(plan).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"{command[-1]} failed:\n{complaints.decode()[-2000:]}")
    late_ms: list[float | None] = json.loads(out.splitlines()[-1])
    return [value for value in late_ms if value is not None]


async def floor_ms(due_s: Sequence[float]) -> list[float]:
    """How late bare timers are at the same moments."""
    loop = asyncio.get_running_loop()
    late_ms: list[float] = []
    zero_s = time.time() - loop.time()

    def ring(due: float) -> None:
        late_ms.append(1000 * (time.time() - due))

    for due in due_s:
        loop.call_at(due - zero_s, ring, due)
    await until(due_s[-1] + 0.5)
    return late_ms


def summary(late_ms: Sequence[float], floor: Sequence[float]) -> Figures:
    """One that was not begun in time counts as late by all the patience there was."""
    begun = len(late_ms)
    late_ms = [*late_ms, *[1000 * PATIENCE_S] * (COUNT - begun)]
    return {
        "begun": begun,
        "p50_ms": round(percentile(late_ms, 0.5), 1),
        "p99_ms": round(percentile(late_ms, 0.99), 1),
        "floor_p99_ms": round(percentile(floor, 0.99), 1),
    }


if __name__ == "__main__":
    uvloop.run(main())
