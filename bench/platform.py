"""The platform as production runs it, on this machine: roles as processes, the engines, carrier and pods as processes.

Every benchmark of calls stands on it. What happened is read from the carrier's ledger and the pods' records, and what
it cost from the processes' own CPU time: ours, Postgres, Valkey, the pods and the simulated carrier apart.

    BENCH_SCALE=0.1   a tenth of the leads, to see that a benchmark runs; its figures then say little
    BENCH_ROLES       roles by process, `api,router;dispatcher,mailbox,jobs,control` unless told otherwise
    BENCH_SOURCE      the `src` of another checkout: its platform and its pods are measured instead of ours
"""

import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeVar

import aiohttp
import asyncpg
import msgspec
import psutil
from redis.asyncio import Redis

from bench._usage import Meter
from bench.startup import wait_ready
from trunkline.client import TrunklineClient
from trunkline.embedded import Engines
from trunkline.embedded.ports import free_port
from trunkline.telephony.simulator.answered_calls import AnsweredCall
from trunkline.telephony.simulator.behaviour import Behaviour
from trunkline.telephony.simulator.config import ACCOUNTS, SimulatedAccount, SimulatorConfig
from trunkline.telephony.simulator.ledger import Dial

SCALE = float(os.environ.get("BENCH_SCALE", "1"))
ROLES = os.environ.get("BENCH_ROLES", "api,router;dispatcher,mailbox,jobs,control").split(";")
ROOT = Path(__file__).parent.parent
SOURCE = Path(os.environ.get("BENCH_SOURCE", ROOT / "src")).resolve()
# Every call is answered, and with a time scale of 0.05 lasts some 0.4 s.
EVERYBODY_ANSWERS = Behaviour(answer=1.0, busy=0.0, no_answer=0.0, failed=0.0, talk_s=(2.0, 2.0))
# A database of its own: whoever looks at its statistics from another one adds nothing to them.
DATABASE = "bench"
ADMIN_KEY = "an-admin-key-for-benchmarks-only"
SECRET_KEY = "a-secret-key-for-benchmarks-only-0123456789"
STOP_LIMIT_S = 40.0
LEDGER_PAGE = 10_000

T = TypeVar("T")
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
    url: str
    carrier_url: str
    pods_url: str
    logs: Path

    async def served(self) -> dict[str, float]:
        """Calls that an agent took, and when: as the pods themselves recorded it, in seconds since 1970."""
        zero_s = time.time() - time.monotonic()
        async with aiohttp.ClientSession() as session, session.get(f"{self.pods_url}/records") as answer:
            records = await answer.json()
        return {record["call_sid"]: zero_s + record["began_s"] for record in reversed(records["calls"])}

    async def dials(self, after: int = 0) -> list[Dial]:
        """The carrier's ledger: what was truly dialled, in order."""
        return await dials_of(self.carrier_url, after)

    async def valkey_mb(self) -> float:
        return float((await self.valkey.info("memory"))["used_memory"]) / 1e6


async def dials_of(carrier_url: str, after: int = 0) -> list[Dial]:
    """What was truly dialled, in order."""
    return [dial async for dial in _pages(f"{carrier_url}/ledger", "dials", Dial, after)]


async def answered_of(carrier_url: str) -> list[AnsweredCall]:
    """Everybody who answered, and everybody who rang us."""
    return [call async for call in _pages(f"{carrier_url}/ledger/answered", "answered", AnsweredCall, 0)]


async def _pages(url: str, name: str, shape: type[T], after: int) -> AsyncIterator[T]:
    position: int | None = after
    async with aiohttp.ClientSession() as session:
        while position is not None:
            async with session.get(url, params={"after": position, "limit": LEDGER_PAGE}) as answer:
                page = msgspec.json.decode(await answer.read(), type=dict[str, Any])
            for row in page[name]:
                yield msgspec.convert(row, shape)
            position = page["next"]


