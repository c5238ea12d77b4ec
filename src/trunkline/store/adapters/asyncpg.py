"""asyncpg: a connection, of a pool or not, inside `async with connection.transaction()`."""

from collections.abc import Callable
from typing import Any

from trunkline.store.adapters import refusal


class AsyncpgAdapter:
    def __init__(self, connection: Any):
        self._connection = connection

    async def call_async(self, function: str, text: str) -> str:
        if not self._connection.is_in_transaction():
            raise refusal("The connection of asyncpg", "async with connection.transaction(): …")
        answer: str = await self._connection.fetchval(f"SELECT {function}($1::text)", text)
        return answer

    def after_commit(self, then: Callable[[], None]) -> bool:
        return False


def adapt(tx: Any) -> AsyncpgAdapter:
    return AsyncpgAdapter(tx)
