"""Calls whose agents were lost: what becomes of their allocations when the carrier asks what follows the stream."""

from typing import Literal
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.sql import query
from trunkline.value import Value

_RESUME = query("allocations/resume")
_RESUME_MISSING = query("allocations/resume_missing")
_EXHAUST = query("allocations/exhaust")
_TURN = query("allocations/turn")
_MISS = query("pods/miss")
_IS_RESUMED = query("allocations/is_resumed")


class Lost(Value, frozen=True):
    """The agent is lost, and the call has the right to another one. `pod`: where it was; None if nobody knows, or if a
    request before this one has moved the call already."""

    pod: str | None
    merchant_id: str


# over: the agent or the carrier has ended the call. exhausted: it had every agent that it may have.
Resumption = Lost | Literal["over", "exhausted"]


async def resume(conn: Connection, attempt_id: UUID, call: str, turn: int, *, turn_max: int) -> Resumption:
    """Once per stream, however often and from wherever it is asked."""
    is_last = turn >= turn_max
    row = await conn.fetchrow(_EXHAUST if is_last else _RESUME, attempt_id, call, turn)
    if row is not None and is_last:
        return "exhausted"
    if row is not None:
        if row["lost_pod"] is not None and row["never_joined"]:
            await conn.execute(_MISS, row["lost_pod"])
        return Lost(row["lost_pod"], row["merchant_id"])
    known = await conn.fetchrow(_TURN, attempt_id)
    if known is None:
        row = None if is_last else await conn.fetchrow(_RESUME_MISSING, attempt_id, call, turn)
        return "over" if row is None else Lost(None, row["merchant_id"])
    if known["is_over"] or known["call"] != call:
        return "over"
    return Lost(None, known["merchant_id"])


async def is_resumed(conn: Connection, call: str, turn: int) -> bool:
    """Whether another agent has the call by now, or is being looked for."""
    return bool(await conn.fetchval(_IS_RESUMED, call, turn))
