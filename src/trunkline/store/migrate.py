"""Migrates a database's schema, and checks whether a process can run on it.

A file is `migrations/NNNN_<kind>_<area>[_<what>].sql`; its number is its place, and unique. Kinds:

    baseline    the schema of the first release
    pre         before a deploy: it only expands, so processes of the version before go on working on it
    post        after a deploy: it contracts, and processes of the version before refuse what it leaves

A file is one transaction, together with its row in `schema_migrations`. One whose first line is
`-- outside a transaction` (CREATE INDEX CONCURRENTLY) is run statement by statement; its row is written before, so that
one that broke off half-way is known, and is run again from its first statement.

Safe to run twice, and when two run at once: the migrating process holds an advisory lock. The others try it again and
again instead of waiting in it: a statement that waits has a snapshot, for whose end CREATE INDEX CONCURRENTLY would
wait in turn.

A library in an application's database has a schema of its own there: the files of its area run with that schema as the
search path, and `schema_migrations` is in it too. Where nothing is missing nothing is written, so a role that may not
create tables can use what an owner has made.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Literal, NamedTuple, TypeAlias

import asyncpg

from trunkline.errors import MigrationError, StoreUnavailable
from trunkline.store.database import CANNOT_CONNECT, Connection, describe
from trunkline.store.sql import Area, migrations, query
from trunkline.telemetry import get_logger

log = get_logger(__name__)

# transaction_timeout, which bounds an intent, is new in 17.
POSTGRES_MAJOR_MIN = 17

Phase = Literal["pre", "post"]
Session: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_SQL = Area("migrations")
_NAME = re.compile(r"(?P<number>\d{4})_(?P<kind>baseline|pre|post)_(?P<area>[a-z]+)(?:_[a-z0-9_]+)?")
_OUTSIDE = "-- outside a transaction\n"


@dataclass(frozen=True, slots=True)
class Migration:
    name: str
    sql: str

    @property
    def number(self) -> int:
        return int(self.name[:4])

    @property
    def area(self) -> str:
        return _part(self.name, "area")

    @property
    def is_post(self) -> bool:
        return _part(self.name, "kind") == "post"

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def runs_outside(self) -> bool:
        return self.sql.startswith(_OUTSIDE)

    @property
    def statements(self) -> list[str]:
        """Of a file outside a transaction. It has no functions: a semicolon at the end of a line ends a statement."""
        parts = re.split(r";[ ]*(?:\n|$)", self.sql)
        return [each.strip() for each in parts if re.sub(r"--.*", "", each).strip()]


@dataclass(frozen=True, slots=True)
class Patience:
    """For how long a migration waits for transactions that use its tables, and for other migrations.

    A transaction that needs a table behind a migration that waits for it waits too: so it waits shortly, lets others
    pass, and tries again. Outside a transaction no other one waits behind it, and what was begun is better ended."""

    lock_timeout_s: float = 2.0
    tries: int = 10
    pause_s: float = 1.0
    outside_lock_timeout_s: float = 600.0
    others_s: float = 60.0


PATIENCE = Patience()


class Applied(NamedTuple):
    """A row of `schema_migrations`. `applied_at` is None while a file outside a transaction has not ended."""

    number: int
    name: str
    checksum: str
    begun_at: datetime
    applied_at: datetime | None


@cache
def known() -> tuple[Migration, ...]:
    """The files of this version, in order."""
    found = tuple(
        Migration(entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8"))
        for entry in migrations()
    )
    if bad := [m.name for m in found if not _NAME.fullmatch(m.name)]:
        raise ValueError(f"{bad[0]} is no name for a migration: NNNN_<baseline|pre|post>_<area>[_<what>].sql")
    if len({m.number for m in found}) < len(found):
        raise ValueError("two migrations have the same number")
    return found


async def migrate(
    database_url: str,
    *,
    phase: Phase | None = None,
    area: str | None = None,
    schema: str | None = None,
    patience: Patience = PATIENCE,
) -> list[str]:
    """Apply what is missing, of one phase or of both, of one area or of all, and return the names of what was applied.
    Without a schema they go where the role's search path says."""
    wanted = [m for m in known() if area in (None, m.area)]
    async with _connected(database_url) as connection:
        major = connection.get_server_version().major
        if major < POSTGRES_MAJOR_MIN:
            raise MigrationError(
                f"Postgres {major} is too old: Trunkline needs {POSTGRES_MAJOR_MIN} or newer."
            )
        applied = await _read(connection, schema)
        if schema is not None and not applied and await connection.fetchval(_SQL.library_before):
            raise MigrationError(
                "This database has mailboxes that an earlier version made in schema public, and new ones would leave "
                f'them behind. Open them with schema="public", or move them: ALTER TABLE … SET SCHEMA {schema}.'
            )
        if schema is not None and not applied and await connection.fetchval(_SQL.hides_platform, schema):
            raise MigrationError(
                f"The role {schema} uses a platform in this database too, and its connections would look for the "
                f'platform\'s tables in the schema {schema} first. Name another one: schema="…".'
            )
        if not _in_turn(_missing(wanted, applied), phase):
            return []
        async with _alone(database_url, patience):
            todo = _in_turn(_missing(wanted, await _read(connection, schema)), phase)
            for migration in todo:
                await _apply(connection, migration, schema, patience)
        return [m.name for m in todo]


