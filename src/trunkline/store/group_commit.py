"""Group commit: concurrent requests share one transaction.

A request that comes while a group is being written waits for the next one, so a lone request does not wait, and under
load a transaction is shared by all that came while the last one ran.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import asyncpg

from trunkline.event_loop import OnDemandTask
from trunkline.in_time import in_time
from trunkline.store.database import UNAVAILABLE, Connection, Database

Item = TypeVar("Item")
Result = TypeVar("Result")

# A larger group would hold a connection for long; the others go with the next one.
GROUP_MAX = 64

Write = Callable[[Connection, Sequence[Item]], Awaitable[Sequence[Result]]]


class GroupCommit(Generic[Item, Result]):
    """`write` returns a result for each of its items, in their order, with one statement. A group that Postgres refuses
    is written one by one, so that no item fails because of another. `timeout_s` bounds a group, in a task of its own:
    the driver does not release a connection to a server that hangs. Items that waited behind such a group fail with
    it."""

    def __init__(self, database: Database, write: Write[Item, Result], timeout_s: float):
        self._database = database
        self._write = write
        self._timeout_s = timeout_s
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        # How many of those that wait are of a refused group.
        self._single = 0
        self._writer = OnDemandTask(self._write_waiting, "group commit")

    async def ask(self, item: Item) -> Result:
        """Raises what the statement raised. An item whose caller stops waiting is written all the same."""
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        self._writer.start()
        return await answer

    async def _write_waiting(self) -> None:
        while self._waiting:
            size = 1 if self._single else GROUP_MAX
            group, self._waiting = self._waiting[:size], self._waiting[size:]
            self._single = max(self._single - 1, 0)
            try:
                items = [item for item, _ in group]
                answers = await in_time(self._timeout_s, self._in_a_transaction(items))
            except asyncio.CancelledError:
                for _, answer in (*group, *self._waiting):
                    answer.cancel()
                raise
            except Exception as error:
                is_away = isinstance(error, UNAVAILABLE)
                if len(group) > 1 and isinstance(error, asyncpg.PostgresError) and not is_away:
                    self._waiting[:0], self._single = group, len(group)
                    continue
                if is_away:
                    group, self._waiting, self._single = [*group, *self._waiting], [], 0
                for _, answer in group:
                    if not answer.done():
                        answer.set_exception(error)
            else:
                for (_, answer), result in zip(group, answers, strict=True):
                    if not answer.done():
                        answer.set_result(result)

    async def _in_a_transaction(self, items: Sequence[Item]) -> Sequence[Result]:
        async with self._database.connection() as conn:
            return await self._write(conn, items)
