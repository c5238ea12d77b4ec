"""Why leads were not called, and how a lead stands now."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.dispatch import LockedLead, LockedNumber
from trunkline.store.rows import pick
from trunkline.store.sql import query
from trunkline.store.tenants import Tenant

_OF_LEAD = query("decisions/of_lead")
_STANDING = query("decisions/standing")
_STOPS = query("decisions/stops")


@dataclass(frozen=True, slots=True)
class Decision:
    reason: str
    subject: str | None
    times: int
    first_at: datetime
    last_at: datetime
    until: datetime | None


@dataclass(frozen=True, slots=True)
class StopOfLead:
    scope: str
    # Who may lift it: the platform, a reseller or a merchant.
    set_by: str
    reason: str
    ends_at: datetime | None


@dataclass(frozen=True, slots=True)
class Standing:
    """A lead as an intent would see it now. Without a number, its pool has none that may dial."""

    lead: LockedLead
    number: LockedNumber | None
    status: str
    outcome: str | None
    outcome_reason: str | None
    live_attempt: UUID | None
    channels: int
    held: int


async def of_lead(conn: Connection, lead_id: UUID) -> list[Decision]:
    return [pick(Decision, row) for row in await conn.fetch(_OF_LEAD, lead_id)]


async def standing(conn: Connection, tenant: Tenant, lead_id: UUID) -> Standing | None:
    row = await conn.fetchrow(_STANDING, tenant.reseller_id, tenant.merchant_id, lead_id)
    if row is None:
        return None
    return Standing(
        pick(LockedLead, row),
        _number(row),
        row["status"],
        row["outcome"],
        row["outcome_reason"],
        row["live_attempt"],
        row["channels"],
        row["held"],
    )


def _number(row: Any) -> LockedNumber | None:
    if row["number_id"] is None:
        return None
    return LockedNumber(
        row["number_id"],
        row["e164"],
        row["carrier"],
        row["account"],
        row["max_channels"],
        row["starts_per_s"],
        "active",
        row["pool_id"],
        may_count=True,
    )


async def stops(conn: Connection, lead: LockedLead) -> list[StopOfLead]:
    campaign = f"{lead.merchant_id}/{lead.campaign_id}" if lead.campaign_id else ""
    return [
        pick(StopOfLead, row)
        for row in await conn.fetch(_STOPS, lead.reseller_id, lead.merchant_id, campaign)
    ]
