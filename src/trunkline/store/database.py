"""The pool of Postgres connections, and the ways to use it.

Safe behind a transaction pooler: no session state, no session advisory locks, no LISTEN here. With
`DATABASE_POOLER=transaction` statements are not prepared by name, and a single statement runs inside a transaction,
because the pooler may hand its Parse and its Bind to two different servers.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

import asyncpg
import msgspec
from asyncpg.pool import PoolConnectionProxy

from trunkline.errors import PoolEmpty, StoreUnavailable
from trunkline.store.sql import Area
from trunkline.store.warm_pool import WarmPool

T = TypeVar("T")
Connection: TypeAlias = (
    "asyncpg.pool.PoolConnectionProxy[asyncpg.Record] | asyncpg.Connection[asyncpg.Record]"
)

# The errors of a broken or restarting server. A statement that failed this way may have committed. InterfaceError is
# also the base of DataError, a value that Postgres cannot take: check for that one first.
UNAVAILABLE: tuple[type[BaseException], ...] = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InterfaceError,
    # The connection broke between two steps of one statement, and the driver lost its position.
    asyncpg.InternalClientError,
    asyncpg.TooManyConnectionsError,
)

# Beside an unreachable server: one that cannot serve this now. Sent again, the same statement may pass.
PASSING: tuple[type[BaseException], ...] = (
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.TransactionRollbackError,
    asyncpg.LockNotAvailableError,
    asyncpg.ReadOnlySQLTransactionError,
)

# Another transaction holds a row for longer than a statement waits for it.
ROW_HELD = asyncpg.LockNotAvailableError

# What can go wrong while connecting: all of that, a refused login, and an invalid URL.
CANNOT_CONNECT: tuple[type[BaseException], ...] = (*UNAVAILABLE, asyncpg.PostgresError, ValueError)

# The errors of a driver that prepares statements in sessions which a pooler shares between clients.
_OF_POOLERS = (asyncpg.DuplicatePreparedStatementError, asyncpg.InvalidSQLStatementNameError)

# Opening a connection takes 13 ms, with the lookup of its types. The first calls of a process do not wait for it.
OPENED_AT_ONCE = 4

# Sessions last as long as the process. A pooler refuses to pass this parameter on, whatever its clients sent before:
# without it a missing `behind_pooler` was found only when two clients met in one of its sessions.
LIVES_UNTIL_CLOSED = {"idle_session_timeout": "0"}

_SQL = Area("session")

_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder().decode


class Database:
    """A pool with a limit on everything: connections, waiting for one, and the time of one command."""

    def __init__(
        self,
        pool: "asyncpg.Pool[asyncpg.Record]",
        readers: "asyncpg.Pool[asyncpg.Record]",
        *,
        behind_pooler: bool,
        acquire_timeout_s: float,
        search_path: str | None = None,
        name: str = "trunkline",
    ):
        self.pool = pool
        # A session of our own has it from its start. In a pooler's session every transaction sets it.
        self._search_path = search_path if behind_pooler else None
        retained_max = min(OPENED_AT_ONCE, pool.get_max_size() - 1)
        self.warm_pool = WarmPool(pool, retained_max=retained_max, timeout_s=acquire_timeout_s, name=name)
        self._readers = readers
        self._reading = WarmPool(
            readers, retained_max=retained_max, timeout_s=acquire_timeout_s, name=f"{name} reading"
        )
        self._behind_pooler = behind_pooler

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """A connection for single statements, each its own transaction."""
        return self._in_one_piece() if self._behind_pooler else self.warm_pool.acquire()

    def reading(self) -> AbstractAsyncContextManager[Connection]:
        """The same for statements that only read: Postgres refuses any other. The sessions of these connections are
        read only from their start, so that it costs no statement; in a pooler's session the transaction sets it."""
        return self._in_one_piece(readonly=True) if self._behind_pooler else self._reading.acquire()

    @asynccontextmanager
    async def _in_one_piece(self, *, readonly: bool = False) -> AsyncIterator[Connection]:
        async with self.warm_pool.acquire() as connection, connection.transaction(readonly=readonly):
            await self._find_tables(connection)
            yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """One READ COMMITTED transaction, whatever the server's default: a count after a lock must see what the lock's
        last holder committed."""
        async with (
            self.warm_pool.acquire() as connection,
            connection.transaction(isolation="read_committed"),
        ):
            await self._find_tables(connection)
            yield connection

    def take_away(self, connection: Connection) -> None:
        """Close a connection that is in use: its open transaction is rolled back, and its user gets errors."""
        assert isinstance(connection, PoolConnectionProxy), "of a pool"
        self.warm_pool.take_away(connection)

    async def _find_tables(self, connection: Connection) -> None:
        if self._search_path is not None:
            await connection.execute(_SQL.use_path, self._search_path)

    async def close(self, timeout_s: float = 5.0) -> None:
        try:
            await self.warm_pool.close()
            await self._reading.close()
            await asyncio.wait_for(asyncio.gather(self.pool.close(), self._readers.close()), timeout_s)
        except TimeoutError:
            self.pool.terminate()
            self._readers.terminate()


