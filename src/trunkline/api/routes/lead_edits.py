"""Changes of existing leads: reschedule, edit, call now; abort one, several by id, or those that match a filter.

A lead can be changed while it waits. While it is being called, it can only be aborted.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, BackgroundTasks, Query, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from trunkline.api.auth import API_ROOT, LeadsKey
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import ApiError, conflict, invalid, unknown
from trunkline.api.models import DELETE_ERRORS, WRITE_ERRORS, Body, Responses, require_found
from trunkline.api.ownership import record
from trunkline.api.paging import LAST_ID
from trunkline.api.principal import Principal
from trunkline.api.routes.leads import e164, merchant_of, schedule_best_effort
from trunkline.leads import ingest, phones
from trunkline.leads.ingest import FieldProblem
from trunkline.model import Outcome
from trunkline.schema.fields import Moment, ObjectId, Text
from trunkline.schema.leads import Lead
from trunkline.states import LeadStatus
from trunkline.store import lead_edits, leads
from trunkline.store.database import Connection
from trunkline.store.lead_edits import LeadChange, Reschedule
from trunkline.store.leads import LeadFilter, StoredLead
from trunkline.store.tenants import MERCHANTS

router = APIRouter(prefix=f"{API_ROOT}/leads", tags=["leads"])

IDS_MAX = 1000
# Locked and ended in one transaction, which bounds how long a lead is locked.
PAGE = 500
# After this time the response says that it is incomplete, and the same request continues where it ended.
BUDGET_S = 20.0

RequestId = Annotated[Text, Field(min_length=1, max_length=200)]
Result = Literal["aborted", "cancel_requested", "finished", "not_found"]
Reason = Annotated[
    Text, Field(min_length=1, max_length=200, description="For the outcome and the audit log.")
]
HANG_UP = Field(
    False, description="Hang up the live call. Left out: the call goes on to its end and is the last one."
)
BEING_CALLED: Responses = {
    202: {"model": Lead, "description": "The lead is being called, and ends with this call."}
}


class LeadPatch(Body):
    """Changes a waiting lead."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"scheduled_at": "2030-05-02T09:30:00+02:00", "priority": 10}]}
    )

    scheduled_at: Moment | None = Field(None, description="The new due time. In the past: now.")
    expires_at: Moment | None = Field(
        None, description="The time from which the lead is not called any more. null: no such time."
    )
    priority: int | None = Field(None, ge=1, le=99, strict=True)
    pool: ObjectId | None = Field(None, description="The number pool to dial from.")
    payload: dict[str, Any] | None = Field(None, description="Replaces the payload.")
    max_attempts: int | None = Field(
        None,
        ge=1,
        le=20,
        strict=True,
        description="The maximum number of attempts, those made before included.",
    )
    reporting_webhook_url: Text | None = Field(None, min_length=1, max_length=ingest.URL_MAX)


class AbortQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: Reason = "aborted by request"
    hang_up: bool = HANG_UP


class AbortRequestQuery(AbortQuery):
    request_id: Text = Field(min_length=1, max_length=200, description="The request id of the lead's sender.")
    merchant_id: ObjectId | None = Field(
        None, description="The merchant of the lead. A key that is bound to a merchant may leave it out."
    )


