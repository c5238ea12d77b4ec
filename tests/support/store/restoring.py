"""Backups of a test's database, and restores of them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import asyncpg


class Server:
    """Copies and swaps databases, as a restore does. Nobody may be connected to one that is copied."""

    def __init__(self, admin: "asyncpg.Connection[asyncpg.Record]", url: str):
        self._admin = admin
        self._name = urlsplit(url).path.removeprefix("/")

    @property
    def copy(self) -> str:
        return f"{self._name}_earlier"

    async def back_up(self) -> None:
        await self._admin.execute(f"CREATE DATABASE {self.copy} TEMPLATE {self._name} STRATEGY file_copy")

    async def restore(self) -> None:
        """Put the copy in the place of the database, under the feet of whoever is connected."""
        await self._admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", self._name
        )
        await self._admin.execute(f"DROP DATABASE {self._name} WITH (FORCE)")
        await self._admin.execute(f"ALTER DATABASE {self.copy} RENAME TO {self._name}")

    async def close(self) -> None:
        await self._admin.execute(f"DROP DATABASE IF EXISTS {self.copy} WITH (FORCE)")
        await self._admin.close()


@asynccontextmanager
async def open_server(database_url: str) -> AsyncIterator[Server]:
    admin = await asyncpg.connect(urlsplit(database_url)._replace(path="/postgres").geturl())
    server = Server(admin, database_url)
    try:
        yield server
    finally:
        await server.close()
