"""What happened to a lead, from everywhere it was written down."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.rows import pick
from trunkline.store.sql import query

_TIMELINE = query("leads/timeline")


@dataclass(frozen=True, slots=True)
class Happening:
    """`source` says who knows: the lead, the attempt, the carrier, the agent, the audit log, a job or webhook."""

    at: datetime
    source: str
    what: str
    attempt_id: UUID | None
    actor: str | None
    reason: str | None
    details: Mapping[str, Any]


async def of_lead(conn: Connection, lead_id: UUID, *, limit: int) -> list[Happening]:
    """In order. The caller has made sure whose lead it is."""
    return [pick(Happening, row) for row in await conn.fetch(_TIMELINE, lead_id, limit)]
