"""Running processes, and their shared counters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trunkline.store.database import Connection
from trunkline.store.sql import Area, query

_SQL = Area("presence")
_COUNT = query("presence/measure", value="m.value + excluded.value")
_GAUGE = query("presence/measure", value="greatest(m.value, excluded.value)")

# (name, subject): what was counted, and for which carrier, reconciler or kind.
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class MeasuredValue:
    name: str
    subject: str
    minutes_ago: int
    value: float


@dataclass(frozen=True, slots=True)
class Losses:
    """Running processes, and those that died and were not replaced. Processes that stopped on purpose are neither."""

    alive: int
    lost: int


@dataclass(frozen=True, slots=True)
class LeadershipRow:
    """`has_resigned`: the last leader stopped on purpose, or there has never been one."""

    is_led: bool
    has_resigned: bool


async def report(conn: Connection, process_id: str, roles: Sequence[str]) -> None:
    await conn.execute(_SQL.report, process_id, list(roles))


async def leave(conn: Connection, process_id: str) -> None:
    await conn.execute(_SQL.leave, process_id)


async def count(conn: Connection, counted: Mapping[Key, float]) -> None:
    await conn.execute(_COUNT, *zip(*counted, strict=True), list(counted.values()))


async def gauge(conn: Connection, seen: Mapping[Key, float]) -> None:
    await conn.execute(_GAUGE, *zip(*seen, strict=True), list(seen.values()))


async def leadership(conn: Connection, name: str) -> LeadershipRow:
    row = await conn.fetchrow(_SQL.leadership, name)
    assert row is not None, "an aggregate has one row"
    return LeadershipRow(row["is_led"], row["has_resigned"])


async def alive(conn: Connection, within_s: float) -> dict[str, int]:
    return {row["role"]: row["alive"] for row in await conn.fetch(_SQL.alive, within_s)}


async def losses(conn: Connection, within_s: float) -> dict[str, Losses]:
    """By role."""
    return {row["role"]: Losses(row["alive"], row["lost"]) for row in await conn.fetch(_SQL.losses, within_s)}


async def measured(conn: Connection, minutes: int) -> list[MeasuredValue]:
    return [MeasuredValue(**row) for row in await conn.fetch(_SQL.measured, minutes)]


async def forget_old(conn: Connection) -> None:
    await conn.execute(_SQL.forget_old)
    await conn.execute(_SQL.forget_old_measures)
