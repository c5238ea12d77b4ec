"""What happened to a lead, from everywhere it was written down."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.rows import pick
from trunkline.store.sql import Area

_SQL = Area("leads")


@dataclass(frozen=True, slots=True)
class Happening:
    """`source` says who knows: the lead, the attempt, the carrier, the agent, the audit log, a decision, a job or a
    webhook. `at` is the moment by our clock, or where only that is known by the carrier's: `clock` says which."""

    at: datetime
    clock: str
    # What the carrier's own clock said, as the carrier told it.
    carrier_at: str | None
    source: str
    what: str
    attempt_id: UUID | None
    # Which of the lead's attempts it is, in the order in which they were made.
    ordinal: int | None
    actor: str | None
    reason: str | None
    details: Mapping[str, Any]


async def of_lead(conn: Connection, lead_id: UUID, *, limit: int) -> list[Happening]:
    """As it was written down: `leads.timeline` puts it in order. The caller has made sure whose lead it is."""
    return [pick(Happening, row) for row in await conn.fetch(_SQL.timeline, lead_id, limit)]
