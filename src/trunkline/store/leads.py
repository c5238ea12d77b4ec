"""Leads: inserting them, one or a whole upload, and reading them."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from trunkline.errors import StoreUnavailable
from trunkline.schema.leads import Attempt, Lead, TimelineEvent
from trunkline.states import LeadStatus
from trunkline.store.database import Connection
from trunkline.store.rows import pick, pick_or_none
from trunkline.store.sql import Area, query
from trunkline.store.tenants import Tenant
from trunkline.value import Private, Value

_SQL = Area("leads")
_LIST_BY_PHONE = query("leads/list_of", whose="phone = $5")
_LIST_BY_CAMPAIGN, _LIST_BY_MERCHANT, _LIST_BY_RESELLER = (
    query("leads/list_by", whose=f"{key} = ANY(ARRAY[{value}])", key=f"{key} DESC, status DESC, id DESC")
    for key, value in (("campaign_id", "$4::uuid"), ("merchant_id", "$3"), ("reseller_id", "$1"))
)
_LIST_UNFINISHED = query("leads/list_by", whose="status <> 'FINISHED'", key="status DESC, id DESC")
_LIST_ALL = query("leads/list_of", whose="true")


class AdmissionKey(NamedTuple):
    """The owner of a lead, as its request names it."""

    merchant_id: str
    pool_id: str | None
    campaign_id: UUID | None


@dataclass(frozen=True, slots=True)
class Admission:
    """What ingest needs of a merchant. No pool: none was found that this merchant may use."""

    merchant_id: str
    reseller_id: str
    default_region: str | None
    pool_id: str | None
    # The layers of its calling policy as documents: platform, reseller, merchant, campaign.
    policy: Sequence[str | None]
    # Postgres's clock when this was read.
    now: datetime


class NewLead(Value, frozen=True, array_like=True, gc=False):
    """A lead that passed every check. `request_hash` distinguishes a repeat from another request with its id.

    Small, and not tracked by the garbage collector: thousands of them wait for their batch of an upload.
    """

    id: UUID
    reseller_id: str
    merchant_id: str
    request_id: str
    request_hash: bytes
    phone: Private[str]
    timezone: str | None
    # As JSON.
    payload: Private[str]
    campaign_id: UUID | None
    pool_id: str
    priority: int
    max_attempts: int
    reporting_webhook_url: str | None
    scheduled_at: datetime | None
    # When its window opens, and closes again; None where no window applies.
    due_at: datetime | None
    closes_at: datetime | None
    # Requested now, yet the window is closed.
    is_deferred: bool
    expires_at: datetime | None


class StagedLead(NewLead, frozen=True, array_like=True, gc=False):
    """A lead of an upload."""

    row_no: int


@dataclass(frozen=True, slots=True)
class StoredLead(Lead):
    request_hash: bytes

    @property
    def tenant(self) -> Tenant:
        return Tenant(self.reseller_id, self.merchant_id)


@dataclass(frozen=True, slots=True)
class LeadFilter:
    merchant_id: str | None = None
    campaign_id: UUID | None = None
    phone: str | None = None
    status: LeadStatus | None = None
    request_id: str | None = None

    @property
    def statuses(self) -> list[LeadStatus]:
        return list(LeadStatus) if self.status is None else [self.status]


async def admissions(
    tx: Connection, tenant: Tenant, keys: Sequence[AdmissionKey]
) -> dict[AdmissionKey, Admission]:
    """Of those merchants that the tenant sees."""
    rows = await tx.fetch(_SQL.admissions, tenant.reseller_id, tenant.merchant_id, *zip(*keys, strict=True))
    return {keys[row["nth"] - 1]: pick(Admission, row) for row in rows}


async def admission(
    tx: Connection, tenant: Tenant, merchant_id: str, pool_id: str | None, campaign_id: UUID | None = None
) -> Admission | None:
    """None: the tenant sees no such merchant."""
    row = await tx.fetchrow(
        _SQL.admissions, tenant.reseller_id, tenant.merchant_id, [merchant_id], [pool_id], [campaign_id]
    )
    return pick_or_none(Admission, row)


async def insert(tx: Connection, new: NewLead) -> StoredLead | None:
    """None if the merchant has sent this request before, or if the person is on a do-not-call list."""
    row = await tx.fetchrow(_SQL.insert, *msgspec.structs.astuple(new))
    return pick_or_none(StoredLead, row)


async def is_listed(tx: Connection, new: NewLead) -> bool:
    """Whether this merchant may not call this person: by its own list, its reseller's or the platform's."""
    return bool(await tx.fetchval(_SQL.is_listed, new.phone, new.reseller_id, new.merchant_id))


async def by_request(tx: Connection, merchant_id: str, request_id: str) -> StoredLead | None:
    return pick_or_none(StoredLead, await tx.fetchrow(_SQL.by_request, merchant_id, request_id))


async def ids_by_request(
    conn: Connection, tenant: Tenant, merchant_id: str, request_ids: Sequence[str]
) -> dict[str, UUID]:
    """By request id, the leads that the tenant may see."""
    rows = await conn.fetch(
        _SQL.ids_by_request, tenant.reseller_id, tenant.merchant_id, merchant_id, request_ids
    )
    return {row["request_id"]: row["id"] for row in rows}


async def get(tx: Connection, tenant: Tenant, lead_id: UUID) -> StoredLead | None:
    return pick_or_none(
        StoredLead, await tx.fetchrow(_SQL.get, tenant.reseller_id, tenant.merchant_id, lead_id)
    )


async def attempts(tx: Connection, lead_id: UUID) -> list[Attempt]:
    return [pick(Attempt, row) for row in await tx.fetch(_SQL.attempts, lead_id)]


async def list_leads(
    tx: Connection, tenant: Tenant, wanted: LeadFilter, *, before: UUID, limit: int
) -> list[StoredLead]:
    """A page of leads, newest first, by the index that fits the narrowest filter."""
    merchant_id = wanted.merchant_id or tenant.merchant_id
    more = (wanted.campaign_id, wanted.phone, wanted.statuses, before, limit)
    if wanted.request_id is not None:
        named = (wanted.merchant_id, wanted.request_id)
        rows = await tx.fetch(_SQL.list_by_request, tenant.reseller_id, tenant.merchant_id, *named, *more)
    else:
        statement = _list_query(tenant, wanted, merchant_id)
        rows = await tx.fetch(statement, tenant.reseller_id, tenant.merchant_id, merchant_id, *more)
    return [pick(StoredLead, row) for row in rows]


def _list_query(tenant: Tenant, wanted: LeadFilter, merchant_id: str | None) -> str:
    if wanted.phone is not None:
        return _LIST_BY_PHONE
    if wanted.campaign_id is not None:
        return _LIST_BY_CAMPAIGN
    if merchant_id is not None:
        return _LIST_BY_MERCHANT
    if not tenant.is_platform:
        return _LIST_BY_RESELLER
    if wanted.status is None:
        return _LIST_ALL
    return _SQL.list_finished if wanted.status == LeadStatus.FINISHED else _LIST_UNFINISHED


@dataclass(frozen=True, slots=True)
class StoredTimelineEvent(TimelineEvent):
    # Which of the lead's attempts it is, in the order in which they were made.
    ordinal: int | None


async def timeline(conn: Connection, lead_id: UUID, *, limit: int) -> list[StoredTimelineEvent]:
    """Unordered: `leads.timeline` puts the events in order. The caller has checked whose lead it is."""
    return [pick(StoredTimelineEvent, row) for row in await conn.fetch(_SQL.timeline, lead_id, limit)]


@dataclass(frozen=True, slots=True)
class KnownLead:
    """An existing lead with this row's request_id, with the same content or with other."""

    lead_id: UUID
    is_same: bool


@dataclass(frozen=True, slots=True)
class ListedPerson:
    """This person is on a do-not-call list."""


SkippedRows = dict[int, KnownLead | ListedPerson]


async def stage(tx: Connection) -> None:
    await tx.execute(_SQL.stage)


async def copy(tx: Connection, rows: AsyncIterator[tuple[Any, ...]], *, timeout_s: float) -> None:
    await tx.copy_records_to_table(
        "staged_leads", records=rows, columns=list(StagedLead.__struct_fields__), timeout=timeout_s
    )


async def load(tx: Connection, staged: int, *, timeout_s: float) -> SkippedRows:
    """Insert leads for the staged rows; returns, by row number, why the others made none."""
    inserted = await tx.fetchval(_SQL.load, timeout=timeout_s)
    if inserted == staged:
        return {}
    skipped = await tx.fetch(_SQL.load_skipped, timeout=timeout_s)
    return {row["row_no"]: _known(row) for row in skipped}


def _known(row: Any) -> KnownLead | ListedPerson:
    if row["id"] is not None:
        return KnownLead(row["id"], row["is_same"])
    if row["is_listed"]:
        return ListedPerson()
    raise StoreUnavailable("the lead of a request_id was removed while it was read")
