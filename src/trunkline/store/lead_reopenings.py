"""Finished leads that a person has called again: the facts that decide about it, and the numbered orders themselves."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.leads import StoredLead
from trunkline.store.rows import pick, pick_or_none
from trunkline.store.sql import Area
from trunkline.store.tenants import Tenant

_SQL = Area("leads")


@dataclass(frozen=True, slots=True)
class ReopeningFacts:
    """Beside the lead's own row."""

    # The same order was given before.
    is_repeat: bool
    # A call of it is live, whatever its status is.
    is_live: bool
    # Attempts in state `unknown`: the checker must query their carriers first.
    unknown_attempts: Sequence[UUID]
    # The carrier was queried about its last call, and had none.
    is_last_absent: bool
    is_listed: bool
    campaign_status: str | None


@dataclass(frozen=True, slots=True)
class ReopenOrder:
    request_id: str
    reason: str
    actor: str


@dataclass(frozen=True, slots=True)
class Reopened:
    """The new state of one lead."""

    id: UUID
    wanted_at: datetime
    due_at: datetime | None
    closes_at: datetime | None
    max_attempts: int


@dataclass(frozen=True, slots=True)
class Reopening:
    """An executed order, and how the lead had ended before it."""

    lead_id: UUID
    no: int
    request_id: str
    reason: str
    actor: str
    at: datetime
    outcome: str
    outcome_reason: str | None
    finished_at: datetime


@dataclass(frozen=True, slots=True)
class EndedFilter:
    outcomes: Sequence[str]
    since: datetime
    before: datetime
    merchant_id: str | None = None
    campaign_id: UUID | None = None
    phone: str | None = None


@dataclass(frozen=True, slots=True)
class EndedCursor:
    """Where the last page ended."""

    finished_at: datetime
    lead_id: UUID


FIRST_PAGE = EndedCursor(datetime.min.replace(tzinfo=UTC), UUID(int=0))


async def facts(tx: Connection, lead_ids: Sequence[UUID], request_id: str) -> dict[UUID, ReopeningFacts]:
    """The caller has locked the leads."""
    rows = await tx.fetch(_SQL.reopening_facts, lead_ids, request_id)
    return {row["id"]: pick(ReopeningFacts, row) for row in rows}


async def reopen(tx: Connection, reopened: Sequence[Reopened], order: ReopenOrder) -> list[StoredLead]:
    """Those of the locked leads that have finished wait again."""
    if not reopened:
        return []
    rows = await tx.fetch(
        _SQL.reopen,
        [each.id for each in reopened],
        [each.wanted_at for each in reopened],
        [each.due_at for each in reopened],
        [each.closes_at for each in reopened],
        [each.max_attempts for each in reopened],
        order.request_id,
        order.reason,
        order.actor,
    )
    return [pick(StoredLead, row) for row in rows]


async def get(conn: Connection, lead_id: UUID, no: int) -> Reopening | None:
    return pick_or_none(Reopening, await conn.fetchrow(_SQL.reopening, lead_id, no))


async def list_ended(
    conn: Connection,
    tenant: Tenant,
    wanted: EndedFilter,
    *,
    request_id: str,
    after: EndedCursor,
    limit: int,
) -> list[StoredLead]:
    rows = await conn.fetch(
        _SQL.list_ended, *_filter(tenant, wanted, request_id), after.finished_at, after.lead_id, limit
    )
    return [pick(StoredLead, row) for row in rows]


async def count_ended(
    conn: Connection, tenant: Tenant, wanted: EndedFilter, *, request_id: str, limit: int
) -> int:
    return int(await conn.fetchval(_SQL.count_ended, *_filter(tenant, wanted, request_id), limit))


def _filter(tenant: Tenant, wanted: EndedFilter, request_id: str) -> tuple[Any, ...]:
    return (
        tenant.reseller_id,
        tenant.merchant_id,
        wanted.merchant_id,
        wanted.campaign_id,
        wanted.phone,
        wanted.outcomes,
        wanted.since,
        wanted.before,
        request_id,
    )
