"""Feature flags as they were set. What nobody has set is as the code has it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from trunkline.store.database import Connection
from trunkline.store.rows import pick, pick_or_none
from trunkline.store.sql import query

_RAISE_VERSION = query("flags/raise_version")
_LIST = query("flags/list")
_SET = query("flags/set")
_DELETE = query("flags/delete")


@dataclass(frozen=True, slots=True)
class Flag:
    """Off if it is not enabled; else on or off for those it names, and on for a percentage of the others."""

    name: str
    enabled: bool
    percentage: int
    resellers: Mapping[str, bool]
    merchants: Mapping[str, bool]
    reason: str
    changed_by: str
    changed_at: datetime


async def list_flags(conn: Connection) -> list[Flag]:
    return [pick(Flag, row) for row in await conn.fetch(_LIST)]


async def set_flag(
    tx: Connection,
    name: str,
    *,
    enabled: bool,
    percentage: int,
    resellers: Mapping[str, bool],
    merchants: Mapping[str, bool],
    reason: str,
    by: str,
) -> Flag:
    """Must be a transaction: the number it raises is the one under which others find the change."""
    await tx.execute(_RAISE_VERSION)
    row = await tx.fetchrow(_SET, name, enabled, percentage, resellers, merchants, reason, by)
    assert row is not None, "an upsert has one row"
    return pick(Flag, row)


async def delete_flag(tx: Connection, name: str) -> Flag | None:
    await tx.execute(_RAISE_VERSION)
    return pick_or_none(Flag, await tx.fetchrow(_DELETE, name))
