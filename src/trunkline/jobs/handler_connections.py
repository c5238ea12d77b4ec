"""The pool for handlers that open `jobs.transaction()`, apart from those of the application and of `submit`.

A handler may hold a transaction open for long: no type gets more than half of the pool, so that jobs of other types
still find a connection. An abandoned handler loses its connection with its slot: Postgres rolls its transaction back,
and the next run does not cost one more.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trunkline.errors import PoolEmpty
from trunkline.handlers import HandlerScope
from trunkline.jobs.outbox import JobTransaction, Outbox
from trunkline.store.database import Database

# One per concurrent job, up to this: Postgres allows 100 connections by default, for all its clients.
CONNECTIONS_MAX = 20
WAIT_MAX_S = 5.0


def size_for(running_max: int) -> int:
    return max(2, min(CONNECTIONS_MAX, running_max))


class HandlerConnections:
    def __init__(self, database: Database, size: int, *, wait_max_s: float = WAIT_MAX_S):
        self._database = database
        self._share = size // 2
        self._wait_max_s = wait_max_s
        self._free: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(self._share))

    @asynccontextmanager
    async def transaction(self, outbox: Outbox, scope: HandlerScope) -> AsyncIterator[JobTransaction]:
        """A transaction of this run. `PoolEmpty` if other runs of its type use all connections of the type."""
        free = self._free[scope.name]
        try:
            async with asyncio.timeout(self._wait_max_s):
                await free.acquire()
        except TimeoutError as error:
            raise PoolEmpty(
                f"Jobs of type {scope.name} hold {self._share} transactions open, the most that one type may, and "
                f"none ended within {self._wait_max_s:g} s."
            ) from error
        is_released = False

        def release() -> None:
            nonlocal is_released
            if not is_released:
                is_released = True
                free.release()

        try:
            with scope.holding(release):
                async with outbox.transaction(self._database) as work:
                    with scope.holding(work.tx.terminate):
                        yield work
        finally:
            release()
