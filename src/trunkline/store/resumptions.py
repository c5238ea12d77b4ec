"""Calls whose agents were lost: the allocation's next step when the carrier requests what follows the stream."""

from typing import Literal
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.sql import Area
from trunkline.value import Value

_SQL = Area("allocations")
_PODS_SQL = Area("pods")


class LostAgent(Value, frozen=True):
    """The agent is lost, and the call may have another one. `pod`: where it was; None if unknown, or if an earlier
    request has moved the call already."""

    pod: str | None
    merchant_id: str


# over: the agent or the carrier has ended the call. exhausted: it had every agent that it may have.
Resumption = LostAgent | Literal["over", "exhausted"]


async def resume(conn: Connection, attempt_id: UUID, call: str, turn: int, *, turn_max: int) -> Resumption:
    """Once per stream, however often and from whichever process it is requested."""
    is_last = turn >= turn_max
    row = await conn.fetchrow(_SQL.exhaust if is_last else _SQL.resume, attempt_id, call, turn)
    if row is not None and is_last:
        return "exhausted"
    if row is not None:
        if row["lost_pod"] is not None and row["never_joined"]:
            await conn.execute(_PODS_SQL.miss, row["lost_pod"])
        return LostAgent(row["lost_pod"], row["merchant_id"])
    known = await conn.fetchrow(_SQL.turn, attempt_id)
    if known is None:
        row = None if is_last else await conn.fetchrow(_SQL.resume_missing, attempt_id, call, turn)
        return "over" if row is None else LostAgent(None, row["merchant_id"])
    if known["is_over"] or known["call"] != call:
        return "over"
    return LostAgent(None, known["merchant_id"])


async def is_resumed(conn: Connection, call: str, turn: int) -> bool:
    """Whether another agent has the call by now, or is being searched."""
    return bool(await conn.fetchval(_SQL.is_resumed, call, turn))
