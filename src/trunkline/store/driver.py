"""What other packages need of the driver: its errors by what they mean, and a connection beside the pool."""

from typing import TypeAlias

import asyncpg

SingleConnection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

# Whatever the server itself answers with, other than a result.
SERVER_ERROR = asyncpg.PostgresError
# A value that Postgres cannot take: our mistake, however often it is sent.
BAD_VALUE = asyncpg.DataError
# A row that this one refers to was removed.
REFERENCE_GONE = asyncpg.ForeignKeyViolationError
# The schema is older than the code, or empty.
NO_SUCH_TABLE = asyncpg.UndefinedTableError
# Only a table's owner may do this, or nobody inside a transaction.
NOT_PERMITTED = (asyncpg.InsufficientPrivilegeError, asyncpg.ActiveSQLTransactionError)
# Sent again at once, the same statements may pass: a deadlock that somebody else has come out of meanwhile.
ROLLED_BACK = asyncpg.TransactionRollbackError
# Somebody holds what one statement of a batch needs. The others do not need it.
CONTENTION = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError, asyncpg.QueryCanceledError)


async def connect_single(
    url: str | None, *, application_name: str, timeout_s: float = 60.0
) -> SingleConnection:
    """One connection that no pool lends or ends: to listen on, or to look at a server before anything else is known."""
    return await asyncpg.connect(
        url, timeout=timeout_s, server_settings={"application_name": application_name}
    )
