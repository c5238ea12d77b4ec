"""A transaction whose BEGIN travels while its owner still asks somebody else whether there is work for it.

Until its first statement it has no snapshot and holds no lock: it occupies a connection, and that is all. So its owner
waits for no other connection meanwhile, and drops what it does not need. What decides by the time asks for
clock_timestamp(): now() is the time of BEGIN.
"""

import asyncio
from contextlib import AsyncExitStack
from types import TracebackType

from trunkline.store.database import CANNOT_CONNECT, Connection, Database


class EarlyTransaction:
    """As `Database.transaction()`, begun when it is made. Entered once, or dropped; to drop it then does nothing."""

    def __init__(self, database: Database):
        self._stack = AsyncExitStack()
        self._begun = asyncio.create_task(self._begin(database), name="begin")

    async def __aenter__(self) -> Connection:
        return await self._begun

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def drop(self) -> None:
        """End it; nothing was done in it. What Postgres could not begin need not be ended, and is no failure."""
        try:
            await self._begun
            await self._stack.aclose()
        except CANNOT_CONNECT:
            return

    async def _begin(self, database: Database) -> Connection:
        return await self._stack.enter_async_context(database.transaction())
