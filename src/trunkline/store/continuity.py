"""How far the database has come: a name and a number that only grows."""

from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.sql import query

_BEGIN = query("continuity/begin")
_ADVANCE = query("continuity/advance")
_LEAP = query("continuity/leap")


async def begin(conn: Connection) -> None:
    """Name an installation that has no name yet."""
    await conn.execute(_BEGIN)


async def advance(conn: Connection, installation: UUID, beat: int) -> int | None:
    """One further than `beat`; None if the database is somewhere else."""
    further: int | None = await conn.fetchval(_ADVANCE, installation, beat)
    return further


async def leap(tx: Connection, installation: UUID, beat: int, beyond: int) -> int | None:
    """From `beat` past `beyond`; None if somebody else has moved it."""
    further: int | None = await tx.fetchval(_LEAP, installation, beat, beyond)
    return further