class AbortIn(Body):
    """Ends leads by their ids."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"merchant_id": "acme-store", "reason": "sold out"}]}
    )

    lead_ids: list[UUID] | None = Field(None, min_length=1, max_length=IDS_MAX, description="The leads.")
    request_ids: list[RequestId] | None = Field(
        None,
        min_length=1,
        max_length=IDS_MAX,
        description="The request ids of one merchant's leads. A key that is not bound to a merchant names it in "
        "`merchant_id`.",
    )
    merchant_id: ObjectId | None = Field(
        None, description="All leads of this merchant that have not ended, or those with `request_ids`."
    )
    campaign_id: UUID | None = Field(None, description="All leads of this campaign.")
    phone: Text | None = Field(
        None, min_length=1, max_length=phones.TEXT_MAX, description="All leads to this phone."
    )
    reason: Reason
    hang_up: bool = HANG_UP

    @property
    def is_filter(self) -> bool:
        return self.lead_ids is None and self.request_ids is None

    @model_validator(mode="after")
    def _names_some(self) -> "AbortIn":
        others = (self.lead_ids, self.campaign_id, self.phone)
        if self.request_ids is not None:
            if others != (None, None, None):
                raise ValueError("beside request_ids only merchant_id is named")
            return self
        has_filter = (self.merchant_id, self.campaign_id, self.phone) != (None, None, None)
        if has_filter == (self.lead_ids is not None):
            raise ValueError(
                "name either lead_ids, or request_ids, or at least one of merchant_id, campaign_id and phone"
            )
        return self


class AbortedOut(BaseModel):
    """What became of a lead."""

    id: UUID | None = Field(description="null: no lead has this request id.")
    request_id: str | None = Field(None, description="Where the request named it.")
    result: Result = Field(description="What was done.")


class AbortOut(BaseModel):
    """What became of each lead."""

    aborted: int = Field(description="Waiting leads that were ended.")
    cancel_requested: int = Field(description="Leads that are being called, and end with this call.")
    complete: bool = Field(
        description="false: the time limit was reached before all leads were. Send the same request again."
    )
    results: list[AbortedOut] | None = Field(
        None, description="The result of each lead that was named by an id."
    )


@router.patch("/{lead_id}", responses=WRITE_ERRORS, summary="Change or reschedule a lead")
async def update_lead(
    lead_id: UUID, body: LeadPatch, who: LeadsKey, api: Deps, afterwards: BackgroundTasks
) -> Lead:
    """Omitted fields do not change. Refused (409) once the lead is being called or has ended."""
    async with api.store.writing() as tx:
        lead = await _waiting(tx, who, lead_id)
        if not body.model_fields_set:
            return lead
        change = await _change(tx, lead, body, api.deps.limits.payload_bytes_max)
        lead = await lead_edits.edit(tx, lead_id, change)
        # A payload is personal data: the audit log only records that it changed.
        details = body.model_dump(mode="json", exclude_unset=True, exclude={"payload"})
        named = sorted(body.model_fields_set)
        await record(tx, who, "lead.changed", lead.id, lead.tenant, fields=named, **details)
    afterwards.add_task(schedule_best_effort, api, [lead.id])
    return lead


@router.post("/{lead_id}/dispatch-now", responses=DELETE_ERRORS, summary="Call a lead now")
async def dispatch_now(lead_id: UUID, who: LeadsKey, api: Deps, afterwards: BackgroundTasks) -> Lead:
    """The lead is due at once. Windows, limits, lists and stops apply as for every call."""
    async with api.store.writing() as tx:
        await _waiting(tx, who, lead_id)
        lead = await lead_edits.make_due(tx, lead_id)
        await record(tx, who, "lead.made_due", lead.id, lead.tenant)
    afterwards.add_task(schedule_best_effort, api, [lead.id])
    return lead


@router.delete(
    "/{lead_id}",
    responses=DELETE_ERRORS | BEING_CALLED,
    summary="Abort a lead",
)
async def abort_lead(
    lead_id: UUID, query: Annotated[AbortQuery, Query()], who: LeadsKey, api: Deps, response: Response
) -> Lead:
    """A waiting lead ends at once: outcome ABORTED, with the reason. Idempotent.

    202 for one that is being called: it is not called again, and with `hang_up` the call is hung up.
    """
    async with api.store.writing() as tx:
        lead = await _locked(tx, who, lead_id)
        match lead.status:
            case LeadStatus.BACKLOG:
                [lead] = await lead_edits.abort(tx, [lead_id], query.reason)
                await record(tx, who, "lead.aborted", lead.id, lead.tenant, reason=query.reason)
            case LeadStatus.PROCESSING:
                [lead] = await lead_edits.request_cancel(tx, [lead_id], query.reason, hang_up=query.hang_up)
                await record(
                    tx,
                    who,
                    "lead.cancel_requested",
                    lead.id,
                    lead.tenant,
                    reason=query.reason,
                    hang_up=query.hang_up,
                )
                response.status_code = 202
            case _ if lead.outcome != Outcome.ABORTED:
                raise _not_waiting(lead)
    return lead


@router.delete(
    "",
    responses=DELETE_ERRORS | BEING_CALLED,
    summary="Abort a lead by its request id",
)
async def abort_request(
    query: Annotated[AbortRequestQuery, Query()], who: LeadsKey, api: Deps, response: Response
) -> Lead:
    """As `DELETE /leads/{lead_id}`, by the sender's own `request_id`. Idempotent."""
    merchant_id = merchant_of(who, query.merchant_id)
    async with api.store.reading() as connection:
        known = await leads.ids_by_request(connection, who.tenant, merchant_id, [query.request_id])
    lead_id = require_found(known.get(query.request_id), "lead")
    return await abort_lead(
        lead_id, AbortQuery(reason=query.reason, hang_up=query.hang_up), who, api, response
    )


