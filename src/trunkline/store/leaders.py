"""Leases of leadership."""

from trunkline.store.database import Connection
from trunkline.store.sql import Area

_SQL = Area("leaders")


async def acquire(conn: Connection, name: str, holder: str, ttl_s: float) -> int | None:
    """Take or renew the lease; returns the term, or None while another process has it."""
    term: int | None = await conn.fetchval(_SQL.acquire, name, holder, ttl_s)
    return term


async def resign(conn: Connection, name: str, holder: str, term: int) -> None:
    await conn.execute(_SQL.resign, name, holder, term)


async def guard(tx: Connection, name: str, holder: str, term: int) -> bool:
    """Inside a transaction: may this term still write? True holds the term until the commit."""
    return bool(await tx.fetchval(_SQL.guard, name, holder, term))
