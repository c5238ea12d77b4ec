"""Campaigns, their progress, and the leads that have to follow a change."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from trunkline.schema.campaigns import Campaign, ListedCampaign
from trunkline.store.database import Connection
from trunkline.store.rows import pick, pick_or_none
from trunkline.store.sql import Area
from trunkline.store.tenants import Tenant

_SQL = Area("campaigns")


class Given(NamedTuple):
    """What leads inherit from their campaign unless their rows say otherwise."""

    pool_id: str
    priority: int
    max_attempts: int


@dataclass(frozen=True, slots=True)
class NewCampaign:
    id: UUID
    reseller_id: str
    merchant_id: str
    request_id: str | None
    request_hash: bytes
    name: str
    pool_id: str
    priority: int
    max_attempts: int
    starts_at: datetime | None
    ends_at: datetime | None
    reporting_webhook_url: str | None


@dataclass(frozen=True, slots=True)
class StoredCampaign(Campaign):
    request_hash: bytes
    given_pool_id: str
    given_priority: int
    given_max_attempts: int
    stop_hangs_up: bool
    running_since: datetime | None
    # Postgres's clock when this was read.
    now: datetime

    @property
    def tenant(self) -> Tenant:
        return Tenant(self.reseller_id, self.merchant_id)

    @property
    def runs_since(self) -> datetime | None:
        """Since when its leads are called. Before its start none is."""
        if self.running_since is None or self.starts_at is None:
            return self.running_since
        return max(self.running_since, self.starts_at)

    @property
    def gives(self) -> Given:
        return Given(self.pool, self.priority, self.max_attempts)

    @property
    def given(self) -> Given:
        return Given(self.given_pool_id, self.given_priority, self.given_max_attempts)


@dataclass(frozen=True, slots=True)
class OutcomeCount:
    """The leads of one status and outcome."""

    status: str
    outcome: str | None
    leads: int
    attempts: int
    lately: int
    tried: int
    next_due_at: datetime | None


async def insert(tx: Connection, new: NewCampaign) -> StoredCampaign | None:
    """None if the merchant has sent this request before."""
    values = (getattr(new, name) for name in NewCampaign.__dataclass_fields__)
    return pick_or_none(StoredCampaign, await tx.fetchrow(_SQL.insert, *values))


async def by_request(tx: Connection, merchant_id: str, request_id: str | None) -> StoredCampaign | None:
    return pick_or_none(StoredCampaign, await tx.fetchrow(_SQL.by_request, merchant_id, request_id))


async def get(conn: Connection, tenant: Tenant, campaign_id: UUID) -> StoredCampaign | None:
    row = await conn.fetchrow(_SQL.get, tenant.reseller_id, tenant.merchant_id, campaign_id)
    return pick_or_none(StoredCampaign, row)


async def lock(tx: Connection, tenant: Tenant, campaign_id: UUID) -> StoredCampaign | None:
    row = await tx.fetchrow(_SQL.lock, tenant.reseller_id, tenant.merchant_id, campaign_id)
    return pick_or_none(StoredCampaign, row)


async def list_campaigns(
    conn: Connection, tenant: Tenant, *, merchant_id: str | None, status: str | None, before: UUID, limit: int
) -> list[ListedCampaign]:
    rows = await conn.fetch(
        _SQL.list, tenant.reseller_id, tenant.merchant_id, before, merchant_id, status, limit
    )
    return [pick(ListedCampaign, row) for row in rows]


async def edit(tx: Connection, campaign_id: UUID, changes: Mapping[str, Any]) -> StoredCampaign:
    """Change the named fields; a start, an end or a webhook may be set to none."""
    row = await tx.fetchrow(
        _SQL.edit,
        campaign_id,
        changes.get("name"),
        changes.get("pool_id"),
        changes.get("priority"),
        changes.get("max_attempts"),
        "starts_at" in changes,
        changes.get("starts_at"),
        "ends_at" in changes,
        changes.get("ends_at"),
        "reporting_webhook_url" in changes,
        changes.get("reporting_webhook_url"),
    )
    return _changed(row)


async def move(
    tx: Connection, campaign_id: UUID, status: str, *, reason: str | None = None, hang_up: bool = False
) -> StoredCampaign:
    return _changed(await tx.fetchrow(_SQL.move, campaign_id, status, reason, hang_up))


def _changed(row: Any) -> StoredCampaign:
    assert row is not None, "a campaign that is locked does not go away"
    return pick(StoredCampaign, row)


async def unsettled(conn: Connection, *, limit: int) -> list[UUID]:
    return [row["id"] for row in await conn.fetch(_SQL.unsettled, limit)]


async def claim(tx: Connection, campaign_id: UUID) -> StoredCampaign | None:
    return pick_or_none(StoredCampaign, await tx.fetchrow(_SQL.claim, campaign_id))


async def is_done(tx: Connection, campaign: StoredCampaign) -> bool:
    """It had leads, and none of them is left to call."""
    return bool(await tx.fetchval(_SQL.is_done, campaign.id, campaign.merchant_id))


async def waiting(tx: Connection, campaign: StoredCampaign, *, limit: int) -> list[UUID]:
    """Leads that have to end with their campaign."""
    rows = await tx.fetch(_SQL.waiting, campaign.id, campaign.merchant_id, limit)
    return [row["id"] for row in rows]


async def give(tx: Connection, campaign: StoredCampaign, *, limit: int) -> bool:
    """Apply edited fields to waiting leads. Returns whether there are more of them."""
    row = await tx.fetchrow(
        _SQL.give, campaign.id, campaign.merchant_id, limit, *campaign.given, *campaign.gives
    )
    assert row is not None
    return bool(row["more"])


async def mark_given(tx: Connection, campaign_id: UUID) -> None:
    await tx.execute(_SQL.given, campaign_id)


async def progress(conn: Connection, campaign: StoredCampaign) -> list[OutcomeCount]:
    """From folded counts: it costs the same with a million leads as with ten."""
    rows = await conn.fetch(
        _SQL.progress, campaign.id, campaign.merchant_id, campaign.reseller_id, campaign.runs_since
    )
    return [pick(OutcomeCount, row) for row in rows]


async def fold_counts(tx: Connection, *, fresh_min: int, fresh_max: int) -> int:
    """Returns how many rows were folded: none while fewer than `fresh_min` are new."""
    return int(await tx.fetchval(_SQL.fold_counts, fresh_min, fresh_max))


async def sample(conn: Connection, campaign: StoredCampaign) -> tuple[str, str | None] | None:
    """Phone and zone of a lead that it has yet to call."""
    row = await conn.fetchrow(_SQL.sample, campaign.id, campaign.merchant_id)
    return None if row is None else (row["phone"], row["timezone"])


async def layers(conn: Connection, campaign: StoredCampaign) -> list[str | None]:
    documents: list[str | None] = await conn.fetchval(
        _SQL.layers, campaign.reseller_id, campaign.merchant_id, campaign.id
    )
    return documents
