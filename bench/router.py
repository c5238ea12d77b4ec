"""How many calls a second get a pod and give it back, over HTTP, from one process? And what do the scripts cost?

Beside it, in the same run and on the same engines: a bare endpoint of the same framework and server that runs one
script with as many commands and inserts one row, which is what we are measured by, and one that runs the script
alone. Both use our own connections, on which the scripts of many requests travel together. All take turns in short
slices, so that noise falls on each.

Then the scripts by themselves, with 10 and with 10,000 pods in turns: more pods must not make a call dearer. They are
timed eight together, as they come under load, and one by one, when every cache is cold.

    BENCH_SCALE=0.1   a tenth of the requests, to see that it runs; its figures then say little
"""

import asyncio
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any
from uuid import NAMESPACE_OID, uuid4, uuid5

import asyncpg
import uvloop

from bench._bare_router import TABLE
from bench.report import Report, finish
from bench.webhooks import _child
from trunkline.bus import router
from trunkline.bus.connection import Bus, connect
from trunkline.bus.keys import Keys, RouterKeys
from trunkline.bus.router import BeatRule, RouterBus
from trunkline.embedded import Engines
from trunkline.embedded.ports import free_port
from trunkline.http.connections import HttpReply
from trunkline.routing import Allocation, PodHeartbeat, RegisteredPod
from trunkline.store.migrate import migrate
from trunkline.telephony.simulator.webhooks import Outgoing, Timeouts, WebhookClient

SCALE = float(os.environ.get("BENCH_SCALE", "1"))
PAIRS, SLICES = max(50, round(600 * SCALE)), 15
# Of rounds with the same pods, of which a server knows only one set.
SCRIPT_BLOCKS, BLOCK = max(2, round(12 * SCALE)), 25
TOGETHER = 8
CONCURRENCY = 32
BEAT_S = 5.0
PODS, MANY = 100, 10_000
RATIO_GOAL, SCRIPT_GOAL_US, GROWTH_MAX = 0.8, 100.0, 1.3
KEY = "a-key-for-benchmarks-only"
TIMEOUTS = Timeouts(5.0, 30.0)
STANDARD = '{"standard": {"type": "exclusive", "target": 1}}'
Run = Callable[[Iterable[Awaitable[object]]], Awaitable[None]]
TIERS = "#order=standard standard=e|1|1"


@dataclass(frozen=True, slots=True)
class Figures:
    pairs_per_s: float
    p50_ms: float
    p99_ms: float

    def rounded(self) -> dict[str, float]:
        return {name: round(getattr(self, name), 2) for name in self.__dataclass_fields__}


