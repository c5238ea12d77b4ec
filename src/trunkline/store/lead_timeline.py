"""The events of a lead, from all tables that record them."""

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
class TimelineEvent:
    """`source` is the origin: the lead, the attempt, the carrier, the agent, the audit log, a decision, a job or a
    webhook. `at` is the time by our clock, or by the carrier's where only that is known: `clock` says which."""

    at: datetime
    clock: str
    # The time by the carrier's own clock, as the carrier reported it.
    carrier_at: str | None
    source: str
    what: str
    attempt_id: UUID | None
    # Which of the lead's attempts it is, in the order in which they were made.
    ordinal: int | None
    actor: str | None
    reason: str | None
    details: Mapping[str, Any]


async def events(conn: Connection, lead_id: UUID, *, limit: int) -> list[TimelineEvent]:
    """Unordered: `leads.timeline` puts the events in order. The caller has checked whose lead it is."""
    return [pick(TimelineEvent, row) for row in await conn.fetch(_SQL.timeline, lead_id, limit)]
