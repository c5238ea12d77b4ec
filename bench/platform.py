# ruff: noqa: A005 (nobody here needs the standard library's module of that name)
"""The platform as production runs it, on this machine: roles as processes, the engines, the carrier as a process too.

Every benchmark of calls stands on it. What happened is read from the carrier's ledger, and what it cost from the
processes' own CPU time: ours, Postgres, Valkey and the simulated carrier apart.

    BENCH_SCALE=0.1   a tenth of the leads, to see that a benchmark runs; its figures then say little
    BENCH_ROLES       roles by process, `api,router;dispatcher,mailbox,jobs,control` unless told otherwise
"""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

import aiohttp
import asyncpg
import msgspec
import psutil
from redis.asyncio import Redis

from bench._usage import Meter
from bench.startup import free_port, wait_ready
from trunkline.client import TrunklineClient
from trunkline.embedded import Engines
from trunkline.store.migrate import migrate
from trunkline.telephony.simulator.config import SimulatedAccount
from trunkline.telephony.simulator.ledger import Dial

SCALE = float(os.environ.get("BENCH_SCALE", "1"))
ROLES = os.environ.get("BENCH_ROLES", "api,router;dispatcher,mailbox,jobs,control").split(";")
# A database of its own: whoever looks at its statistics from another one adds nothing to them.
DATABASE = "bench"
ADMIN_KEY = "an-admin-key-for-benchmarks-only"
SECRET_KEY = "a-secret-key-for-benchmarks-only-0123456789"
STOP_LIMIT_S = 40.0
LEDGER_PAGE = 10_000

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


def scaled(count: int, least: int = 1) -> int:
    return max(least, round(count * SCALE))


@dataclass(frozen=True, slots=True)
class BenchPlatform:
    client: TrunklineClient
    # For loading and for looking; it works in the platform's own database, so keep it still while transactions count.
    database: Connection
    valkey: "Redis"
    meter: Meter
    carrier_url: str
    logs: Path

    async def dials(self, after: int = 0) -> list[Dial]:
        """The carrier's ledger: what was truly dialled, in order."""
        return await dials_of(self.carrier_url, after)

    async def valkey_mb(self) -> float:
        return float((await self.valkey.info("memory"))["used_memory"]) / 1e6


class _Page(msgspec.Struct):
    dials: list[Dial]
    total: int
    next: int | None = None


async def dials_of(carrier_url: str, after: int = 0) -> list[Dial]:
    found: list[Dial] = []
    position: int | None = after
    async with aiohttp.ClientSession(carrier_url) as session:
        while position is not None:
            async with session.get("/ledger", params={"after": position, "limit": LEDGER_PAGE}) as answer:
                page = msgspec.json.decode(await answer.read(), type=_Page)
            found += page.dials
            position = page.next
    return found


@asynccontextmanager
async def platform(*, time_scale: float) -> AsyncIterator[BenchPlatform]:
    """Everything, ready to dial. Every call is answered: a time scale of 0.05 makes it last some 0.4 s."""
    if SCALE != 1:
        print(f"at a scale of {SCALE:g} the figures say little", file=sys.stderr)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trunkline-bench-")))
        engines = await stack.enter_async_context(Engines(folder / "data"))
        database_url = await _make_database(engines)
        carrier_url, carrier = stack.enter_context(_carrier(folder, time_scale))
        public_url = f"http://127.0.0.1:{(port := free_port())}"
        environ = _environ(database_url, engines.redis_url, carrier_url, public_url)
        # Callbacks go to the first process, which has the API.
        ports = [port, *(free_port() for _ in ROLES[1:])]
        ours = [
            stack.enter_context(_serve(roles, port, environ, folder))
            for roles, port in zip(ROLES, ports, strict=True)
        ]
        database = await asyncpg.connect(database_url)
        stack.push_async_callback(database.close)
        monitor = await asyncpg.connect(engines.database_url)
        stack.push_async_callback(monitor.close)
        valkey = Redis.from_url(engines.redis_url, decode_responses=True)
        stack.push_async_callback(valkey.aclose)
        client = await stack.enter_async_context(TrunklineClient(public_url, ADMIN_KEY))
        assert engines.postgres is not None
        assert engines.valkey is not None
        groups: dict[str, list[psutil.Process]] = {
            "ours": [*ours],
            "postgres": [psutil.Process(engines.postgres.pid)],
            "valkey": [psutil.Process(engines.valkey.pid)],
            "carrier": [carrier],
        }
        yield BenchPlatform(client, database, valkey, Meter(groups, monitor, DATABASE), carrier_url, folder)


async def _make_database(engines: Engines) -> str:
    admin = await asyncpg.connect(engines.database_url)
    try:
        await admin.execute(f"CREATE DATABASE {DATABASE}")
    finally:
        await admin.close()
    assert engines.postgres is not None
    url = engines.postgres.url(DATABASE)
    await migrate(url)
    return url


def _environ(database_url: str, redis_url: str, carrier_url: str, public_url: str) -> dict[str, str]:
    """Everything on, as by default: signatures, decisions, logs in JSON, metrics."""
    account = SimulatedAccount()
    return {
        **os.environ,
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "TRUNKLINE_SECRET_KEY": SECRET_KEY,
        "TRUNKLINE_ADMIN_KEY": ADMIN_KEY,
        "PUBLIC_BASE_URL": public_url,
        "TWILIO_BASE_URL": carrier_url,
        "TWILIO_ACCOUNT_SID": account.sid,
        "TWILIO_AUTH_TOKEN": account.auth_token,
        # The pace is kept, and never in the way.
        "TWILIO_CALLS_PER_SECOND": "10000",
    }


@contextmanager
def _serve(roles: str, port: int, environ: Mapping[str, str], folder: Path) -> Iterator[psutil.Popen]:
    trunkline = shutil.which("trunkline", path=str(Path(sys.executable).parent)) or "trunkline"
    place = {"HTTP_PORT": str(port), "METRICS_PORT": str(free_port())}
    command = [trunkline, "serve", "--roles", roles]
    with (folder / f"{roles}.log").open("wb") as log, _child(command, {**environ, **place}, log) as process:
        wait_ready(f"http://127.0.0.1:{port}/ready", process)
        yield process


@contextmanager
def _carrier(folder: Path, time_scale: float) -> Iterator[tuple[str, psutil.Popen]]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    options = {"--port": port, "--time-scale": time_scale, "--calls-per-s": 100_000}
    fates = {"--answer": 1, "--busy": 0, "--no-answer": 0, "--failed": 0}
    words = [str(word) for option in (options | fates).items() for word in option]
    command = [sys.executable, "-m", "trunkline.telephony.simulator", *words]
    with (folder / "carrier.log").open("wb") as log, _child(command, os.environ, log) as process:
        wait_ready(f"{url}/ledger?limit=1", process)
        yield url, process


@contextmanager
def _child(command: list[str], environ: Mapping[str, str], log: IO[bytes]) -> Iterator[psutil.Popen]:
    process = psutil.Popen(command, env=dict(environ), stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_LIMIT_S)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait()
