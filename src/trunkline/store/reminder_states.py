"""States of reminders' occurrences, read from their leads and written beside them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.rows import pick
from trunkline.store.sql import Area

_SQL = Area("reminders")


@dataclass(frozen=True, slots=True)
class Followed:
    """An occurrence as it was last written, and its lead and newest attempt as they are now."""

    id: UUID
    reminder_id: UUID
    state: str
    attempt_count: int
    external_call_id: str | None
    last_error: str | None
    max_attempts: int
    # Attempts that were logged, and how many of them were followed by a retry.
    attempts_told: int
    retries_told: int
    lead_version: int
    lead_status: str
    outcome: str | None
    outcome_reason: str | None
    due_at: datetime
    lead_attempts: int
    carrier_error_count: int
    no_agent_count: int
    attempt_id: UUID | None
    carrier_call_id: str | None
    answered_at: datetime | None
    end_reason: str | None
    agent: str | None
    attempt_no: int | None
    # Of every attempt in order, those that the carrier refused included. They are not counted, so their numbers repeat.
    attempt_nos: Sequence[int]


@dataclass(frozen=True, slots=True)
class StateChange:
    id: UUID
    state: str
    lead_version: int
    attempt_count: int
    next_retry_at: datetime | None
    last_error: str | None
    idempotency_key: str | None
    external_call_id: str | None
    attempts_told: int
    retries_told: int


async def changed(tx: Connection, *, limit: int) -> list[Followed]:
    return [pick(Followed, row) for row in await tx.fetch(_SQL.changed, limit)]


async def write(tx: Connection, changes: Sequence[StateChange]) -> None:
    columns = [[getattr(change, name) for change in changes] for name in StateChange.__dataclass_fields__]
    await tx.execute(_SQL.write_states, *columns)
