"""Why leads were not called, and a lead's present state."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from trunkline.schema.leads import Decision
from trunkline.store.database import Connection
from trunkline.store.dispatch import LockedLead, LockedNumber
from trunkline.store.rows import pick
from trunkline.store.sql import Area
from trunkline.store.tenants import Tenant

_SQL = Area("decisions")


@dataclass(frozen=True, slots=True)
class StopOfLead:
    scope: str
    # Who may lift it: the platform, a reseller or a merchant.
    set_by: str
    reason: str
    # Its author, as the audit log names them.
    changed_by: str
    ends_at: datetime | None


@dataclass(frozen=True, slots=True)
class Standing:
    """A lead as an intent would see it now. `number`: the best one to dial it from; None, its pools have none that may
    dial. Of their `numbers`, `usable` are not stopped; of these, `free` have a free channel, and `unpaired` have no
    live call to the lead's person. `is_cut_over`: it was due before its merchant was turned on."""

    lead: LockedLead
    number: LockedNumber | None
    status: str
    outcome: str | None
    outcome_reason: str | None
    numbers: int
    usable: int
    free: int
    unpaired: int = 1
    is_cut_over: bool = False
    # Why its phone is on a do-not-call list, who put it there, and until when.
    listed_reason: str | None = None
    listed_actor: str | None = None
    listed_until: datetime | None = None


async def history(conn: Connection, lead_id: UUID) -> list[Decision]:
    return [pick(Decision, row) for row in await conn.fetch(_SQL.history, lead_id)]


async def standing(conn: Connection, tenant: Tenant, lead_id: UUID) -> Standing | None:
    row = await conn.fetchrow(_SQL.standing, tenant.reseller_id, tenant.merchant_id, lead_id)
    if row is None:
        return None
    _, _, *others = Standing.__match_args__
    return Standing(pick(LockedLead, row), _number(row), *[row[name] for name in others])


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
        row["number_pool_id"],
        may_count=True,
    )


async def stops(conn: Connection, lead: LockedLead) -> list[StopOfLead]:
    """Of the lead, and of the numbers that it could be dialled from (`number`, `carrier`)."""
    campaign = f"{lead.merchant_id}/{lead.campaign_id}" if lead.campaign_id else ""
    rows = await conn.fetch(
        _SQL.stops, lead.reseller_id, lead.merchant_id, campaign, lead.pool_id, lead.overflow_pool_id
    )
    return [pick(StopOfLead, row) for row in rows]
