"""Routers as processes of their own, that a test may kill or stop, and what must be so after one reconcile.

    async with open_routers(fork_server, database_url, redis_url, key_prefix, folder) as place:
        doomed = place.start("a", crash_at="router.after_allocate")
        …
        await place.leaks_nothing({"agent-0": ["call-1"], "agent-1": []})

Each process manages its pools once, when it begins to lead: a reconcile and a recovery later are an hour away.
"""

import os
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.bus.router_keys import RouterKeys
from tests.support.crashpoints import CRASH_POINTS, crash_environment
from tests.support.fork_server import ForkServer, RoleProcess
from tests.support.router.world import RouterWorld, StoredWorld
from tests.support.waiting import eventually
from tests.support.world import ADMIN_KEY, ALL_STANDARD, SECRET_KEY
from trunkline.bus import router as bus_router
from trunkline.bus.connection import connect as connect_bus
from trunkline.bus.keys import Keys
from trunkline.crashpoint import STOP_AT, TESTING
from trunkline.embedded.ports import free_port
from trunkline.router.config import RouterConfig
from trunkline.settings.tiers import parse_tiers
from trunkline.store import pods as pods_store
from trunkline.store import router as store
from trunkline.store.database import Database
from trunkline.store.database import connect as connect_database

Truth = Mapping[str, Collection[str]]


