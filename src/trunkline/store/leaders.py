"""Leases of leadership."""

from trunkline.store.database import Connection
from trunkline.store.sql import query

_ACQUIRE = query("leaders/acquire")
_RESIGN = query("leaders/resign")
_GUARD = query("leaders/guard")


async def acquire(conn: Connection, name: str, holder: str, ttl_s: float) -> int | None:
    """Take or renew the lease; the term, or None while somebody else has it."""
    term: int | None = await conn.fetchval(_ACQUIRE, name, holder, ttl_s)
    return term


async def resign(conn: Connection, name: str, holder: str, term: int) -> None:
    await conn.execute(_RESIGN, name, holder, term)


async def guard(tx: Connection, name: str, holder: str, term: int) -> bool:
    """Inside a transaction: may this term still write? True holds the term until the commit."""
    return bool(await tx.fetchval(_GUARD, name, holder, term))
