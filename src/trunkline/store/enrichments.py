"""Enrichments of calls after their end. A row moves from ENRICHING once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.rows import affected, pick, pick_or_none
from trunkline.store.sql import Area
from trunkline.store.tenants import Tenant

_SQL = Area("enrichments")


@dataclass(frozen=True, slots=True)
class NewItem:
    """`source` is JSON. An item without an attempt belongs to no call of ours."""

    item_id: str
    tenant: Tenant
    source: str = field(repr=False)
    attempt_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class Item:
    item_id: str
    status: str
    source: str
    recording_ref: str | None
    transcript: str | None
    data: str | None


@dataclass(frozen=True, slots=True)
class Enriched:
    """`data` is JSON."""

    recording_ref: str | None = None
    transcript: str | None = None
    data: str | None = None


@dataclass(frozen=True, slots=True)
class EnrichmentView:
    """An item as the owners of its call see it."""

    item_id: str
    attempt_id: UUID
    status: str
    recording_ref: str | None
    transcript: str | None = field(repr=False)
    data: str | None = field(repr=False)
    created_at: datetime
    updated_at: datetime


async def insert(tx: Connection, items: Sequence[NewItem]) -> set[str]:
    """The ids of those that are new."""
    rows = await tx.fetch(
        _SQL.insert,
        [item.item_id for item in items],
        [item.attempt_id for item in items],
        [item.tenant.reseller_id for item in items],
        [item.tenant.merchant_id for item in items],
        [item.source for item in items],
    )
    return {row["item_id"] for row in rows}


async def get(conn: Connection, item_id: str) -> Item | None:
    return pick_or_none(Item, await conn.fetchrow(_SQL.get, item_id))


async def for_attempt(conn: Connection, tenant: Tenant, attempt_id: UUID) -> list[EnrichmentView]:
    rows = await conn.fetch(_SQL.for_attempt, tenant.reseller_id, tenant.merchant_id, attempt_id)
    return [pick(EnrichmentView, row) for row in rows]


async def for_lead(conn: Connection, lead_id: UUID) -> list[EnrichmentView]:
    """The caller has checked whose lead it is."""
    return [pick(EnrichmentView, row) for row in await conn.fetch(_SQL.for_lead, lead_id)]


async def complete(tx: Connection, item_id: str, result: Enriched) -> bool:
    """False: another process was faster, or the item was discarded."""
    return (
        await tx.fetchval(_SQL.complete, item_id, result.recording_ref, result.transcript, result.data)
        is not None
    )


async def expired(conn: Connection, age_s: float, limit: int) -> dict[str, str | None]:
    """Items that were not changed for this long, and the addresses of their recordings."""
    return {row["item_id"]: row["recording_ref"] for row in await conn.fetch(_SQL.expired, age_s, limit)}


async def forget(conn: Connection, item_ids: Sequence[str], age_s: float) -> int:
    return affected(await conn.execute(_SQL.forget, list(item_ids), age_s))
