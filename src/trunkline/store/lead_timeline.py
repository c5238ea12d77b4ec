"""The events of a lead, from all tables that record them."""

from dataclasses import dataclass
from uuid import UUID

from trunkline.schema.leads import TimelineEvent
from trunkline.store.database import Connection
from trunkline.store.rows import pick
from trunkline.store.sql import Area

_SQL = Area("leads")


@dataclass(frozen=True, slots=True)
class StoredTimelineEvent(TimelineEvent):
    # Which of the lead's attempts it is, in the order in which they were made.
    ordinal: int | None


async def events(conn: Connection, lead_id: UUID, *, limit: int) -> list[StoredTimelineEvent]:
    """Unordered: `leads.timeline` puts the events in order. The caller has checked whose lead it is."""
    return [pick(StoredTimelineEvent, row) for row in await conn.fetch(_SQL.timeline, lead_id, limit)]
