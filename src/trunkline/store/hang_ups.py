"""Calls that somebody wants ended, and when the carrier is asked for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from trunkline.states import AttemptState
from trunkline.store.database import Connection
from trunkline.store.sql import Area

_SQL = Area("hang_ups")


@dataclass(frozen=True, slots=True)
class HangUp:
    """A call that shall end."""

    id: UUID
    lead_id: UUID | None
    carrier: str
    account: str
    # Unknown only of a call that is over.
    carrier_call_id: str | None
    state: AttemptState


async def want(tx: Connection, attempt_ids: Sequence[UUID]) -> None:
    """These calls shall end. The caller holds their rows."""
    await tx.execute(_SQL.want_by_id, attempt_ids)


async def claim(conn: Connection, *, limit: int, lease_s: float) -> Sequence[HangUp]:
    """Those whose moment has come; others leave them alone for `lease_s`."""
    rows = await conn.fetch(_SQL.claim, limit, lease_s)
    return [HangUp(**{**row, "state": AttemptState(row["state"])}) for row in rows]


async def ask_again(conn: Connection, delays_s: Mapping[UUID, float | None]) -> None:
    """After so many seconds, or, with None, never."""
    if delays_s:
        await conn.execute(_SQL.later, list(delays_s), list(delays_s.values()))