@asynccontextmanager
async def platform(
    *,
    time_scale: float,
    pods: int,
    people: Behaviour = EVERYBODY_ANSWERS,
    seed: int = 1,
    setup_s: float = 0.5,
) -> AsyncIterator[BenchPlatform]:
    """Everything, ready to dial, with so many pods for one call at a time each."""
    if SCALE != 1:
        print(f"at a scale of {SCALE:g} the figures say little", file=sys.stderr)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trunkline-bench-")))
        engines = await stack.enter_async_context(Engines(folder / "data"))
        database_url = await _make_database(engines)
        config = SimulatorConfig(seed=seed, time_scale=time_scale, behaviour=people, setup_s=setup_s)
        carrier_url, carrier = stack.enter_context(_carrier(folder, config))
        public_url = f"http://127.0.0.1:{(port := free_port())}"
        environ = _environ(database_url, engines.redis_url, carrier_url, public_url)
        # Callbacks go to the first process, which has the API.
        ports = [port, *(free_port() for _ in ROLES[1:])]
        ours = [
            stack.enter_context(_serve(roles, port, environ, folder))
            for roles, port in zip(ROLES, ports, strict=True)
        ]
        pods_url, agents = stack.enter_context(_pods(folder, public_url, pods, environ))
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
            "pods": [agents],
        }
        meter = Meter(groups, monitor, DATABASE)
        yield BenchPlatform(client, database, valkey, meter, public_url, carrier_url, pods_url, folder)


async def _make_database(engines: Engines) -> str:
    admin = await asyncpg.connect(engines.database_url)
    try:
        await admin.execute(f"CREATE DATABASE {DATABASE}")
    finally:
        await admin.close()
    assert engines.postgres is not None
    url = engines.postgres.url(DATABASE)
    _migrate(url)
    return url


def _migrate(url: str) -> None:
    """By the platform that is measured: its tables are its own."""
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), "DATABASE_URL": url}
    subprocess.run(_trunkline("migrate"), env=environ, check=True, stdout=subprocess.DEVNULL)


def _environ(database_url: str, redis_url: str, carrier_url: str, public_url: str) -> dict[str, str]:
    """Everything on, as by default: signatures, decisions, logs in JSON, metrics."""
    account = SimulatedAccount()
    return {
        **os.environ,
        "PYTHONPATH": f"{SOURCE}:{ROOT}",
        "TIER_CONFIG": '{"standard": {"type": "exclusive", "target": 1}}',
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
    place = {"HTTP_PORT": str(port), "METRICS_PORT": str(free_port())}
    command = _trunkline("serve", "--roles", roles)
    with (folder / f"{roles}.log").open("wb") as log, _child(command, {**environ, **place}, log) as process:
        wait_ready(f"http://127.0.0.1:{port}/ready", process)
        yield process


@contextmanager
def _carrier(folder: Path, config: SimulatorConfig) -> Iterator[tuple[str, psutil.Popen]]:
    """Always of this checkout: whoever is measured, the carrier is the same."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    # Nothing waits in its queue.
    accounts = tuple(dataclasses.replace(account, calls_per_s=100_000.0) for account in ACCOUNTS)
    config = dataclasses.replace(config, port=port, accounts=accounts)
    command = [sys.executable, "-m", "bench._carrier", msgspec.json.encode(config).decode()]
    environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    with (folder / "carrier.log").open("wb") as log, _child(command, environ, log) as process:
        wait_ready(f"{url}/ledger?limit=1", process)
        yield url, process


@contextmanager
def _pods(
    folder: Path, router_url: str, count: int, environ: Mapping[str, str]
) -> Iterator[tuple[str, psutil.Popen]]:
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "bench._pods", str(port), router_url, str(count)]
    with (folder / "pods.log").open("wb") as log, _child(command, environ, log) as process:
        _wait_for(folder / "pods.log", "registered", process)
        yield url, process


def _wait_for(log: Path, word: str, process: psutil.Popen) -> None:
    while process.poll() is None:
        if word in log.read_text(errors="replace"):
            return
        time.sleep(0.05)
    raise RuntimeError(f"it ended before it was ready: {log.read_text(errors='replace')[-2000:]}")


def _trunkline(*words: str) -> list[str]:
    """The command of the checkout that is measured, which an older one has under the same name."""
    return [sys.executable, "-c", "from trunkline.cli.main import main; main()", *words]


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
