"""SQLAlchemy 2: a session or a connection, of asyncio or not, over any driver of Postgres.

Its first statement begins a transaction by itself, so a function of ours goes through SQLAlchemy and never past it: the
driver's own connection is in no transaction until then, and would commit a statement at once.
"""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Engine, TextClause, event, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from trunkline.errors import NotInTransaction
from trunkline.store.adapters import refusal

# The key of a session's callbacks for its commit.
_WAITING = "trunkline.after_commit"


class SyncSqlalchemyAdapter:
    def __init__(self, handle: Session | Connection):
        self._handle = handle

    def call(self, function: str, words: str) -> str:
        connection = self._handle
        if isinstance(connection, Session):
            _check_begun(connection)
            connection = connection.connection()
        _check(connection)
        answer: str = connection.execute(_statement(function), {"words": words}).scalar_one()
        return answer

    def after_commit(self, then: Callable[[], None]) -> bool:
        return _call_after_commit(self._handle, then)


class AsyncSqlalchemyAdapter:
    def __init__(self, handle: AsyncSession | AsyncConnection):
        self._handle = handle

    async def call_async(self, function: str, words: str) -> str:
        connection = self._handle
        if isinstance(connection, AsyncSession):
            _check_begun(connection.sync_session)
            connection = await connection.connection()
        _check(connection.sync_connection)
        answer: str = (await connection.execute(_statement(function), {"words": words})).scalar_one()
        return answer

    def after_commit(self, then: Callable[[], None]) -> bool:
        handle = self._handle
        return _call_after_commit(handle.sync_session if isinstance(handle, AsyncSession) else None, then)


def adapt(tx: Any) -> SyncSqlalchemyAdapter | AsyncSqlalchemyAdapter:
    match tx:
        case scoped_session() | async_scoped_session():
            return adapt(tx())
        case Session() | Connection():
            return SyncSqlalchemyAdapter(tx)
        case AsyncSession() | AsyncConnection():
            return AsyncSqlalchemyAdapter(tx)
        case Engine() | AsyncEngine():
            raise refusal("An engine of SQLAlchemy", "with engine.begin() as connection: …")
    raise NotInTransaction(f"Of SQLAlchemy give a session or a connection, not a {type(tx).__name__}.")


def _statement(function: str) -> TextClause:
    return text(f"SELECT {function.replace(':', chr(92) + ':')}(CAST(:words AS text))")


def _check_begun(session: Session) -> None:
    if not session.autobegin and not session.in_transaction():
        raise refusal("The session of SQLAlchemy", "with session.begin(): …")


def _check(connection: Connection | None) -> None:
    if connection is None or connection.dialect.name != "postgresql":
        raise NotInTransaction("The connection of SQLAlchemy is closed, or not one to Postgres.")
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise refusal(
            "The connection of SQLAlchemy has the isolation level AUTOCOMMIT and", "use another level for it"
        )


def _call_after_commit(handle: Session | Connection | None, then: Callable[[], None]) -> bool:
    if not isinstance(handle, Session):
        return False
    handle.info.setdefault(_WAITING, []).append(then)
    if not event.contains(handle, "after_commit", _committed):
        event.listen(handle, "after_commit", _committed)
        event.listen(handle, "after_rollback", _rolled_back)
    return True


def _committed(session: Session) -> None:
    # Also called when a savepoint is released, which commits nothing yet.
    if session.in_nested_transaction():
        return
    for then in session.info.pop(_WAITING, ()):
        then()


def _rolled_back(session: Session) -> None:
    # After the rollback of a savepoint the earlier callbacks stay. A needless wakeup costs one poll.
    if not session.in_nested_transaction():
        session.info.pop(_WAITING, None)