@dataclass
class Routers:
    world: StoredWorld
    database: Database
    url: str
    folder: Path
    _server: ForkServer
    _environment: Mapping[str, str]
    _session: aiohttp.ClientSession
    processes: dict[str, RoleProcess] = field(default_factory=dict)

    def start(
        self, name: str, *, crash_at: str = "", stop_at: str = "", nth: int = 1, **settings: str
    ) -> RoleProcess:
        environment = {**self._environment, "POD_NAME": name, **settings}
        if crash_at:
            environment = crash_environment(crash_at, nth, base=environment)
        if stop_at:
            assert stop_at in CRASH_POINTS
            environment |= {TESTING: "1", STOP_AT: f"{stop_at}:{nth}"}
        process = self._server.start("router", environment, self.folder / f"{name}.log")
        self.processes[name] = process
        return process

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        """One request; (0, None) if nobody answered it."""
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        try:
            async with self._session.request(
                method, f"{self.url}/api/v1{path}", json=body, headers=headers
            ) as response:
                return response.status, await response.json()
        except (aiohttp.ClientError, OSError):
            return 0, None

    async def insist(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        """As clients and pods do: again until somebody answers."""

        async def answered() -> tuple[int, Any] | None:
            status, answer = await self.ask(method, path, body)
            return (status, answer) if status else None

        return await eventually(answered, timeout_s=30, what=f"{method} {path} answered")

    def log_of(self, name: str) -> str:
        log = self.folder / f"{name}.log"
        return log.read_text(errors="replace") if log.exists() else ""

    async def leaks_nothing(self, truth: Truth, timeout_s: float = 20) -> None:
        """Until nothing contradicts the pods' own truth: which pods there are, and the calls that each holds."""
        found: list[str] = []

        async def is_whole() -> bool:
            found[:] = await leaks(self.world, self.database, truth)
            return not found

        try:
            await eventually(is_whole, timeout_s=timeout_s, what="nothing leaked")
        except AssertionError:
            tails = "\n".join(f"--- {name}\n{self.log_of(name)[-2000:]}" for name in self.processes)
            raise AssertionError("\n".join([*found, tails])) from None


async def leaks(world: RouterWorld, database: Database, truth: Truth) -> list[str]:
    """Every contradiction between the pods, Valkey and Postgres, as a line."""
    client, keys = world.client, world.keys
    found: list[str] = []
    pods = {view.pod_name: view for view in await bus_router.pods(world.router_bus, 0, 1000)}
    calls = {view.call_sid: view.pod_name for view in await bus_router.calls(world.router_bus, 0, 1000)}
    held = {call: pod for pod, its_calls in truth.items() for call in its_calls}
    if set(pods) != set(truth):
        found.append(f"pods are {sorted(pods)}, not {sorted(truth)}")
    if calls != held:
        found.append(f"calls have {calls}, not {held}")
    for name, view in pods.items():
        its_calls = set(truth.get(name, ()))
        free = await world.available(view.tier)
        is_shared = await client.type(keys.available(view.tier)) == "zset"
        right = free.get(name) == len(its_calls) if is_shared else (name in free) == (not its_calls)
        if not right or view.is_draining:
            found.append(f"{name} of {view.tier} with {its_calls} is {view.status}; free are {free}")
        if bool(await client.exists(keys.lease(name))) != bool(its_calls):
            found.append(f"the lease of {name} is wrong")
    found += await _strays(world, set(truth), set(held))
    async with database.connection() as conn:
        opened = {row.call: row.pod for row in await pods_store.live_rows(conn) if row.call}
        tiers = {pod.name: pod.tier for pod in await pods_store.pods(conn)}
        merchants = await store.merchants(conn)
    if opened != held:
        found.append(f"Postgres says {opened}, not {held}")
    if tiers != {name: view.tier for name, view in pods.items()}:
        found.append(f"the pods of Postgres are {tiers}, not { {n: v.tier for n, v in pods.items()} }")
    for key in (keys.merchant_config, keys.merchant_written):
        if await client.hgetall(key) != merchants:
            found.append(f"{key} is not {merchants}")
    return found


async def _strays(world: RouterWorld, pods: set[str], calls: set[str]) -> list[str]:
    """Keys and members that belong to nobody."""
    client, keys = world.client, world.keys
    wanted = {keys.call(call) for call in calls} | {keys.lease(pod) for pod in pods}
    wanted |= {keys.pod_calls(pod) for pod in pods}
    shapes = (keys.call("*"), keys.lease("*"), keys.pod_calls("*"))
    found = [key for shape in shapes async for key in client.scan_iter(match=shape) if key not in wanted]
    members = {*await client.zrange(keys.calls, 0, -1)}
    waiting = await client.zcard(keys.waiting)
    return [*found, *sorted(members - calls), *([f"{waiting} wait"] if waiting else [])]


@asynccontextmanager
async def open_routers(
    server: ForkServer, database_url: str, redis_url: str, key_prefix: str, folder: Path, **settings: str
) -> AsyncIterator[Routers]:
    """No process runs yet; none is left when it ends."""
    port = free_port(None)
    bus = connect_bus(redis_url, Keys(prefix=key_prefix))
    database = await connect_database(database_url, pool_size=2)
    environment = _environment(database_url, redis_url, key_prefix, port) | settings
    timeout = aiohttp.ClientTimeout(total=5)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        url = f"http://127.0.0.1:{port}"
        config = RouterConfig(tiers=parse_tiers(ALL_STANDARD))
        world = StoredWorld(bus, RouterKeys(key_prefix), database, config)
        place = Routers(world, database, url, folder, server, environment, session)
        try:
            yield place
        finally:
            for process in place.processes.values():
                process.kill()
            for process in place.processes.values():
                await process.ended()
            await bus.close()
            await database.close()


def _environment(database_url: str, redis_url: str, key_prefix: str, port: int) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "DATABASE_URL": database_url,
        "DATABASE_POOL_SIZE": "4",
        "REDIS_URL": redis_url,
        "TRUNKLINE_DOMAIN": key_prefix,
        "ROUTER_KEY_PREFIX": key_prefix,
        "TIER_CONFIG": ALL_STANDARD,
        "HTTP_PORT": str(port),
        "METRICS_PORT": "0",
        "TRUNKLINE_SECRET_KEY": SECRET_KEY,
        "TRUNKLINE_ADMIN_KEY": ADMIN_KEY,
        "HTTP_SHUTDOWN_TIMEOUT": "2s",
        # A leader that died is followed after a second; it renews ten times as often.
        "LEADER_ELECTION_DURATION": "1s",
        "LEADER_ELECTION_RENEW_DEADLINE": "700ms",
        "LEADER_ELECTION_RETRY_PERIOD": "100ms",
        "RECONCILE_INTERVAL": "1h",
        "CLEANUP_INTERVAL": "1h",
        "RESTORE_GUARD": "witness",
        "LOG_FORMAT": "console",
    }
