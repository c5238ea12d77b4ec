"""Cutovers of merchants from another system: since when, and which of their leads that system has called."""

from collections.abc import Sequence

from trunkline.store.database import Connection
from trunkline.store.sql import Area

_SQL = Area("cutovers")


async def merchants(conn: Connection) -> list[tuple[str, str]]:
    """Every reseller and merchant."""
    return [(row["reseller_id"], row["id"]) for row in await conn.fetch(_SQL.merchants)]


async def overdue(conn: Connection, merchant_ids: Sequence[str]) -> dict[str, int]:
    """Waiting leads that are past their due time, by merchant, most first."""
    return {row["merchant_id"]: row["leads"] for row in await conn.fetch(_SQL.overdue, merchant_ids)}


async def begin(tx: Connection, merchant_ids: Sequence[str]) -> None:
    """In the transaction that turns the flag on."""
    if merchant_ids:
        await tx.execute(_SQL.begin, merchant_ids)


async def drop(tx: Connection, merchant_ids: Sequence[str]) -> None:
    if merchant_ids:
        await tx.execute(_SQL.drop, merchant_ids)


async def left_out(conn: Connection) -> list[tuple[str, str]]:
    """Resellers and merchants that a hosted flag service leaves out, as last recorded."""
    return [(row["reseller_id"], row["id"]) for row in await conn.fetch(_SQL.left_out)]


async def observe(conn: Connection, off: Sequence[str], on: Sequence[str]) -> None:
    """Record which merchants a hosted flag service leaves out, and since when it no longer does."""
    await conn.execute(_SQL.observe, off, on)
