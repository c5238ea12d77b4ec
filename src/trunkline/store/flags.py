"""Feature flags as they were set. An unset flag has the default of the code."""

from trunkline.schema.flags import Flag
from trunkline.store.database import Connection
from trunkline.store.rows import pick, pick_or_none
from trunkline.store.sql import Area

_SQL = Area("flags")


async def list_flags(conn: Connection) -> list[Flag]:
    return [pick(Flag, row) for row in await conn.fetch(_SQL.list)]


async def lock(tx: Connection, name: str) -> Flag | None:
    """The flag, locked against other changes. Raises the version by which other processes find the change."""
    await tx.execute(_SQL.raise_version)
    return pick_or_none(Flag, await tx.fetchrow(_SQL.get, name))


async def get(conn: Connection, name: str) -> Flag | None:
    return pick_or_none(Flag, await conn.fetchrow(_SQL.get, name))


async def set_flag(tx: Connection, flag: Flag) -> Flag:
    """The caller has locked it."""
    row = await tx.fetchrow(
        _SQL.set,
        flag.name,
        flag.enabled,
        flag.percentage,
        flag.resellers,
        flag.merchants,
        flag.reason,
        flag.changed_by,
    )
    assert row is not None, "an upsert has one row"
    return pick(Flag, row)


async def delete_flag(tx: Connection, name: str) -> Flag | None:
    """The caller has locked it."""
    return pick_or_none(Flag, await tx.fetchrow(_SQL.delete, name))
