"""psycopg 3: a connection. Its first statement begins a transaction by itself, unless it is set to autocommit."""

from collections.abc import Callable
from typing import Any

from psycopg import AsyncConnection, Connection
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from trunkline.errors import NotInTransaction
from trunkline.store.adapters import refusal


class _PsycopgAdapter:
    def __init__(self, connection: Any):
        self._connection = connection

    def check(self) -> None:
        """A block of `connection.transaction()` is a transaction even with autocommit."""
        idle = self._connection.info.transaction_status == TransactionStatus.IDLE
        if idle and self._connection.autocommit:
            raise refusal(
                "The connection of psycopg is set to autocommit and", "with connection.transaction(): …"
            )

    def after_commit(self, then: Callable[[], None]) -> bool:
        return False


class SyncPsycopgAdapter(_PsycopgAdapter):
    def call(self, function: str, text: str) -> str:
        self.check()
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(_statement(function), (text,)).fetchone()
        answer: str = row[0]
        return answer


class AsyncPsycopgAdapter(_PsycopgAdapter):
    async def call_async(self, function: str, text: str) -> str:
        self.check()
        async with self._connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(_statement(function), (text,))
            row = await cursor.fetchone()
        answer: str = row[0]
        return answer


def adapt(tx: Any) -> _PsycopgAdapter:
    match tx:
        case AsyncConnection():
            return AsyncPsycopgAdapter(tx)
        case Connection():
            return SyncPsycopgAdapter(tx)
    raise NotInTransaction(f"Of psycopg give the connection, not its {type(tx).__name__}.")


def _statement(function: str) -> str:
    return f"SELECT {function.replace('%', '%%')}(%s::text)"
