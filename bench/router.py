"""How many calls a second get a pod and give it back, over HTTP, from one process? And what do the scripts cost?

Beside it, in the same run and on the same Valkey: a bare endpoint of the same framework and server that runs one script
with as many commands. Then the scripts alone, with 10 and with 10,000 pods: more pods must not make a call dearer.

    BENCH_SCALE=0.1   a tenth of the requests, to see that it runs; its figures then say little
"""

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from bench.report import Report, finish
from bench.startup import free_port
from bench.webhooks import _child
from trunkline.bus import router
from trunkline.bus.connection import Bus, connect
from trunkline.bus.keys import Keys
from trunkline.bus.router import Beat, BeatRule
from trunkline.bus.router_keys import RouterKeys
from trunkline.embedded import Engines
from trunkline.store.migrate import migrate
from trunkline.telephony.simulator.post import Answer, Outgoing, Poster, Timeouts

SCALE = float(os.environ.get("BENCH_SCALE", "1"))
PAIRS = max(200, round(9000 * SCALE))
SCRIPTS = max(200, round(3000 * SCALE))
ROUNDS = 3
CONCURRENCY = 32
PODS, MANY = 100, 10_000
RATIO_GOAL, SCRIPT_GOAL_US, GROWTH_MAX = 0.8, 100.0, 1.3
KEY = "a-key-for-benchmarks-only"
TIMEOUTS = Timeouts(5.0, 30.0)
STANDARD = '{"standard": {"type": "exclusive", "target": 1}}'
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
            scripts = {count: await _script_us(engines.redis_url, count) for count in (10, MANY)}
            with ExitStack() as stack:
                ours = stack.enter_context(_ours(engines, Path(folder)))
                bare = stack.enter_context(_bare(engines, Path(folder)))
                await _register(engines.redis_url, RouterKeys(), PODS)
                measured = await _measure(ours, bare)
    _report(*measured, scripts)


async def _register(redis_url: str, keys: RouterKeys, count: int) -> None:
    bus = connect(redis_url, Keys())
    rule = BeatRule(tiers=TIERS)
    for first in range(0, count, 500):
        beats = [Beat(f"pod-{n}", "boot", 1, (), False, {}) for n in range(first, min(first + 500, count))]
        await asyncio.gather(*(router.heartbeat(bus, keys, beat, rule) for beat in beats))
    await bus.close()


async def _script_us(redis_url: str, pods: int) -> dict[str, float]:
    """Server time of one allocation and of one release, as the server itself counts it."""
    keys = RouterKeys(f"bench{pods}")
    await _register(redis_url, keys, pods)
    bus = connect(redis_url, Keys())
    calls = [f"call-{n}" for n in range(min(8, pods))]
    found: dict[str, list[float]] = {"allocate": [], "release": []}
    for _ in range(SCRIPTS // len(calls)):
        before = await _evalsha_us(bus)
        for call in calls:
            await router.allocate(bus, keys, call, merchant_id="", allocation_id=call, lease_ttl_s=60)
        between = await _evalsha_us(bus)
        for call in calls:
            await router.release(bus, keys, call, by_pod="", ended_ttl_s=0)
        after = await _evalsha_us(bus)
        found["allocate"].append((between - before) / len(calls))
        found["release"].append((after - between) / len(calls))
    await bus.close()
    # The middle one: a batch in which the machine was taken away says nothing of the script.
    return {name: round(median(costs), 1) for name, costs in found.items()}


async def _evalsha_us(bus: Bus) -> float:
    client: Any = bus.client
    stats: dict[str, Any] = await client.info("commandstats")
    return float(stats.get("cmdstat_evalsha", {}).get("usec", 0))


async def _measure(ours: str, bare: str) -> tuple[Figures, Figures]:
    poster = Poster()
    rounds: dict[str, list[Figures]] = {"ours": [], "bare": []}
    for warm_up in (True, *(False for _ in range(ROUNDS))):
        for name, url in (("ours", ours), ("bare", bare)):
            size = PAIRS // 10 if warm_up else PAIRS // ROUNDS
            figures = await _round(poster, url, size, f"{name}-{len(rounds[name])}-{warm_up}")
            if not warm_up:
                rounds[name].append(figures)
                print(f"{name}: {figures.rounded()}", flush=True)
    poster.close()
    return _typical(rounds["ours"]), _typical(rounds["bare"])


async def _round(poster: Poster, url: str, pairs: int, label: str) -> Figures:
    latencies: list[float] = []
    waiting = iter(range(pairs))

    async def hand() -> None:
        for number in waiting:
            call = f"{label}-{number}"
            for path in ("allocate", "release"):
                at = time.perf_counter()
                await _sent(poster, f"{url}/api/v1/{path}", call)
                latencies.append(time.perf_counter() - at)

    began = time.perf_counter()
    await asyncio.gather(*(hand() for _ in range(CONCURRENCY)))
    took_s = time.perf_counter() - began
    latencies.sort()
    return Figures(pairs / took_s, 1000 * median(latencies), 1000 * latencies[int(len(latencies) * 0.99)])


async def _sent(poster: Poster, url: str, call: str) -> None:
    headers = (("Content-Type", "application/json"), ("Authorization", f"Bearer {KEY}"))
    body = json.dumps({"call_sid": call, "merchant_id": "acme"}).encode()
    answer = await poster.send(Outgoing("POST", url, headers, body), TIMEOUTS)
    assert isinstance(answer, Answer), answer
    assert answer.status == 200, answer


def _typical(rounds: Sequence[Figures]) -> Figures:
    return Figures(*(median(getattr(one, name) for one in rounds) for name in Figures.__dataclass_fields__))


def _report(ours: Figures, bare: Figures, scripts: dict[int, dict[str, float]]) -> None:
    ratio = ours.pairs_per_s / bare.pairs_per_s
    growth = max(scripts[MANY][name] / scripts[10][name] for name in scripts[10])
    dearest = max(value for each in scripts.values() for value in each.values())
    costs = {
        f"{name}_us_{pods}_pods": value for pods, each in scripts.items() for name, value in each.items()
    }
    finish(
        Report(
            "router",
            ours.rounded() | costs | {"growth": round(growth, 2)},
            {"bare endpoint, one script": bare.rounded()},
            round(ratio, 2),
            f"at least {RATIO_GOAL:g} of the bare endpoint, scripts below {SCRIPT_GOAL_US:g} µs and "
            f"at most {GROWTH_MAX:g} times as dear with {MANY} pods as with 10",
            ratio >= RATIO_GOAL and dearest < SCRIPT_GOAL_US and growth <= GROWTH_MAX,
        )
    )


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
def _bare(engines: Engines, folder: Path) -> Iterator[str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environ = {**os.environ, "REDIS_URL": engines.redis_url}
    command = [sys.executable, "-m", "bench._bare_router", str(port)]
    with _child(command, environ, folder / "bare.log", f"{url}/ready"):
        yield url


if __name__ == "__main__":
    uvloop.run(main())
