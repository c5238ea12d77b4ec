"""Engines, nginx and a fork server, started once; for every run a platform of its own on a fresh database.

    async with Machine.open(folder) as machine:
        async with machine.world(plan) as world:
            world.kill("dispatcher-1")

Two processes of each role. Those numbered 2 reach Postgres and Valkey through proxies, so that the way of half an
installation can be cut. A process that ends is started again, as whoever runs an installation would do. The carriers
are in the test's own process, which nobody kills; pods and the application are processes.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from tests.support.agent.pod_records import PodLife
from tests.support.api import deployed_nginx
from tests.support.chaos import tenancy
from tests.support.chaos.plan import Plan
from tests.support.chaos.tenancy import Tenancy
from tests.support.crashpoints import crash_environment
from tests.support.embedded.machines import Machines, open_engines
from tests.support.faults import surroundings
from tests.support.faults.proxy import TcpProxy
from tests.support.fork_server import ForkServer, RoleProcess
from tests.support.hurry import AWAY
from tests.support.store import server_clock
from tests.support.waiting import eventually
from tests.support.world import ADMIN_KEY, SECRET_KEY
from trunkline.bus.connection import Bus
from trunkline.bus.connection import connect as connect_bus
from trunkline.bus.keys import Keys
from trunkline.client import TrunklineClient
from trunkline.crashpoint import STOP_AT, TESTING
from trunkline.embedded.ports import free_port
from trunkline.store.database import Database, connect
from trunkline.store.migrate import migrate
from trunkline.telephony.simulator import Simulator, SimulatorConfig
from trunkline.telephony.simulator.behaviour import Behaviour

ROLES = ("api", "dispatcher", "mailbox", "jobs", "router", "control")
EACH = 2
PROCESSES = tuple(f"{role}-{n}" for role in ROLES for n in range(1, EACH + 1))
APPLICATIONS = ("application-1", "application-2")
SERVED = ("api", "router")
# One process hosts many pods, and three have one each.
TOGETHER, ALONE = 9, 3
CARRIER_HOST = "carrier.test"
# A call rings for 0.05 to 0.2 s and lasts one to three.
TIME_SCALE = 0.05
PEOPLE = Behaviour(
    answer=0.75, busy=0.1, no_answer=0.1, failed=0.05, ring_s=(1, 4), talk_s=(20, 60), silence_s=(4.0, 8.0)
)
BACK_AFTER_S = 0.3
DISK_MB = 1500
READY_LIMIT_S = 40.0
# Horizons in which faults are noticed and healed, shortened so that a run of half a minute has several of each.
HORIZONS: Mapping[str, str] = {
    "GRANT_TTL": "2s",
    "CARRIER_REQUEST_TIMEOUT": "1s",
    "RING_TIMEOUT": "10s",
    "CALL_TIME_LIMIT": "30s",
    "MAILBOX_LEASE": "3s",
    "JOB_LEASE": "3s",
    "JOB_LEASE_RENEW_INTERVAL": "1s",
    "LEADER_ELECTION_DURATION": "4s",
    "LEADER_ELECTION_RENEW_DEADLINE": "2.5s",
    "LEADER_ELECTION_RETRY_PERIOD": "0.7s",
    "VOICE_AGENT_HEARTBEAT_TTL": "4s",
    "CLEANUP_INTERVAL": "2s",
    "RECONCILE_INTERVAL": "3s",
    "ROUTER_HOLD_MAX": "3s",
    "SCHEDULER_POLL_INTERVAL_SECONDS": "1s",
    "RETRY_BASE_DELAY_SECONDS": "1s",
    "HTTP_SHUTDOWN_TIMEOUT": "5s",
}


@dataclass
class Pods:
    """A process of pods: its log says when each lived and which calls it had."""

    names: Sequence[str]
    log: Path
    process: RoleProcess
    killed_s: float | None = None


class CarrierGate:
    """The way to the carriers: a proxy at the address that the platform knows."""

    def __init__(self, port: int, carrier: Simulator):
        self.proxy = TcpProxy("127.0.0.1", carrier.port)
        self.proxy.port = port

    async def open(self) -> None:
        await self.proxy.accept()

    async def close(self) -> None:
        self.proxy.refuse()
        self.proxy.cut()


@dataclass
class World:
    """One installation, for one run."""

    plan: Plan
    machine: "Machine"
    folder: Path
    database_url: str
    domain: str
    carrier: Simulator
    carrier_gate: CarrierGate
    client: TrunklineClient
    tenancy: Tenancy
    to_postgres: TcpProxy
    to_valkey: TcpProxy
    database: Database
    bus: Bus
    processes: dict[str, RoleProcess] = field(default_factory=dict)
    pods: list[Pods] = field(default_factory=list)
    kept_down: set[str] = field(default_factory=set)
    # Statuses that forged webhooks were answered with.
    forged: list[int] = field(default_factory=list)
    # An engine that is being started cannot be killed as well: its starter would take it for a failure.
    valkey_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    postgres_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def engines(self) -> Machines:
        return self.machine.engines

    @property
    def url(self) -> str:
        return self.machine.url

    # Processes

    def start(self, name: str, *, crash_at: str | None = None, stop_at: str | None = None) -> None:
        """`crash_at`, `stop_at`: the named point at which it ends or stops itself."""
        environment = self._environment(name)
        if crash_at is not None:
            environment = crash_environment(crash_at, 1, base=environment)
        elif stop_at is not None:
            environment |= {TESTING: "1", STOP_AT: f"{stop_at}:1"}
        self.kept_down.discard(name)
        log = self.folder / f"{name}.log"
        server = self.machine.fork_server
        if name in APPLICATIONS:
            program = "tests.support.chaos.application:main"
            arguments = [environment["DATABASE_URL"], environment["REDIS_URL"], f"{self.domain}-app"]
            self.processes[name] = server.start_program(program, arguments, environment, log)
        else:
            self.processes[name] = server.start(name.rpartition("-")[0], environment, log)

    def kill(self, name: str, *, keep_down: bool = False) -> None:
        """With -9. It comes back by itself unless it is kept down."""
        if keep_down:
            self.kept_down.add(name)
        self.processes[name].kill()

    async def supervise(self) -> None:
        """Start again whatever ended, for as long as this runs."""
        while True:
            for name, process in list(self.processes.items()):
                if not process.is_running and name not in self.kept_down:
                    self.start(name)
            await asyncio.sleep(BACK_AFTER_S)

    # Pods

    def start_pods(self, names: Sequence[str]) -> Pods:
        no = len(self.pods)
        log = self.folder / f"pods-{no}.jsonl"
        process = self.machine.fork_server.start_program(
            "tests.support.agent.pod_process:main",
            [self.url, ADMIN_KEY, "1", str(log), *names],
            {"PATH": os.environ.get("PATH", os.defpath)},
            self.folder / f"pods-{no}.log",
        )
        pods = Pods(list(names), log, process)
        self.pods.append(pods)
        return pods

    @property
    def live_pods(self) -> list[Pods]:
        return [pods for pods in self.pods if pods.process.is_running]

    def kill_pods(self, pods: Pods) -> None:
        pods.killed_s = time.time()
        pods.process.kill()

    def pod_lives(self) -> list[PodLife]:
        return [PodLife(pods.log, pods.killed_s) for pods in self.pods]

    # What Postgres says

    async def rows(self, sql: str, *args: object) -> list[Any]:
        async with self.database.connection() as conn:
            return list(await conn.fetch(sql, *args))

    async def value(self, sql: str, *args: object) -> Any:
        async with self.database.connection() as conn:
            return await conn.fetchval(sql, *args)

    async def answers(self, sql: str, *args: object) -> Any:
        """The same, or None while Postgres is away."""
        try:
            return await self.value(sql, *args)
        except AWAY:
            return None

    # Surroundings

    def surroundings(self, name: str) -> Path:
        return self.folder / f"{name}.surroundings"

    def _environment(self, name: str) -> dict[str, str]:
        path = self.surroundings(name)
        if not path.exists():
            surroundings.write(path)
        is_cut = name.endswith("-2")
        return self.machine.environment(
            name,
            self.domain,
            self.to_postgres.url if is_cut else self.database_url,
            self.to_valkey.url if is_cut else self.engines.redis_url,
        ) | {surroundings.SURROUNDINGS: str(path)}


@dataclass
class Machine:
    """What all runs share."""

    engines: Machines
    fork_server: ForkServer
    folder: Path
    address: str
    ports: Mapping[str, int]
    carrier_port: int
    tenancy: Tenancy | None = None
    worlds: int = 0

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def carrier_url(self) -> str:
        return f"http://{CARRIER_HOST}:{self.carrier_port}"

    def database_url(self, name: str) -> str:
        return urlsplit(self.engines.database_url)._replace(path=f"/{name}").geturl()

    def environment(self, name: str, domain: str, database_url: str, redis_url: str) -> dict[str, str]:
        """Of one process of the platform."""
        return {
            **HORIZONS,
            "PATH": os.environ.get("PATH", os.defpath),
            "DATABASE_URL": database_url,
            "REDIS_URL": redis_url,
            "DATABASE_POOL_SIZE": "4",
            "TRUNKLINE_DOMAIN": domain,
            "ROUTER_KEY_PREFIX": f"{domain}-voice",
            "HTTP_PORT": str(self.ports.get(name, 0)),
            "METRICS_PORT": "0",
            "PUBLIC_BASE_URL": self.url,
            "VOICE_AGENT_BASE_URL": f"ws://{self.address}",
            "TRUNKLINE_SECRET_KEY": SECRET_KEY,
            "TRUNKLINE_ADMIN_KEY": ADMIN_KEY,
            "RESTORE_GUARD": "witness",
            "LOG_FORMAT": "json",
            "POD_NAME": name,
        }

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: Path) -> "AsyncIterator[Machine]":
        async with AsyncExitStack() as stack:
            place = stack.enter_context(_file_system(folder / "engines"))
            engines = await stack.enter_async_context(open_engines(place))
            fork_server = ForkServer()
            stack.callback(fork_server.close)
            ports = {name: free_port() for name in PROCESSES}
            address = await stack.enter_async_context(
                deployed_nginx.serving(
                    [*_urls(ports, "api")], [*_urls(ports, "router")], ADMIN_KEY, folder / "nginx"
                )
            )
            machine = cls(engines, fork_server, folder, address, ports, free_port())
            await machine._enter_tenants()
            yield machine

    @asynccontextmanager
    async def world(self, plan: Plan) -> AsyncIterator[World]:
        """Everything runs when this returns; nothing is left when it ends."""
        self.worlds += 1
        name = f"run_{self.worlds}"
        template = "settable" if plan.sets_engine_clock else "template_tenants"
        await self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        try:
            async with self._world(plan, name, self.database_url(name)) as world:
                yield world
        finally:
            await self._execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    @asynccontextmanager
    async def _world(self, plan: Plan, name: str, database_url: str) -> AsyncIterator[World]:
        async with AsyncExitStack() as stack:
            folder = self.folder / name
            folder.mkdir()
            config = SimulatorConfig(
                seed=plan.seed,
                time_scale=TIME_SCALE,
                behaviour=PEOPLE,
                faults=plan.carrier_faults(),
                patience_s=6.0,
            )
            carrier = await stack.enter_async_context(Simulator(config))
            assert self.tenancy is not None
            carrier.flows[tenancy.EXOTEL_FLOW] = self.tenancy.urls["exotel"]["answer"]
            carrier.vapi_numbers |= {e164 for e164, (by, _, _) in tenancy.NUMBERS.items() if by == "vapi"}
            gate = CarrierGate(self.carrier_port, carrier)
            await gate.open()
            stack.push_async_callback(gate.close)
            to_postgres = await stack.enter_async_context(TcpProxy.before(database_url))
            to_valkey = await stack.enter_async_context(TcpProxy.before(self.engines.redis_url))
            database = await connect(database_url, pool_size=4)
            stack.push_async_callback(database.close)
            bus = connect_bus(self.engines.redis_url, Keys(name))
            stack.push_async_callback(bus.close)
            client = await stack.enter_async_context(TrunklineClient(self.url, ADMIN_KEY, timeout_s=5))
            world = World(
                plan,
                self,
                folder,
                database_url,
                name,
                carrier,
                gate,
                client,
                self.tenancy,
                to_postgres,
                to_valkey,
                database,
                bus,
            )
            stack.push_async_callback(_end, world)
            for each in (*PROCESSES, *APPLICATIONS):
                world.start(each)
            supervisor = asyncio.create_task(world.supervise(), name="supervisor")
            stack.push_async_callback(_cancelled, supervisor)
            for port in self.ports.values():
                await listening(port)
            world.start_pods([f"pod-{n}" for n in range(TOGETHER)])
            for n in range(TOGETHER, TOGETHER + ALONE):
                world.start_pods([f"pod-{n}"])
            yield world

    async def _enter_tenants(self) -> None:
        """The databases that every run copies one of."""
        await self._execute('CREATE DATABASE "template_tenants"')
        url = self.database_url("template_tenants")
        await migrate(url)
        environment = self.environment("api-1", "template", url, self.engines.redis_url)
        process = self.fork_server.start("api", environment, self.folder / "tenants.log")
        port = self.ports["api-1"]
        try:
            await listening(port)
            self.tenancy = await tenancy.enter(
                f"http://127.0.0.1:{port}", url, self.engines.redis_url, self.carrier_url
            )
        finally:
            process.kill()
            await process.ended()
        await self._execute('CREATE DATABASE "settable" TEMPLATE "template_tenants"')
        await server_clock.make_settable(self.database_url("settable"))

    async def _execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self.engines.database_url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


def _urls(ports: Mapping[str, int], role: str) -> Iterator[str]:
    return (f"http://127.0.0.1:{port}" for name, port in ports.items() if name.startswith(role))


@contextmanager
def _file_system(folder: Path) -> Iterator[Path]:
    """One of its own in memory, so that it can be full without harming anybody. Needs root."""
    folder.mkdir()
    if os.geteuid() != 0:
        yield folder
        return
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=755", "chaos", str(folder)], check=True
    )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def listening(port: int, *, timeout_s: float = READY_LIMIT_S) -> None:
    await eventually(lambda: _is_listening(port), timeout_s=timeout_s, what=f"port {port} is listened on")


async def _is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def _end(world: World) -> None:
    """Everything that runs for this world, at once: what counts is written down."""
    everyone = [*world.processes.values(), *(pods.process for pods in world.pods)]
    for process in everyone:
        process.signal(signal.SIGKILL)
    for process in everyone:
        await process.ended()


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def remove(folder: Path) -> None:
    """What a run left, once nobody wants to read it any more."""
    shutil.rmtree(folder, ignore_errors=True)
