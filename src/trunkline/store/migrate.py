"""Brings a database's schema forward. Safe to run twice, and safe when two run at once.

Each file runs in a transaction of its own that first takes an advisory lock, then looks whether somebody else was
faster. The lock ends with the transaction, so it also works behind a transaction pooler.

A library in somebody else's database has a schema of its own there: the same files run with that schema as the search
path, and `schema_migrations` is in it too. Where nothing is missing nothing is written, so a role that may not create
tables can use what an owner has made.
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


async def migrate(
    database_url: str, only: Collection[str] | None = None, *, schema: str | None = None
) -> list[str]:
    """Apply what is missing, of all files or of these, and return the names of what was applied. Without a schema they
    go where the role's search path says."""
    connection = await _connect(database_url)
    try:
        _check_version(connection)
        wanted = [m for m in known() if only is None or m.name in only]
        if schema is None:
            return [m.name for m in wanted if await _apply(connection, m, None)]
        applied = await _applied_in(connection, schema)
        if not applied and await connection.fetchval(query("migrations/library_before")):
            raise MigrationError(
                "This database has mailboxes that an earlier version made in schema public, and new ones would leave "
                f'them behind. Open them with schema="public", or move them: ALTER TABLE … SET SCHEMA {schema}.'
            )
        missing = [m for m in wanted if applied.get(m.name) != m.checksum]
        return [m.name for m in missing if await _apply(connection, m, schema)]
    finally:
        await connection.close()


async def search_path_with(database_url: str, schema: str) -> str:
    """The search path of a library's connections: its own schema, then whatever the role has otherwise."""
    connection = await _connect(database_url)
    try:
        path: str = await connection.fetchval(query("migrations/search_path"))
    finally:
        await connection.close()
    return f"{quoted(schema)}, {path}" if path else quoted(schema)


def quoted(identifier: str) -> str:
    """A name as SQL wants it. Postgres cuts names at 63 bytes, and then they are other names."""
    if not 0 < len(identifier.encode()) <= 63 or "\x00" in identifier:
        raise MigrationError(f"{identifier!r} is no name for a schema: it has 1 to 63 bytes.")
    return '"' + identifier.replace('"', '""') + '"'


async def pending(connection: Connection) -> list[str]:
    """The names of the migrations that this database lacks."""
    if not await connection.fetchval(query("migrations/exists")):
        return [m.name for m in known()]
    applied = {row["name"] for row in await connection.fetch(query("migrations/applied"))}
    return [m.name for m in known() if m.name not in applied]


async def require_schema(connection: Connection) -> None:
    """A process that met a table or a column that is not there yet would fail at some later call. One that is newer
    than this process harms nobody: migrations come before the processes that need them."""
    if missing := await pending(connection):
        raise MigrationError(
            f"The database lacks {len(missing)} of this version's migrations, {missing[0]} first. "
            "Run `trunkline migrate`, then start this process again."
        )


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


async def _applied_in(connection: "asyncpg.Connection[asyncpg.Record]", schema: str) -> dict[str, str]:
    async with connection.transaction():
        await connection.execute(query("session/use_path"), quoted(schema))
        if not await connection.fetchval(query("migrations/exists")):
            return {}
        rows = await connection.fetch(query("migrations/checksums"))
    return {row["name"]: row["checksum"] for row in rows}


async def _apply(
    connection: "asyncpg.Connection[asyncpg.Record]", migration: Migration, schema: str | None
) -> bool:
    async with connection.transaction():
        await connection.execute(query("migrations/lock"))
        if schema is not None:
            if not await connection.fetchval(query("migrations/has_schema"), schema):
                await connection.execute(query("migrations/create_schema").format(schema=quoted(schema)))
            await connection.execute(query("session/use_path"), quoted(schema))
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
