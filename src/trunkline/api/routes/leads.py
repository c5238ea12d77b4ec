"""Leads: create, list and read them."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, BackgroundTasks, Query, Response
from pydantic import AliasChoices, Field

from trunkline.api.auth import API_ROOT, LeadsKey, ReadKey
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import conflict, forbidden, invalid, unknown
from trunkline.api.models import READ_ERRORS, WRITE_ERRORS, Out, require_found
from trunkline.api.paging import LAST_ID, Cursors, Page, PageOut, PageQuery
from trunkline.api.principal import Principal
from trunkline.api.routes.enrichments import EnrichmentOut, shown
from trunkline.api.routes.why import DecisionOut
from trunkline.errors import StoreUnavailable
from trunkline.leads import ingest, phones, timeline
from trunkline.leads.ingest import FieldProblem, LeadRefused, LeadRequest, ObjectId, Text
from trunkline.model import Agent
from trunkline.states import AttemptState, LeadStatus
from trunkline.store import decisions, enrichments, lead_timeline, leads
from trunkline.store.database import Connection
from trunkline.store.leads import AdmissionKey, Lead, LeadFilter, NewLead
from trunkline.telemetry import get_logger

log = get_logger(__name__)
TIMELINE_MAX = 1000

router = APIRouter(prefix=f"{API_ROOT}/leads", tags=["leads"])


class AttemptOut(Out):
    id: UUID
    attempt_no: int
    state: AttemptState
    carrier: str
    carrier_call_id: str | None
    from_phone: str
    due_at: datetime | None = Field(description="When its lead was due.")
    ready_at: datetime | None = Field(
        description="Since when everything that the call needs was available: the lead due, its window open, no "
        "stop, a free channel and agent, its turn in every pace. null: an attempt of an older "
        "version."
    )
    sent_at: datetime | None = Field(
        description="When the request was sent to the carrier; null: it was not sent."
    )
    waited_s: float | None = Field(description="From `due_at` to `ready_at`.")
    late_s: float | None = Field(description="The lateness: from `ready_at` to `sent_at`.")
    intent_at: datetime
    accepted_at: datetime | None
    ringing_at: datetime | None
    answered_at: datetime | None
    ended_at: datetime | None
    end_reason: str | None
    duration_s: int | None
    agent: Agent | None = Field(
        description="Who took the call, once it has ended. `joined`: an agent of the platform. `external`: an agent "
        "that the platform cannot see. `none`: no agent. `unknown`: there is no evidence; it counts as answered. null: "
        "the call was not answered, or is live."
    )
    cost_micros: int | None = Field(
        description="The cost by the price in its merchant's policy, in millionths of that currency. null: no "
        "price is set, or the call is live."
    )
    carrier_cost_micros: int | None = Field(
        description="The cost that the carrier reported, in millionths of `carrier_cost_currency`. null: the "
        "carrier has not reported one (Twilio does minutes after the end; Exotel does not)."
    )
    carrier_cost_currency: str | None
    report: dict[str, Any] | None = Field(description="The agent's report, if there is one.")
    recordings: list[str] = Field(
        description="The URLs of recordings at the carrier, as the carrier reported them."
    )


class LeadOut(Out):
    id: UUID
    request_id: str
    reseller_id: str
    merchant_id: str
    phone: str = Field(description="As E.164.")
    timezone: str | None = Field(description="The time zone of the callee, if it was given.")
    payload: dict[str, Any]
    campaign_id: UUID | None
    pool: str = Field(validation_alias=AliasChoices("pool_id", "pool"))
    priority: int
    status: LeadStatus
    outcome: str | None = Field(description="Set when the status is FINISHED.")
    outcome_reason: str | None
    scheduled_at: datetime = Field(description="The scheduled time.")
    due_at: datetime = Field(description="When the next call is due.")
    expires_at: datetime | None = Field(
        description="The time from which the lead is not called any more. null: no such time."
    )
    attempt_count: int = Field(
        description="Attempts that count: not those that failed because of the platform."
    )
    max_attempts: int
    no_agent_count: int = Field(
        description="How often it was answered without an agent, and called again because of that."
    )
    reporting_webhook_url: str | None
    version: int
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    cancel_requested_at: datetime | None = Field(
        description="The lead was aborted while it was being called: it ends with this call."
    )
    cancel_reason: str | None
    reopen_count: int = Field(description="How often the lead was reopened.")


class TimelineEventOut(Out):
    at: datetime = Field(description="When the platform acted, or received the event.")
    clock: str = Field(
        description="The clock of `at`: `ours`, or `carrier` where only the carrier's time is stored."
    )
    carrier_at: str | None = Field(
        description="The time by the carrier's own clock, as the carrier reported it."
    )
    source: str = Field(
        description="The source: `lead`, `attempt`, `carrier`, `agent`, `audit`, `decision`, `job`, `webhook`."
    )
    what: str
    attempt_id: UUID | None = Field(description="The attempt that it belongs to.")
    actor: str | None
    reason: str | None
    details: dict[str, Any]


class LeadDetailOut(LeadOut):
    attempts: list[AttemptOut] = Field(description="Every dial, in order.")
    enrichments: list[EnrichmentOut] = Field(description="The enrichments of its calls, in order.")
    decisions: list[DecisionOut] = Field(description="Every reason for which it was not called.")
    timeline: list[TimelineEventOut] = Field(
        description="The timeline: attempt by attempt, each step by step, and all other events in between by the "
        "platform's clock. 1000 entries at most."
    )


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
    response_model=LeadOut,
    responses=WRITE_ERRORS | {200: {"model": LeadOut, "description": "This request was sent before."}},
    summary="Create a lead",
)
async def create_lead(
    body: LeadRequest, who: LeadsKey, api: Deps, response: Response, afterwards: BackgroundTasks
) -> Lead:
    """Idempotent: the same `request_id` returns the same lead, which is not called twice.

    201 for a new lead, 200 for one that this request created before, 409 if that one had other content.
    """
    merchant_id = body.merchant_id or who.tenant.merchant_id
    if merchant_id is None:
        raise invalid(FieldProblem("merchant_id", "Name the merchant: this key is not bound to one."))
    async with api.store.autocommit() as connection:
        new = await _prepared(connection, who, body, merchant_id, api.deps.limits.payload_bytes_max)
        lead, is_new = await _insert_once(connection, new)
    if lead.request_hash != new.request_hash:
        raise conflict(
            "request_id_reused", "This request_id was used before with other content. Choose another one."
        )
    if is_new:
        afterwards.add_task(schedule_best_effort, api, [lead.id])
    else:
        response.status_code = 200
    return lead


@router.get("", response_model=PageOut[LeadOut], responses=READ_ERRORS, summary="List leads")
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


@router.get("/{lead_id}", response_model=LeadDetailOut, responses=READ_ERRORS, summary="Get a lead")
async def get_lead(lead_id: UUID, who: ReadKey, api: Deps) -> LeadDetailOut:
    """With all its attempts, the reasons for which it was not called, and its timeline."""
    async with api.store.reading() as connection:
        lead = require_found(await leads.get(connection, who.tenant, lead_id), "lead")
        attempts = await leads.attempts(connection, lead_id)
        reasons = await decisions.history(connection, lead_id)
        enriched = await enrichments.for_lead(connection, lead_id)
        happened = await lead_timeline.events(connection, lead_id, limit=TIMELINE_MAX)
    return LeadDetailOut(
        attempts=[AttemptOut.model_validate(attempt) for attempt in attempts],
        enrichments=shown(api, enriched),
        decisions=[DecisionOut.model_validate(reason) for reason in reasons],
        timeline=[TimelineEventOut.model_validate(event) for event in timeline.in_order(happened)],
        **LeadOut.model_validate(lead).model_dump(),
    )


async def _prepared(
    connection: Connection, who: Principal, body: LeadRequest, merchant_id: str, payload_bytes_max: int
) -> NewLead:
    key = AdmissionKey(merchant_id, body.pool, body.campaign_id)
    admission = (await leads.admissions(connection, who.tenant, [key])).get(key)
    if admission is None:
        raise unknown("merchant_id", "merchant")
    match ingest.prepare(body, admission, payload_bytes_max=payload_bytes_max):
        case LeadRefused(problems):
            raise invalid(*problems)
        case NewLead() as new:
            return new


async def _insert_once(connection: Connection, new: NewLead) -> tuple[Lead, bool]:
    """Insert, or read what an earlier request inserted. Two rounds, because retention may remove it in between."""
    for _ in range(2):
        if lead := await leads.insert(connection, new):
            return lead, True
        if lead := await leads.by_request(connection, new.merchant_id, new.request_id):
            return lead, False
    if await leads.is_listed(connection, new):
        raise forbidden("do_not_call", "This person is on a do-not-call list.")
    raise StoreUnavailable("the lead of this request_id was removed while it was read")


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
