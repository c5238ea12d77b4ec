"""Warm connections: one that was just released goes to the next task, without a way through the pool.

Out of the driver's pool and back into it costs 30 µs of CPU (a proxy, two timers, a shielded task) with warm caches and
65 without, some 33 % of what a lone statement costs in all (docs/decisions/0052-fast-paths.md). So a few connections
stay out, as long as no task waits for one and their last use raised no error. The pool still opens,
counts, limits and closes them.
"""

import asyncio
from types import TracebackType
from typing import Any, TypeAlias

import asyncpg

from trunkline.errors import PoolEmpty
from trunkline.handlers import where

PooledConnection: TypeAlias = "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"

# Then it goes through the pool once, which closes connections that have served for long (50,000 statements).
TURNS_MAX = 1000
# The error of a task that gets no connection names this many of the tasks that hold one.
NAMED_MAX = 5


class WarmPool:
    """Hands out the connections of a pool, and retains at most `retained_max` of them between two users."""

    def __init__(
        self,
        pool: "asyncpg.Pool[asyncpg.Record]",
        *,
        retained_max: int,
        timeout_s: float,
        name: str = "trunkline",
    ):
        self._pool = pool
        self._name = name
        # The task that has each, and since when on the clock of the event loop. For the error of a task that gets none.
        self._in_use: dict[PooledConnection, tuple[asyncio.Task[Any] | None, float]] = {}
        self._retained_max = retained_max
        self._timeout_s = timeout_s
        # The one that was used last is the warmest: it is taken first.
        self._retained: list[tuple[PooledConnection, int]] = []
        self._waiting = 0
        self._is_closed = False

    def acquire(self) -> "Acquired":
        return Acquired(self)

    async def take(self) -> tuple[PooledConnection, int]:
        """A connection, and how often it was retained since it left the pool."""
        while self._retained:
            connection, turns = self._retained.pop()
            if _is_sound(connection):
                self._in_use[connection] = (asyncio.current_task(), asyncio.get_running_loop().time())
                return connection, turns
            await self._pool.release(connection)
        self._waiting += 1
        try:
            connection = await self._pool.acquire(timeout=self._timeout_s)
        except TimeoutError as error:
            if len(self._in_use) < self._pool.get_max_size():
                raise  # not all are in use: Postgres lets us have no more
            raise PoolEmpty(self._empty()) from error
        finally:
            self._waiting -= 1
        self._in_use[connection] = (asyncio.current_task(), asyncio.get_running_loop().time())
        return connection, 0

    def _empty(self) -> str:
        """The pool, and the tasks that have its connections: longest first."""
        now_s = asyncio.get_running_loop().time()
        longest = sorted(self._in_use.values(), key=lambda use: use[1])[:NAMED_MAX]
        holders = "; ".join(
            f"{task.get_name() if task else 'no task'} for {now_s - since_s:.1f} s"
            + (f" at {where(task)}" if task and not task.done() else "")
            for task, since_s in longest
        )
        return (
            f"None of the {self._pool.get_max_size()} connections of the pool {self._name!r} came free within "
            f"{self._timeout_s:g} s. Longest held: {holders}"
        )

    def retain(self, connection: PooledConnection, turns: int) -> bool:
        """False if it has to go back into the pool: a task waits there, or its state has changed."""
        self._in_use.pop(connection, None)
        is_wanted = len(self._retained) < self._retained_max and not self._waiting and not self._is_closed
        if not is_wanted or turns >= TURNS_MAX or not _is_sound(connection):
            return False
        self._retained.append((connection, turns + 1))
        return True

    async def release(self, connection: PooledConnection) -> None:
        self._in_use.pop(connection, None)
        await self._pool.release(connection)

    def take_away(self, connection: PooledConnection) -> None:
        """End a connection whose task will not release it. The pool may open another at once."""
        if self._in_use.pop(connection, None) is not None:
            connection.terminate()

    async def close(self) -> None:
        """Retain none from now on. The pool can be closed when those in use are back."""
        self._is_closed = True
        while self._retained:
            await self._pool.release(self._retained.pop()[0])

    def get_size(self) -> int:
        return self._pool.get_size()

    def get_max_size(self) -> int:
        return self._pool.get_max_size()

    def get_idle_size(self) -> int:
        return self._pool.get_idle_size() + len(self._retained)


class Acquired:
    """A connection for as long as its block lasts. After an error the pool checks it before another task gets it."""

    __slots__ = ("_connection", "_pool", "_turns")

    def __init__(self, pool: WarmPool):
        self._pool = pool

    async def __aenter__(self) -> PooledConnection:
        self._connection, self._turns = await self._pool.take()
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None or not self._pool.retain(self._connection, self._turns):
            await self._pool.release(self._connection)


def _is_sound(connection: PooledConnection) -> bool:
    """Open, and outside a transaction. A broken one returns to the pool by itself."""
    try:
        return not connection.is_closed() and not connection.is_in_transaction()
    except asyncpg.InterfaceError:
        return False
