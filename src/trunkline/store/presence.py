"""Which processes run, and what they have counted together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trunkline.store.database import Connection
from trunkline.store.sql import query

_REPORT = query("presence/report")
_LEAVE = query("presence/leave")
_COUNT = query("presence/count")
_GAUGE = query("presence/gauge")
_IS_LED = query("presence/is_led")
_ALIVE = query("presence/alive")
_MEASURED = query("presence/measured")
_FORGET_OLD = query("presence/forget_old")
_FORGET_OLD_MEASURES = query("presence/forget_old_measures")

# (name, subject): what was counted, and of which carrier, reconciler or kind.
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Measured:
    name: str
    subject: str
    minutes_ago: int
    value: float


async def report(conn: Connection, process_id: str, roles: Sequence[str]) -> None:
    await conn.execute(_REPORT, process_id, list(roles))


async def leave(conn: Connection, process_id: str) -> None:
    await conn.execute(_LEAVE, process_id)


async def count(conn: Connection, counted: Mapping[Key, float]) -> None:
    await conn.execute(_COUNT, *_columns(counted))


async def gauge(conn: Connection, seen: Mapping[Key, float]) -> None:
    await conn.execute(_GAUGE, *_columns(seen))


async def is_led(conn: Connection, name: str) -> bool:
    return bool(await conn.fetchval(_IS_LED, name))


async def alive(conn: Connection, within_s: float) -> dict[str, int]:
    return {row["role"]: row["alive"] for row in await conn.fetch(_ALIVE, within_s)}


async def measured(conn: Connection, minutes: int) -> list[Measured]:
    return [Measured(**row) for row in await conn.fetch(_MEASURED, minutes)]


async def forget_old(conn: Connection) -> None:
    await conn.execute(_FORGET_OLD)
    await conn.execute(_FORGET_OLD_MEASURES)


def _columns(values: Mapping[Key, float]) -> tuple[list[str], list[str], list[float]]:
    return [name for name, _ in values], [subject for _, subject in values], list(values.values())
