"""Calls to be hung up, and when the request to the carrier is due."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from trunkline.states import AttemptState
from trunkline.store.database import Connection
from trunkline.store.sql import Area

_SQL = Area("hang_ups")


@dataclass(frozen=True, slots=True)
class HangUp:
    """A call to be hung up."""

    id: UUID
    lead_id: UUID | None
    carrier: str
    account: str
    # None only for a call that has ended.
    carrier_call_id: str | None
    state: AttemptState


async def request(tx: Connection, attempt_ids: Sequence[UUID]) -> None:
    """Request the hang-up of these calls. The caller has locked their rows."""
    await tx.execute(_SQL.request_by_id, attempt_ids)


async def claim(conn: Connection, *, limit: int, lease_s: float) -> Sequence[HangUp]:
    """Those that are due; other processes leave them out for `lease_s`."""
    rows = await conn.fetch(_SQL.claim, limit, lease_s)
    return [HangUp(**{**row, "state": AttemptState(row["state"])}) for row in rows]


async def reschedule(conn: Connection, delays_s: Mapping[UUID, float | None]) -> None:
    """After these seconds or, with None, never."""
    if delays_s:
        await conn.execute(_SQL.reschedule, list(delays_s), list(delays_s.values()))
