"""Ends leads that are no longer to be called, a page at a time."""

from trunkline.store.database import Connection
from trunkline.store.sql import Area

_SQL = Area("lapses")


async def expire(conn: Connection, limit: int) -> int:
    """Returns how many leads were past their expiry."""
    return len(await conn.fetch(_SQL.expire, limit))


async def end_cut_over(conn: Connection, limit: int) -> int:
    """Returns how many leads were due before their merchant's cutover."""
    return len(await conn.fetch(_SQL.end_cut_over, limit))


async def forget_cutovers(conn: Connection) -> None:
    """Those without a lead left to end."""
    await conn.execute(_SQL.forget_cutovers)
