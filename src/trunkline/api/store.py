"""The database for routes: with timeouts, and one error for every kind of unavailability."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from trunkline.api.errors import conflict
from trunkline.errors import StoreUnavailable
from trunkline.store.database import PASSING, UNAVAILABLE, Connection, Database, describe
from trunkline.store.driver import BAD_VALUE, REFERENCE_GONE


class Store:
    def __init__(self, database: Database, *, timeout_s: float):
        self._database = database
        self._timeout_s = timeout_s

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Connection]:
        """For single statements that only read: Postgres refuses any other."""
        with _translated():
            async with asyncio.timeout(self._timeout_s), self._database.reading() as connection:
                yield connection

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Connection]:
        """For single statements, each its own transaction: what one statement writes needs no BEGIN and no COMMIT."""
        with _translated():
            async with asyncio.timeout(self._timeout_s), self._database.connection() as connection:
                yield connection

    @asynccontextmanager
    async def writing(self, *, timeout_s: float | None = None) -> AsyncIterator[Connection]:
        """For one transaction. An exception inside rolls it back. A large one may set a longer timeout."""
        with _translated():
            async with asyncio.timeout(timeout_s or self._timeout_s), self._database.transaction() as tx:
                yield tx


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except BAD_VALUE:
        raise  # a value that Postgres refuses: a bug, which a retry repeats
    except REFERENCE_GONE as error:
        raise conflict(
            "changed_meanwhile",
            "Something that this request names was removed at the same moment. Send it again.",
        ) from error
    except (*UNAVAILABLE, *PASSING) as error:
        raise StoreUnavailable(f"Postgres cannot serve this now: {describe(error)}") from error