async def what_is_left(database_url: str) -> list[str]:
    """The names of this version's migrations that a database lacks."""
    async with _connected(database_url) as connection:
        return [m.name for m in await pending(connection)]


async def search_path_with(database_url: str, schema: str) -> str:
    """The search path of a library's connections: its own schema, then whatever the role has otherwise."""
    async with _connected(database_url) as connection:
        path: str = await connection.fetchval(_SQL.search_path)
    return f"{quoted(schema)}, {path}" if path else quoted(schema)


def quoted(identifier: str) -> str:
    """A name as SQL wants it. Postgres cuts names at 63 bytes, and then they are other names."""
    if not 0 < len(identifier.encode()) <= 63 or "\x00" in identifier:
        raise MigrationError(f"{identifier!r} is no name for a schema: it has 1 to 63 bytes.")
    return '"' + identifier.replace('"', '""') + '"'


async def pending(connection: Connection) -> list[Migration]:
    """What this database lacks of this version's migrations."""
    return _missing(known(), await _rows(connection, None))


async def require_schema(connection: Connection) -> None:
    """Raise unless this version runs on the schema: it has everything that comes before a deploy of this version, and
    nothing that comes after the deploy of a later one. A process that met a table or a column that is not there would
    fail at some later call."""
    files, rows = known(), await _rows(connection, None)
    missing = [m for m in _missing(files, rows) if not m.is_post]
    if not missing:
        return
    begun = {row.number: row.begun_at for row in rows}
    lacks = f"it lacks {len(missing)} of this version's migrations, {missing[0].name} first"
    if since := begun.get(missing[0].number):
        lacks = f"{missing[0].name} was begun at {since:%Y-%m-%d %H:%M:%S} and has not ended"
    raise MigrationError(
        f"The database has {_schema_of(rows)} and this version runs on {_range(files)}, but {lacks}: "
        "run `trunkline migrate`, then start this process again."
    )


def _missing(files: Sequence[Migration], rows: Sequence[Applied]) -> list[Migration]:
    """In order. Refused is a history that is another one than these files'."""
    of = {row.number: row for row in rows}
    for file in files:
        row = of.pop(file.number, None)
        if row is not None and row.applied_at and (row.name, row.checksum) != (file.name, file.checksum):
            raise MigrationError(
                f"Migration {row.name} was changed after it had been applied. "
                "Restore the file and put the change into a new one."
            )
    areas, last = {m.area for m in files}, files[-1].number
    for row in of.values():
        if row.number > last and _part(row.name, "area") in areas and _part(row.name, "kind") == "post":
            raise MigrationError(
                f"The database has {_schema_of(rows)} and this version runs on {_range(files)}, but "
                f"`trunkline migrate` of a newer version has applied {row.name}: start that version instead."
            )
    done = {row.number for row in rows if row.applied_at}
    return [m for m in files if m.number not in done]


def _in_turn(missing: Sequence[Migration], phase: Phase | None) -> list[Migration]:
    """Those of a phase that may run now. A file may rely on every file before it, of whatever kind."""
    if phase is None:
        return list(missing)
    chosen = [m for m in missing if m.is_post == (phase == "post")]
    others = [m for m in missing if m.is_post != (phase == "post")]
    free = [m for m in chosen if not others or m.number < others[0].number]
    if chosen and not free:
        raise MigrationError(
            f"Migration {others[0].name} comes before {chosen[0].name}: run `trunkline migrate "
            f"--{'pre' if phase == 'post' else 'post'}` first."
        )
    return free


def _range(files: Sequence[Migration]) -> str:
    """The schemas that this version runs on. What later versions add before their deploy is no hindrance either."""
    lowest, highest = max(m.number for m in files if not m.is_post), files[-1].number
    return f"schema {lowest}" if lowest == highest else f"schemas {lowest} to {highest}"


def _schema_of(rows: Sequence[Applied]) -> str:
    return f"schema {rows[-1].number}" if rows else "no schema of Trunkline"


def _part(name: str, part: str) -> str:
    """Of a name that another version may have given: one that is read otherwise has no kind and no area."""
    match = _NAME.fullmatch(name)
    return match[part] if match else ""


# Reading the history


async def _read(connection: Session, schema: str | None) -> list[Applied]:
    async with connection.transaction():
        if schema is not None:
            await connection.execute(_SQL.use_path, quoted(schema), True)
        return await _rows(connection, schema)


async def _rows(connection: Connection, schema: str | None) -> list[Applied]:
    match await connection.fetchval(_SQL.layout):
        case "none":
            return []
        case "before":
            raise MigrationError(
                _MADE_BEFORE if schema is None else _LIBRARY_MADE_BEFORE.format(schema=schema)
            )
        case "other":
            raise MigrationError(
                "There is a table schema_migrations here that is not Trunkline's: give Trunkline a database of its "
                "own, or its role a search path that begins with a schema of its own."
            )
    return [Applied(*row) for row in await connection.fetch(_SQL.applied)]


