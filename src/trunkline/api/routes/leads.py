"""Leads: create, list and read them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Protocol, TypeVar
from uuid import UUID

from fastapi import APIRouter, BackgroundTasks, Query, Response
from pydantic import Field

from trunkline.api.auth import API_ROOT, LeadsKey, ReadKey
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import conflict, forbidden, invalid, unknown
from trunkline.api.models import READ_ERRORS, WRITE_ERRORS, require_found
from trunkline.api.paging import LAST_ID, Cursors, Page, PageQuery
from trunkline.api.principal import Principal
from trunkline.api.resources import extended
from trunkline.api.routes.enrichments import EnrichmentOut, shown
from trunkline.errors import StoreUnavailable
from trunkline.leads import ingest, phones, timeline
from trunkline.leads.ingest import FieldProblem, LeadRefused, LeadRequest
from trunkline.schema.fields import ObjectId, Text, about
from trunkline.schema.leads import Lead, LeadWithAttempts
from trunkline.states import LeadStatus
from trunkline.store import decisions, enrichments, leads
from trunkline.store.leads import LeadFilter
from trunkline.telemetry import get_logger

log = get_logger(__name__)
TIMELINE_MAX = 1000

router = APIRouter(prefix=f"{API_ROOT}/leads", tags=["leads"])


@dataclass(frozen=True, slots=True)
class LeadDetail(LeadWithAttempts):
    """A lead with its attempts, decisions, timeline and enrichments."""

    enrichments: list[EnrichmentOut] = field(metadata=about("The enrichments of its calls, in order."))


class LeadQuery(PageQuery):
    request_id: Text | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="Unique within a merchant; several merchants may have used the same one.",
    )
    status: LeadStatus | None = None
    merchant_id: ObjectId | None = None
    campaign_id: UUID | None = None
    phone: Text | None = Field(
        None,
        min_length=1,
        max_length=phones.TEXT_MAX,
        description="With its country code; a missing + is added.",
    )


@router.post(
    "",
    status_code=201,
    responses=WRITE_ERRORS | {200: {"model": Lead, "description": "This request was sent before."}},
    summary="Create a lead",
)
async def create_lead(
    body: LeadRequest, who: LeadsKey, api: Deps, response: Response, afterwards: BackgroundTasks
) -> Lead:
    """Idempotent: the same `request_id` returns the same lead, which is not called twice.

    201 for a new lead, 200 for one that this request created before, 409 if that one had other content.
    """
    merchant_id = merchant_of(who, body.merchant_id)
    async with api.store.autocommit() as connection:
        admission = await leads.admission(connection, who.tenant, merchant_id, body.pool, body.campaign_id)
        if admission is None:
            raise unknown("merchant_id", "merchant")
        new = ingest.prepare(body, admission, payload_bytes_max=api.deps.limits.payload_bytes_max)
        if isinstance(new, LeadRefused):
            raise invalid(*new.problems)
        # Two rounds, because retention may remove the lead of an earlier request before it is read.
        for _ in range(2):
            if inserted := await leads.insert(connection, new):
                break
            if earlier := await leads.by_request(connection, new.merchant_id, new.request_id):
                response.status_code = 200
                return same_request(earlier, new)
        else:
            if await leads.is_listed(connection, new):
                raise forbidden("do_not_call", "This person is on a do-not-call list.")
            raise StoreUnavailable("the lead of this request_id was removed while it was read")
    afterwards.add_task(schedule_best_effort, api, [inserted.id])
    return inserted


@router.get("", responses=READ_ERRORS, summary="List leads")
async def list_leads(query: Annotated[LeadQuery, Query()], who: ReadKey, api: Deps) -> Page[Lead]:
    """Newest first. Filters are joined by "and"."""
    cursors = Cursors("leads", who, query)
    before = cursors.start_id(LAST_ID)
    wanted = LeadFilter(
        query.merchant_id, query.campaign_id, e164(query.phone), query.status, query.request_id
    )
    async with api.store.reading() as connection:
        rows = await leads.list_leads(
            connection, who.tenant, wanted, before=before, limit=cursors.fetch_limit
        )
    return cursors.page(rows, lambda lead: lead.id)


@router.get("/{lead_id}", responses=READ_ERRORS, summary="Get a lead")
async def get_lead(lead_id: UUID, who: ReadKey, api: Deps) -> LeadDetail:
    """With all its attempts, the reasons for which it was not called, and its timeline."""
    async with api.store.reading() as connection:
        lead = require_found(await leads.get(connection, who.tenant, lead_id), "lead")
        attempts = await leads.attempts(connection, lead_id)
        reasons = await decisions.history(connection, lead_id)
        enriched = await enrichments.for_lead(connection, lead_id)
        happened = await leads.timeline(connection, lead_id, limit=TIMELINE_MAX)
    return extended(
        LeadDetail,
        lead,
        attempts=attempts,
        enrichments=shown(api, enriched),
        decisions=reasons,
        timeline=timeline.in_order(happened),
    )


def merchant_of(who: Principal, named: str | None) -> str:
    """The merchant that a request names, or that of its key."""
    merchant_id = named or who.tenant.merchant_id
    if merchant_id is None:
        raise invalid(FieldProblem("merchant_id", "Name the merchant: this key is not bound to one."))
    return merchant_id


class _Requested(Protocol):
    @property
    def request_hash(self) -> bytes: ...


S = TypeVar("S", bound=_Requested)


def same_request(stored: S, new: _Requested) -> S:
    """What an earlier request with the same id created, unless its content was other."""
    if stored.request_hash != new.request_hash:
        raise conflict(
            "request_id_reused", "This request_id was used before with other content. Choose another one."
        )
    return stored


async def schedule_best_effort(api: Api, lead_ids: Sequence[UUID]) -> None:
    """Schedule the leads; if this fails, the loader schedules them from Postgres."""
    try:
        async with asyncio.timeout(api.deps.limits.schedule_timeout_s):
            await api.deps.on_leads_accepted(lead_ids)
    except Exception as error:
        log.warning("leads.not_scheduled", count=len(lead_ids), reason=f"{type(error).__name__}: {error}")


def e164(text: str | None, field: str = "phone") -> str | None:
    """The + of a query string arrives as a space when a client does not escape it."""
    if text is None:
        return None
    phone = phones.to_e164(f"+{text.strip().removeprefix('+')}", None)
    if isinstance(phone, phones.BadPhone):
        raise invalid(FieldProblem(field, phone.error))
    return phone
