"""What other packages need of the driver: its errors by their meaning, and a connection beside the pool."""

from typing import TypeAlias

import asyncpg

SingleConnection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

# Any reply of the server other than a result.
SERVER_ERROR = asyncpg.PostgresError
# A value that Postgres cannot take: our mistake, however often it is sent.
BAD_VALUE = asyncpg.DataError
# A row that this one refers to was removed.
REFERENCE_GONE = asyncpg.ForeignKeyViolationError
# The schema is older than the code, or empty.
NO_SUCH_TABLE = asyncpg.UndefinedTableError
# Only a table's owner may do this, or it is not allowed inside a transaction.
NOT_PERMITTED = (asyncpg.InsufficientPrivilegeError, asyncpg.ActiveSQLTransactionError)
# Sent again at once, the same statements may pass: the other side of a deadlock has ended meanwhile.
ROLLED_BACK = asyncpg.TransactionRollbackError
# Another transaction holds what one statement of a batch needs. The other statements do not need it.
CONTENTION = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError, asyncpg.QueryCanceledError)


async def connect_single(
    url: str | None, *, application_name: str, timeout_s: float = 60.0
) -> SingleConnection:
    """One connection outside any pool: to listen on, or to check a server before anything else is known."""
    return await asyncpg.connect(
        url, timeout=timeout_s, server_settings={"application_name": application_name}
    )