@dataclass(slots=True)
class AbortCounts:
    aborted: int = 0
    cancel_requested: int = 0
    results: list[AbortedOut] = field(default_factory=list)


@router.post(
    "/abort",
    response_model=AbortOut,
    responses=WRITE_ERRORS
    | {202: {"model": AbortOut, "description": "Some leads are being called, and end with this call."}},
    summary="Abort many leads",
)
async def abort_leads(body: AbortIn, who: LeadsKey, api: Deps, response: Response) -> AbortOut:
    """By their ids, or all that match a filter and have not ended, each as `DELETE /leads/{lead_id}` does it.

    Idempotent.
    """
    tally, complete = AbortCounts(), True
    if body.lead_ids is not None:
        async with api.store.writing() as tx:
            await _abort(tx, who, body, sorted(set(body.lead_ids)), tally)
    elif body.request_ids is not None:
        await _abort_requests(api, who, body, body.request_ids, tally)
    else:
        complete = await _abort_all(api, who, body, tally)
    response.status_code = 202 if tally.cancel_requested else 200
    return AbortOut(
        aborted=tally.aborted,
        cancel_requested=tally.cancel_requested,
        complete=complete,
        results=None if body.is_filter else tally.results,
    )


async def _abort_requests(
    api: Api, who: Principal, body: AbortIn, request_ids: Sequence[str], tally: AbortCounts
) -> None:
    merchant_id = merchant_of(who, body.merchant_id)
    await check_merchant(api, who, merchant_id)
    async with api.store.writing() as tx:
        known = await leads.ids_by_request(tx, who.tenant, merchant_id, request_ids)
        await _abort(tx, who, body, sorted(known.values()), tally)
    by_id = {result.id: result.result for result in tally.results}
    tally.results = [
        AbortedOut(id=known.get(each), request_id=each, result=by_id.get(known.get(each), "not_found"))
        for each in dict.fromkeys(request_ids)
    ]


async def _abort_all(api: Api, who: Principal, body: AbortIn, tally: AbortCounts) -> bool:
    """Rounds, until one finds no lead: a lead may begin or end a call during a round."""
    await check_merchant(api, who, body.merchant_id)
    deadline_s = asyncio.get_running_loop().time() + BUDGET_S
    done = -1
    while done < (done := tally.aborted + tally.cancel_requested):
        for status in (LeadStatus.BACKLOG, LeadStatus.PROCESSING):
            wanted = LeadFilter(body.merchant_id, body.campaign_id, e164(body.phone), status)
            before: UUID | None = LAST_ID
            while before is not None:
                if asyncio.get_running_loop().time() > deadline_s:
                    return False
                async with api.store.writing() as tx:
                    page = await leads.list_leads(tx, who.tenant, wanted, before=before, limit=PAGE)
                    fresh = [lead.id for lead in page if lead.cancel_requested_at is None or body.hang_up]
                    if fresh:
                        await _abort(tx, who, body, sorted(fresh), tally)
                before = page[-1].id if len(page) == PAGE else None
    return True


async def check_merchant(api: Api, who: Principal, merchant_id: str | None) -> None:
    """A filter may name only a merchant that the key sees."""
    if merchant_id is not None:
        async with api.store.reading() as connection:
            if await MERCHANTS.get(connection, who.tenant, merchant_id) is None:
                raise unknown("merchant_id", "merchant")


