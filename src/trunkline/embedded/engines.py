"""Both engines on one data folder, as one context manager."""

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar

from trunkline.embedded.account import choose_account
from trunkline.embedded.binaries import find_binaries, reachable_binaries
from trunkline.embedded.folder import DataFolder
from trunkline.embedded.postgres import Postgres
from trunkline.embedded.server import Server
from trunkline.embedded.valkey import Valkey

S = TypeVar("S", bound=Server)


class Engines:
    """`async with Engines(Path(".trunkline")) as engines:` both serve, at `database_url` and `redis_url`.

    A URL that is given is used as it is, and its engine is not started. `durable=False` is for tests: a
    killed server still loses nothing, a dead machine may.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        durable: bool = True,
        database_url: str | None = None,
        redis_url: str | None = None,
    ) -> None:
        self.folder = DataFolder(data_dir)
        self.postgres: Postgres | None = None
        self.valkey: Valkey | None = None
        self._durable = durable
        self._given_database_url = database_url
        self._given_redis_url = redis_url

    @property
    def database_url(self) -> str:
        if self._given_database_url:
            return self._given_database_url
        assert self.postgres is not None, "opened"
        return self.postgres.url()

    @property
    def redis_url(self) -> str:
        if self._given_redis_url:
            return self._given_redis_url
        assert self.valkey is not None, "opened"
        return self.valkey.url

    async def __aenter__(self) -> "Engines":
        if self._given_database_url and self._given_redis_url:
            return self
        self.folder.take()
        try:
            await self._choose_servers()
            await _together(*(server.start() for server in self._servers()))
            # Only engines that this process started: configured URLs are not written to the file.
            urls = {
                "database_url": self.postgres and self.postgres.url(),
                "redis_url": self.valkey and self.valkey.url,
            }
            self.folder.announce(
                {"pid": os.getpid()}
                | {name: url for name, url in urls.items() if url}
                | {each.folder.name: {"port": each.port, "pid": each.pid} for each in self._servers()}
            )
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._close()

    async def failed(self) -> str:
        """Wait until an engine ends by itself. Returns its name."""
        watches = {asyncio.create_task(server.exited()): server.title for server in self._servers()}
        if not watches:
            await asyncio.Event().wait()
        try:
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
            return watches[done.pop()]
        finally:
            for watch in watches:
                watch.cancel()

    async def _choose_servers(self) -> None:
        account = choose_account(self.folder.postgres, self.folder.valkey)
        binaries = await reachable_binaries(find_binaries(), account)
        password = self.folder.password()

        def server(kind: type[S], folder: Path) -> S:
            return kind(
                folder,
                self.folder.logs / f"{folder.name}.log",
                account,
                binaries,
                password=password,
                port=self.folder.last_port(folder.name),
                durable=self._durable,
            )

        if not self._given_database_url:
            self.postgres = server(Postgres, self.folder.postgres)
        if not self._given_redis_url:
            self.valkey = server(Valkey, self.folder.valkey)

    def _servers(self) -> list[Server]:
        return [server for server in (self.postgres, self.valkey) if server is not None]

    async def _close(self) -> None:
        await _together(*(server.stop() for server in self._servers()))
        self.folder.leave()


async def _together(*steps: Coroutine[None, None, None]) -> None:
    """Run all to their ends, then raise the first error: a start must not be cancelled half-way."""
    results = await asyncio.gather(*steps, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