_MADE_BEFORE = (
    "The tables of this database were made before the first release of Trunkline, and no migration leads from them to "
    "this version: export the leads that still wait (docs/how-to/upgrading.md says how), then start on a fresh data "
    "folder (--data-dir) or database and upload them there."
)
_LIBRARY_MADE_BEFORE = (
    "The tables in schema {schema} were made before the first release of Trunkline, and no migration leads from them "
    "to this version: let the version that made them finish what waits there, then drop the schema or name another one."
)


# Applying


@asynccontextmanager
async def _alone(database_url: str, patience: Patience) -> AsyncIterator[None]:
    """No other process migrates this database meanwhile. The lock ends with its transaction, so it also works behind a
    transaction pooler."""
    async with _connected(database_url) as connection:
        try:
            async with asyncio.timeout(patience.others_s):
                while not await _takes_lock(connection):  # noqa: ASYNC110  Postgres sends no signal
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            raise MigrationError(
                f"Another process has been migrating this database for {patience.others_s:g} s: when it has ended, "
                "run `trunkline migrate` again."
            ) from error
        yield


async def _takes_lock(connection: Session) -> bool:
    """The transaction that has the lock is left open, until the connection is closed."""
    transaction = connection.transaction()
    await transaction.start()
    if not await connection.fetchval(_SQL.try_lock):
        await transaction.rollback()
        return False
    # Also because it is a statement: the snapshot of the last one stays until the next, and an index that is made
    # concurrently would wait for its end.
    await connection.execute(_SQL.stay_open)
    return True


async def _apply(
    connection: Session,
    migration: Migration,
    schema: str | None,
    patience: Patience,
) -> None:
    if migration.runs_outside:
        await _apply_outside(connection, migration, schema, patience)
        return
    for tried in range(1, patience.tries + 1):
        try:
            async with connection.transaction():
                await _prepare(connection, schema, patience.lock_timeout_s, local=True)
                await connection.execute(_SQL.create_table)
                await connection.execute(migration.sql)
                await connection.execute(_SQL.record, migration.number, migration.name, migration.checksum)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            log.info("migration.waits", migration=migration.name, tried=tried)
            if tried == patience.tries:
                raise MigrationError(
                    f"Migration {migration.name} was tried {tried} times and met a table that others hold"
                    f"{await _holders(connection)}. Nothing of it was applied: end their transactions, or run "
                    "`trunkline migrate` again when there is less to do."
                ) from error
            await asyncio.sleep(patience.pause_s)
        else:
            return


async def _apply_outside(
    connection: Session,
    migration: Migration,
    schema: str | None,
    patience: Patience,
) -> None:
    await _prepare(connection, schema, patience.outside_lock_timeout_s, local=False)
    if since := await connection.fetchval(_SQL.begin, migration.number, migration.name, migration.checksum):
        log.warning("migration.begun_before", migration=migration.name, begun_at=since)
    try:
        for statement in migration.statements:
            await connection.execute(statement)
    except asyncpg.PostgresError as error:
        raise MigrationError(
            f"Migration {migration.name} runs outside a transaction and broke off half-way ({describe(error)}): run "
            "`trunkline migrate` again, which begins it anew."
        ) from error
    if invalid := await connection.fetchval(_SQL.invalid_indexes):
        raise MigrationError(
            f"Migration {migration.name} left an index that is not valid ({', '.join(invalid)}): drop it, then run "
            "`trunkline migrate` again."
        )
    await connection.execute(_SQL.finish, migration.number)


async def _prepare(
    connection: Session,
    schema: str | None,
    lock_timeout_s: float,
    *,
    local: bool,
) -> None:
    """Time-outs and the search path, for the transaction or for the session."""
    await connection.execute(_SQL.time_outs, f"{lock_timeout_s * 1000:.0f}", local)
    if schema is None:
        return
    if not await connection.fetchval(_SQL.has_schema, schema):
        await connection.execute(query("migrations/create_schema", schema=quoted(schema)))
    await connection.execute(_SQL.use_path, quoted(schema), local)


async def _holders(connection: Session) -> str:
    """Who has a transaction open, the oldest first, as far as this role may see it."""
    rows = await connection.fetch(_SQL.holders)
    named = [f"process {row['pid']} ({row['application_name'] or row['usename']})" for row in rows]
    return f": {', '.join(named)}" if named else ""


@asynccontextmanager
async def _connected(database_url: str) -> AsyncIterator[Session]:
    try:
        connection = await asyncpg.connect(
            database_url,
            timeout=5.0,
            statement_cache_size=0,
            server_settings={"application_name": "trunkline migrate"},
        )
    except CANNOT_CONNECT as error:
        raise StoreUnavailable(
            f"Postgres cannot be reached: {describe(error)}. Check DATABASE_URL."
        ) from error
    try:
        yield connection
    finally:
        await connection.close()
