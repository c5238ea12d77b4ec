"""The servers of one test session, for tests of any kind.

They run on a thread with an event loop of its own: a test's loop ends with the test, and a plain test has none.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import asyncpg

from trunkline.embedded import Engines

T = TypeVar("T")

MIGRATED = "migrated"


class Background:
    """An event loop on a thread. The servers are its children and end with it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-servers", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @contextmanager
    def opened(self, resource: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """An async context manager for synchronous code."""
        value = self.run(resource.__aenter__())
        try:
            yield value
        finally:
            self.run(resource.__aexit__(None, None, None))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Databases:
    """Makes a database in some 20 ms by copying one that is already migrated."""

    def __init__(self, background: Background, engines: Engines) -> None:
        self._background = background
        self._engines = engines
        self._admin: asyncpg.Connection[asyncpg.Record] = background.run(
            asyncpg.connect(engines.database_url)
        )
        self._made = 0
        self._has_template = False

    @contextmanager
    def fresh(self, *, migrated: bool) -> Iterator[str]:
        """The URL of a new database, which is dropped afterwards, also with open connections."""
        if migrated:
            self._make_template()
        self._made += 1
        name = f"test_{self._made}"
        template = MIGRATED if migrated else "template0"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        try:
            yield self._url(name)
        finally:
            self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    def close(self) -> None:
        self._background.run(self._admin.close())

    def _make_template(self) -> None:
        if self._has_template:
            return
        from trunkline.store.migrate import migrate

        self._execute(f"CREATE DATABASE {MIGRATED}")
        self._background.run(migrate(self._url(MIGRATED)))
        # A template cannot be copied while it has connections.
        self._execute(f"ALTER DATABASE {MIGRATED} ALLOW_CONNECTIONS false")
        self._has_template = True

    def _execute(self, statement: str) -> None:
        self._background.run(self._admin.execute(statement))

    def _url(self, name: str) -> str:
        return urlsplit(self._engines.database_url)._replace(path=f"/{name}").geturl()
