"""The database's identity and progress: a name and a number that only grows."""

from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.sql import Area

_SQL = Area("continuity")


async def begin(conn: Connection) -> None:
    """Name an installation that has no name yet."""
    await conn.execute(_SQL.begin)


async def advance(conn: Connection, installation: UUID, beat: int) -> int | None:
    """One further than `beat`; None if the database is at another beat."""
    further: int | None = await conn.fetchval(_SQL.advance, installation, beat, beat)
    return further


async def leap(tx: Connection, installation: UUID, beat: int, beyond: int) -> int | None:
    """From `beat` past `beyond`; None if another process has moved it."""
    further: int | None = await tx.fetchval(_SQL.advance, installation, beat, beyond)
    return further


async def is_empty(conn: Connection) -> bool:
    """Whether this database has no lead to call."""
    return bool(await conn.fetchval(_SQL.is_empty))
