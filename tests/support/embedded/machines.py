"""Postgres and Valkey as machines that can be switched off, emptied and replaced. Healed means: the engine answers."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psutil

from tests.support.waiting import eventually
from trunkline.embedded import Engines
from trunkline.embedded.binaries import find_binaries, reachable_binaries
from trunkline.embedded.valkey import Valkey

# Twelve processes with their default pools, and who looks on.
CONNECTIONS_MAX = 400
REPLICATED_LIMIT_S = 20.0


class Machines:
    def __init__(self, engines: Engines, folder: Path):
        assert engines.valkey is not None, "opened"
        self._engines = engines
        self._folder = folder
        self._valkey = engines.valkey
        self._replicas: list[Valkey] = []
        # Where everybody finds it, whichever server it is.
        self.redis_url = engines.redis_url
        self.database_url = engines.database_url
        self._port = engines.valkey.port

    async def allow_connections(self) -> None:
        conn = await asyncpg.connect(self.database_url)
        try:
            await conn.execute(f"ALTER SYSTEM SET max_connections = {CONNECTIONS_MAX}")
        finally:
            await conn.close()
        postgres = self._postgres()
        await postgres.stop()
        await postgres.start()

    @property
    def folder(self) -> Path:
        return self._folder

    async def revive(self) -> None:
        """Start again whichever engine has ended by itself."""
        if not psutil.pid_exists(self.valkey_pid) or psutil.Process(self.valkey_pid).status() == "zombie":
            await self._valkey.exited()
            await self._valkey.start()
        if not psutil.pid_exists(self._postgres().pid):
            await self._postgres().exited()
            await self._postgres().start()

    # Postgres

    async def end_postgres(self, how: signal.Signals) -> None:
        """SIGINT is a fast shutdown, SIGQUIT an immediate one."""
        if how is signal.SIGKILL:
            await self.kill_postgres()
        else:
            os.kill(self._postgres().pid, how)
            await self._postgres().exited()

    async def kill_postgres(self) -> None:
        """With every process of it, so that no connection goes on."""
        root = psutil.Process(self._postgres().pid)
        for process in [root, *root.children(recursive=True)]:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        await self._postgres().exited()

    async def start_postgres(self) -> None:
        await self._postgres().start()

    # Valkey

    @property
    def valkey_pid(self) -> int:
        return self._valkey.pid

    def valkey_client(self) -> Any:
        return self._valkey.client()

    async def kill_valkey(self) -> None:
        os.kill(self._valkey.pid, signal.SIGKILL)
        await self._valkey.exited()

    async def start_valkey(self, *, is_empty: bool = False) -> None:
        if is_empty:
            for file in self._valkey.folder.iterdir():
                shutil.rmtree(file) if file.is_dir() else file.unlink()
        await self._valkey.start()

    async def flush_valkey(self) -> None:
        client: Any = self._valkey.client()
        try:
            await client.execute_command("FLUSHALL")
        finally:
            await client.aclose()

    async def fail_over(self, lacking_s: float) -> None:
        """A replica stops following, the primary takes writes for a while longer and dies, and the replica takes its
        place under the same address."""
        replica = await self._replica()
        client: Any = replica.client()
        try:
            await client.execute_command("REPLICAOF", "NO", "ONE")
            await asyncio.sleep(lacking_s)
            await self.kill_valkey()
            await client.execute_command("CONFIG", "SET", "port", self._port)
        finally:
            await client.aclose()
        replica._port = self._port
        self._valkey = replica

    async def stop_replicas(self) -> None:
        for replica in self._replicas:
            await replica.stop()

    async def _replica(self) -> Valkey:
        primary = self._valkey
        binaries = await reachable_binaries(find_binaries(), primary.account)
        password = self._engines.folder.password()
        place = self._folder / "data" / f"replica-{len(self._replicas)}"
        replica = Valkey(place, place.with_suffix(".log"), primary.account, binaries, password=password)
        await replica.start()
        self._replicas.append(replica)
        client: Any = replica.client()
        try:
            await client.execute_command("CONFIG", "SET", "masterauth", password)
            await client.execute_command("REPLICAOF", "127.0.0.1", self._port)

            async def is_following() -> bool:
                return bool((await client.info("replication")).get("master_link_status") == "up")

            await eventually(is_following, timeout_s=REPLICATED_LIMIT_S, what="the replica follows")
        finally:
            await client.aclose()
        return replica

    def _postgres(self) -> Any:
        assert self._engines.postgres is not None, "opened"
        return self._engines.postgres


@asynccontextmanager
async def open_engines(folder: Path) -> AsyncIterator[Machines]:
    async with Engines(folder / "data") as engines:
        machines = Machines(engines, folder)
        await machines.allow_connections()
        try:
            yield machines
        finally:
            await machines.stop_replicas()