async def connect(
    url: str,
    *,
    pool_size: int = 10,
    behind_pooler: bool = False,
    connect_timeout_s: float = 5.0,
    command_timeout_s: float = 30.0,
    application_name: str = "trunkline",
    session_settings: Mapping[str, str] | None = None,
    search_path: str | None = None,
    opened_at_once: int = OPENED_AT_ONCE,
) -> Database:
    """Open the pool, or raise one line with the cause. A pooler has sessions of its own, so it gets no settings for
    them.

    `pool_size` connections at most, and as many again for reads: of those none is open before its first use."""
    settings = LIVES_UNTIL_CLOSED | dict(session_settings or {})
    if search_path:
        settings["search_path"] = search_path

    def pool(min_size: int, own: Mapping[str, str]) -> "asyncpg.Pool[asyncpg.Record]":
        return asyncpg.create_pool(
            url,
            min_size=min_size,
            max_size=pool_size,
            timeout=connect_timeout_s,
            command_timeout=command_timeout_s,
            statement_cache_size=0 if behind_pooler else 256,
            server_settings={"application_name": application_name, **({} if behind_pooler else own)},
            init=_prepare_connection,
            reset=_leave_as_it_is,
        )

    try:
        writers = await pool(min(opened_at_once, pool_size), settings)
        readers = await pool(0, settings | {"default_transaction_read_only": "on"})
    except CANNOT_CONNECT as error:
        raise StoreUnavailable(_why_not(error)) from error
    return Database(
        writers,
        readers,
        behind_pooler=behind_pooler,
        acquire_timeout_s=connect_timeout_s,
        search_path=search_path,
        name=application_name,
    )


def _why_not(error: BaseException) -> str:
    if isinstance(error, _OF_POOLERS) or "unsupported startup parameter" in str(error):
        return (
            "A transaction pooler stands before Postgres: say so with behind_pooler=True "
            f"(DATABASE_POOLER=transaction), or give a URL that leads past it. It said: {describe(error)}."
        )
    return f"Postgres cannot be reached: {describe(error)}. Check DATABASE_URL."


async def _leave_as_it_is(_connection: Any) -> None:
    """No session has state, and a statement that resets it would be every second transaction. The driver rolls back
    open transactions, and closes broken connections, all the same."""


async def _prepare_connection(connection: Any) -> None:
    """JSON both ways through msgspec. Client side only, so a pooler does not see it."""
    for name in ("json", "jsonb"):
        await connection.set_type_codec(
            name,
            schema="pg_catalog",
            encoder=lambda value: _encode_json(value).decode(),
            decoder=_decode_json,
        )
    # The driver looks a type up at its first use, which would be in the middle of some call.
    await connection.fetch("SELECT NULL::jsonb[], NULL::json[]")


def may_pass(error: BaseException) -> bool:
    """Whether the same statement may succeed if repeated. One with a value that Postgres cannot take never will."""
    return isinstance(error, (*UNAVAILABLE, *PASSING)) and not isinstance(error, asyncpg.DataError)


def is_of_database(error: BaseException) -> bool:
    """Whether Postgres could not do it now: locks, deadlocks, a failover, a full disk. Not the caller's fault."""
    broken: tuple[type[BaseException], ...] = (
        *PASSING,
        PoolEmpty,
        asyncpg.PostgresConnectionError,
        asyncpg.InterfaceError,
    )
    return isinstance(error, broken) and not isinstance(error, asyncpg.DataError)


async def now(conn: Connection) -> datetime:
    """Postgres's clock at the beginning of the transaction."""
    moment: datetime = await conn.fetchval(_SQL.now)
    return moment


async def limit_waiting(tx: Connection, lock_timeout_ms: int) -> None:
    """Let no statement of this transaction wait longer than this for a lock."""
    await tx.execute(_SQL.patience, str(lock_timeout_ms))


async def apart(tx: Connection, work: Awaitable[T]) -> T | Exception:
    """Part of a transaction that may fail alone: returns its result, or its error after a rollback to the savepoint.
    What Postgres cannot do now still fails the whole transaction, for a retry."""
    try:
        async with tx.transaction():
            return await work
    except Exception as error:
        if may_pass(error) or is_of_database(error):
            raise
        return error


def describe(error: BaseException) -> str:
    return str(error) or type(error).__name__
