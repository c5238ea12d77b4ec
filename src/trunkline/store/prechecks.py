"""Pre-checks of leads: claims and results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.rows import pick
from trunkline.store.sql import Area

_SQL = Area("prechecks")


@dataclass(frozen=True, slots=True)
class PrecheckLead:
    id: UUID
    version: int
    request_id: str
    reseller_id: str
    merchant_id: str
    campaign_id: UUID | None
    phone: str = field(repr=False)
    timezone: str | None
    payload: dict[str, Any] = field(repr=False)
    attempt_count: int
    due_at: datetime
    # The checks that it has passed, if the pass is valid for long enough.
    passed_checks: bytes | None


async def are_wanted(conn: Connection) -> bool:
    return bool(await conn.fetchval(_SQL.are_wanted))


async def waiting(conn: Connection, lead_ids: Sequence[UUID], *, fresh_for_s: float) -> list[PrecheckLead]:
    return [pick(PrecheckLead, row) for row in await conn.fetch(_SQL.waiting, lead_ids, fresh_for_s)]


async def claim(
    conn: Connection, leases: Mapping[UUID, tuple[bytes, float]], *, fresh_for_s: float
) -> dict[UUID, int]:
    """Claim leads with the hash of their checks, for these seconds; returns those that were claimed, with their
    deferrals. As for `waiting`, one whose pass is valid for `fresh_for_s` from now needs no check."""
    rows = await conn.fetch(
        _SQL.claim,
        list(leases),
        [hash_ for hash_, _ in leases.values()],
        [lease_s for _, lease_s in leases.values()],
        fresh_for_s,
    )
    return {row["lead_id"]: row["deferrals"] for row in rows}


async def passed(conn: Connection, lead_id: UUID, checks_hash: bytes, *, valid_s: float, answer: str) -> None:
    await conn.execute(_SQL.let_pass, lead_id, checks_hash, valid_s, answer)


async def lock_lead(tx: Connection, lead_id: UUID, version: int) -> datetime | None:
    """The time, if the lead has not changed since its check began."""
    row = await tx.fetchrow(_SQL.lock_lead, lead_id, version)
    return None if row is None else row["now"]


async def failed(tx: Connection, lead_id: UUID, *, deferred: bool, answer: str) -> None:
    await tx.execute(_SQL.fail, lead_id, int(deferred), answer)