async def main() -> None:
    if SCALE != 1:
        print(f"at a scale of {SCALE:g} the figures say little", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as folder:
        async with Engines(Path(folder) / "data") as engines:
            await migrate(engines.database_url)
            scripts = await _scripts(engines.redis_url)
            with ExitStack() as stack:
                ours = stack.enter_context(_ours(engines, Path(folder)))
                await _make_table(engines.database_url)
                bare = [
                    stack.enter_context(_bare(engines, Path(folder), way)) for way in ("inserting", "shared")
                ]
                async with _beating(ours, PODS):
                    of_ours, of_inserting, of_shared = await _measure([ours, *bare])
    _report(of_ours, of_inserting, of_shared, scripts)


async def _make_table(database_url: str) -> None:
    conn = await asyncpg.connect(database_url)
    try:
        await conn.execute(TABLE)
    finally:
        await conn.close()


@asynccontextmanager
async def _beating(url: str, count: int) -> AsyncIterator[None]:
    """Pods that say that they are there, as the agent library does, and never have a call of their own."""
    client, boots = WebhookClient(), [uuid4().hex for _ in range(count)]
    sequence = itertools.count(1)

    async def beat() -> None:
        number = next(sequence)
        for n, boot in enumerate(boots):
            body = {
                "ip": "127.0.0.1",
                "port": 1,
                "base_url": "ws://127.0.0.1:1",
                "version": "1",
                "calls": [],
                "draining": False,
                "boot_id": boot,
                "sequence": number,
                "interval_s": BEAT_S,
            }
            await _post(client, f"{url}/api/v1/pods/pod-{n}/heartbeat", body)

    async def keep_beating() -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            await beat()

    await beat()
    task = asyncio.create_task(keep_beating(), name="heartbeats")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        client.close()


async def _register(redis_url: str, keys: RouterKeys, count: int) -> None:
    bus = connect(redis_url, Keys())
    rule = BeatRule(tiers=TIERS)
    for first in range(0, count, 500):
        numbers = range(first, min(first + 500, count))
        # As a pod that Postgres has just registered.
        beats = [
            (PodHeartbeat(f"pod-{n}", "boot", 1), RegisteredPod(n + 1, "standard", True)) for n in numbers
        ]
        pods = RouterBus(bus, keys)
        await asyncio.gather(*(router.heartbeat(pods, beat, rule, known) for beat, known in beats))
    await bus.close()


async def _scripts(redis_url: str) -> dict[str, float]:
    """Server time of a script, allocations and releases alike, as the server itself counts it."""
    bus = connect(redis_url, Keys())
    worlds = {count: RouterKeys(f"bench{count}") for count in (10, MANY)}
    for count, keys in worlds.items():
        await _register(redis_url, keys, count)
    found: dict[str, list[float]] = {}
    ways = (("", _together), ("alone_", _one_by_one))
    for _ in range(SCRIPT_BLOCKS):
        for (count, keys), (how, in_turn) in product(worlds.items(), ways):
            cost_us = await _script_us(bus, keys, in_turn)
            found.setdefault(f"script_{how}us_{count}_pods", []).append(cost_us)
    await bus.close()
    # The middle one: a moment in which the machine was taken away says nothing of the script.
    return {name: round(median(costs), 1) for name, costs in found.items()}


async def _script_us(bus: Bus, keys: RouterKeys, in_turn: Run) -> float:
    calls, pods = [f"call-{n}" for n in range(TOGETHER)], RouterBus(bus, keys)
    before = await _evalsha_us(bus)
    for _ in range(BLOCK):
        await in_turn(_allocated(pods, call) for call in calls)
        await in_turn(router.release(pods, call, by_pod="", ended_ttl_s=0) for call in calls)
    return (await _evalsha_us(bus) - before) / (2 * TOGETHER * BLOCK)


async def _allocated(bus: RouterBus, call: str) -> None:
    allocation_id = uuid5(NAMESPACE_OID, call)
    found = await router.allocate(
        bus, call, merchant_id="acme", allocation_id=allocation_id, lease_ttl_s=60, is_alone=True
    )
    assert isinstance(found, Allocation), found


async def _together(scripts: Iterable[Awaitable[object]]) -> None:
    await asyncio.gather(*scripts)


async def _one_by_one(scripts: Iterable[Awaitable[object]]) -> None:
    for script in scripts:
        await script


async def _evalsha_us(bus: Bus) -> float:
    client: Any = bus.client
    stats: dict[str, Any] = await client.info("commandstats")
    return float(stats.get("cmdstat_evalsha", {}).get("usec", 0))


async def _measure(urls: Sequence[str]) -> list[list[Figures]]:
    client = WebhookClient()
    slices: dict[str, list[Figures]] = {url: [] for url in urls}
    for n in range(1 + SLICES):
        for url in urls:
            figures = await _round(client, url, PAIRS, f"{n}")
            if n > 0:  # the first warms up
                slices[url].append(figures)
    client.close()
    return list(slices.values())


async def _round(client: WebhookClient, url: str, pairs: int, label: str) -> Figures:
    latencies: list[float] = []
    waiting = iter(range(pairs))

    async def hand() -> None:
        for number in waiting:
            call = f"{label}-{number}"
            for path in ("allocate", "release"):
                at = time.perf_counter()
                await _sent(client, f"{url}/api/v1/{path}", call)
                latencies.append(time.perf_counter() - at)

    began = time.perf_counter()
    await asyncio.gather(*(hand() for _ in range(CONCURRENCY)))
    took_s = time.perf_counter() - began
    latencies.sort()
    return Figures(pairs / took_s, 1000 * median(latencies), 1000 * latencies[int(len(latencies) * 0.99)])


async def _sent(client: WebhookClient, url: str, call: str) -> None:
    await _post(client, url, {"call_sid": call, "merchant_id": "acme"})


async def _post(client: WebhookClient, url: str, body: Mapping[str, object]) -> None:
    headers = (("Content-Type", "application/json"), ("Authorization", f"Bearer {KEY}"))
    answer = await client.send(Outgoing("POST", url, headers, json.dumps(body).encode()), TIMEOUTS)
    assert isinstance(answer, HttpReply), answer
    assert answer.status == 200, answer


def _typical(rounds: Sequence[Figures]) -> Figures:
    return Figures(*(median(getattr(one, name) for one in rounds) for name in Figures.__dataclass_fields__))


def _report(
    ours: Sequence[Figures],
    inserting: Sequence[Figures],
    shared: Sequence[Figures],
    scripts: dict[str, float],
) -> None:
    ratio = _ratio(ours, inserting)
    few_us, many_us = scripts["script_us_10_pods"], scripts[f"script_us_{MANY}_pods"]
    growth = many_us / few_us
    own = {"growth": round(growth, 2), "of_bare_without_the_insert": round(_ratio(ours, shared), 2)}
    finish(
        Report(
            "router",
            _typical(ours).rounded() | scripts | own,
            {
                "bare endpoint, one script and one insert": _typical(inserting).rounded(),
                "the same without the insert": _typical(shared).rounded(),
            },
            round(ratio, 2),
            f"at least {RATIO_GOAL:g} of the bare endpoint, scripts below {SCRIPT_GOAL_US:g} µs as under load, "
            f"and at most {GROWTH_MAX:g} times as dear with {MANY} pods as with 10",
            ratio >= RATIO_GOAL and max(few_us, many_us) < SCRIPT_GOAL_US and growth <= GROWTH_MAX,
        )
    )


def _ratio(ours: Sequence[Figures], theirs: Sequence[Figures]) -> float:
    """Neighbouring slices are compared, not the medians of all: both of a pair had the same machine."""
    return median(mine.pairs_per_s / peer.pairs_per_s for mine, peer in zip(ours, theirs, strict=True))


@contextmanager
def _ours(engines: Engines, folder: Path) -> Iterator[str]:
    """The role `router` as production runs it: everything on."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environ = {
        **os.environ,
        "DATABASE_URL": engines.database_url,
        "REDIS_URL": engines.redis_url,
        "TRUNKLINE_SECRET_KEY": "a-secret-key-for-benchmarks-only-0123456789",
        "TRUNKLINE_ADMIN_KEY": KEY,
        "TIER_CONFIG": STANDARD,
        "HTTP_PORT": str(port),
        "METRICS_PORT": str(free_port()),
    }
    trunkline = shutil.which("trunkline", path=str(Path(sys.executable).parent)) or "trunkline"
    with _child([trunkline, "serve", "--roles", "router"], environ, folder / "ours.log", f"{url}/ready"):
        yield url


@contextmanager
def _bare(engines: Engines, folder: Path, way: str) -> Iterator[str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environ = {
        **os.environ,
        "REDIS_URL": engines.redis_url,
        "DATABASE_URL": f"{engines.database_url}?synchronous_commit=off",
    }
    command = [sys.executable, "-m", "bench._bare_router", str(port), way]
    with _child(command, environ, folder / f"{way}.log", f"{url}/ready"):
        yield url


if __name__ == "__main__":
    uvloop.run(main())
