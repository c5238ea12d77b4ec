"""Persistent state of the console: used links and ended sessions."""

from datetime import datetime
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.sql import Area

_SQL = Area("console")


async def spend(conn: Connection, spent_id: UUID, until: datetime) -> bool:
    """False if it was spent before: of two concurrent tries, one gets True."""
    return await conn.fetchval(_SQL.spend, spent_id, until) is not None


async def is_spent(conn: Connection, spent_id: UUID) -> bool:
    return bool(await conn.fetchval(_SQL.is_spent, spent_id))
