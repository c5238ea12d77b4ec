"""The end of leads that are no longer to be called, a page at a time."""

from trunkline.store.database import Connection
from trunkline.store.sql import Area

_SQL = Area("lapses")


async def expire(conn: Connection, limit: int) -> int:
    """How many leads were past their expiry."""
    return len(await conn.fetch(_SQL.expire, limit))


async def end_cut_over(conn: Connection, limit: int) -> int:
    """How many leads were due before their merchant was moved here."""
    return len(await conn.fetch(_SQL.end_cut_over, limit))


async def forget_cutovers(conn: Connection) -> None:
    """Those that leave no lead behind."""
    await conn.execute(_SQL.forget_cutovers)
