"""Brings a database's schema forward. Safe to run twice, and safe when two run at once.

Each file runs in a transaction of its own that first takes an advisory lock, then looks whether somebody else was
faster. The lock ends with the transaction, so it also works behind a transaction pooler.
"""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

import asyncpg

from trunkline.errors import MigrationError, StoreUnavailable
from trunkline.store.database import CANNOT_CONNECT, Connection, describe
from trunkline.store.sql import migrations, query

# transaction_timeout, which bounds an intent, is new in 17.
POSTGRES_MAJOR_MIN = 17


@dataclass(frozen=True, slots=True)
class Migration:
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def known() -> list[Migration]:
    return [
        Migration(entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8"))
        for entry in migrations()
    ]


async def migrate(database_url: str, only: Collection[str] | None = None) -> list[str]:
    """Apply what is missing, of all files or of these, and return the names of what was applied."""
    connection = await _connect(database_url)
    try:
        _check_version(connection)
        wanted = [m for m in known() if only is None or m.name in only]
        return [m.name for m in wanted if await _apply(connection, m)]
    finally:
        await connection.close()


async def pending(connection: Connection) -> list[str]:
    """The names of the migrations that this database lacks."""
    if not await connection.fetchval(query("migrations/exists")):
        return [m.name for m in known()]
    applied = {row["name"] for row in await connection.fetch(query("migrations/applied"))}
    return [m.name for m in known() if m.name not in applied]


async def _connect(database_url: str) -> "asyncpg.Connection[asyncpg.Record]":
    try:
        return await asyncpg.connect(database_url, timeout=5.0, statement_cache_size=0)
    except CANNOT_CONNECT as error:
        raise StoreUnavailable(
            f"Postgres cannot be reached: {describe(error)}. Check DATABASE_URL."
        ) from error


def _check_version(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    major = connection.get_server_version().major
    if major < POSTGRES_MAJOR_MIN:
        raise MigrationError(f"Postgres {major} is too old: Trunkline needs {POSTGRES_MAJOR_MIN} or newer.")


async def _apply(connection: "asyncpg.Connection[asyncpg.Record]", migration: Migration) -> bool:
    async with connection.transaction():
        await connection.execute(query("migrations/lock"))
        await connection.execute(query("migrations/create_table"))
        applied = await connection.fetchval(query("migrations/checksum"), migration.name)
        if applied is None:
            await connection.execute(migration.sql)
            await connection.execute(query("migrations/record"), migration.name, migration.checksum)
            return True
        if applied != migration.checksum:
            raise MigrationError(
                f"Migration {migration.name} was changed after it had been applied. "
                "Restore the file and put the change into a new one."
            )
        return False