async def _abort(
    tx: Connection, who: Principal, body: AbortIn, ids: Sequence[UUID], tally: AbortCounts
) -> None:
    locked = await lead_edits.lock(tx, who.tenant, ids)
    waiting = [lead_id for lead_id, lead in locked.items() if lead.status == LeadStatus.BACKLOG]
    called = [lead for lead in locked.values() if lead.status == LeadStatus.PROCESSING]
    aborted = await lead_edits.abort(tx, waiting, body.reason)
    await lead_edits.request_cancel(tx, [lead.id for lead in called], body.reason, hang_up=body.hang_up)
    tally.aborted += len(aborted)
    tally.cancel_requested += sum(lead.cancel_requested_at is None or not body.is_filter for lead in called)
    tally.results += [AbortedOut(id=lead_id, result=_result(locked.get(lead_id))) for lead_id in ids]
    details: dict[str, object] = {"hang_up": body.hang_up}
    if body.campaign_id is not None:
        details["campaign_id"] = str(body.campaign_id)
    # A line of the audit log for each merchant, which it may read.
    for owner, count in Counter(lead.tenant for lead in (*aborted, *called)).items():
        await record(
            tx, who, "leads.aborted", owner.merchant_id, owner, reason=body.reason, leads=count, **details
        )


async def _locked(tx: Connection, who: Principal, lead_id: UUID) -> StoredLead:
    return require_found((await lead_edits.lock(tx, who.tenant, [lead_id])).get(lead_id), "lead")


async def _waiting(tx: Connection, who: Principal, lead_id: UUID) -> StoredLead:
    """The lead, locked, if it waits."""
    lead = await _locked(tx, who, lead_id)
    if lead.status != LeadStatus.BACKLOG:
        raise _not_waiting(lead)
    return lead


def _not_waiting(lead: StoredLead) -> ApiError:
    if lead.status == LeadStatus.PROCESSING:
        return conflict("being_called", "The lead is being called right now. Wait, or abort it.")
    return conflict(
        "finished", f"The lead has ended: {lead.outcome}. Reopen it to call it again, or send a new one."
    )


async def _change(tx: Connection, lead: StoredLead, body: LeadPatch, payload_bytes_max: int) -> LeadChange:
    """What the body changes, if all of it is allowed."""
    pool = body.pool or lead.pool
    admission = require_found(
        await leads.admission(tx, lead.tenant, lead.merchant_id, pool, lead.campaign_id), "lead"
    )
    problems = list(
        ingest.content_problems(
            body.payload,
            body.scheduled_at,
            body.expires_at,
            body.reporting_webhook_url,
            payload_bytes_max=payload_bytes_max,
        )
    )
    if body.pool is not None and admission.pool_id is None:
        problems.append(ingest.no_pool(body.pool))
    if body.max_attempts is not None and body.max_attempts <= lead.attempt_count:
        problems.append(FieldProblem("max_attempts", f"It was called {lead.attempt_count} times already."))
    reschedule = None
    if body.scheduled_at is not None and not ingest.moment_problem(body.scheduled_at):
        wanted_at = body.scheduled_at.astimezone(UTC)
        timing = ingest.timing(lead.phone, lead.timezone, wanted_at, admission)
        if isinstance(timing, FieldProblem):
            problems.append(timing)
        else:
            reschedule = Reschedule(wanted_at, timing.due_at, timing.closes_at)
    if problems:
        raise invalid(*problems)
    return LeadChange(
        priority=body.priority,
        pool_id=body.pool,
        payload=body.payload,
        max_attempts=body.max_attempts,
        set_webhook="reporting_webhook_url" in body.model_fields_set,
        reporting_webhook_url=body.reporting_webhook_url,
        set_expiry="expires_at" in body.model_fields_set,
        expires_at=body.expires_at,
        reschedule=reschedule,
    )


def _result(lead: StoredLead | None) -> Result:
    match lead:
        case None:
            return "not_found"
        case StoredLead(status=LeadStatus.PROCESSING):
            return "cancel_requested"
        case StoredLead(status=LeadStatus.FINISHED) if lead.outcome != Outcome.ABORTED:
            return "finished"
        case _:
            return "aborted"
