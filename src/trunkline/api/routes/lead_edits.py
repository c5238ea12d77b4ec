"""Changes of existing leads: reschedule, edit, call now, abort.

A lead can be changed while it waits. While it is being called, it can only be aborted.
"""

from datetime import UTC
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, BackgroundTasks, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from trunkline.api.auth import API_ROOT, LeadsKey
from trunkline.api.deps import Deps
from trunkline.api.errors import ApiError, conflict, invalid
from trunkline.api.models import DELETE_ERRORS, WRITE_ERRORS, Body, require_found
from trunkline.api.ownership import record
from trunkline.api.principal import Principal
from trunkline.api.routes.leads import schedule_best_effort
from trunkline.leads import ingest
from trunkline.leads.ingest import FieldProblem
from trunkline.model import Outcome
from trunkline.schema.fields import Moment, ObjectId, Text
from trunkline.schema.leads import Lead
from trunkline.states import LeadStatus
from trunkline.store import lead_edits, leads
from trunkline.store.database import Connection
from trunkline.store.lead_edits import LeadChange, Reschedule
from trunkline.store.leads import Admission, AdmissionKey, StoredLead

router = APIRouter(prefix=f"{API_ROOT}/leads", tags=["leads"])

Reason = Annotated[
    Text, Field(min_length=1, max_length=200, description="For the outcome and the audit log.")
]
HANG_UP = Field(
    False, description="Hang up the live call. Left out: the call goes on to its end and is the last one."
)


class LeadPatch(Body):
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
    responses=DELETE_ERRORS
    | {202: {"model": Lead, "description": "The lead is being called, and ends with this call."}},
    summary="Abort a lead",
)
async def abort_lead(
    lead_id: UUID, query: Annotated[AbortQuery, Query()], who: LeadsKey, api: Deps, response: Response
) -> Lead:
    """A waiting lead ends at once: outcome ABORTED, with the reason. Idempotent.

    202 for one that is being called: it is not called again, and with `hang_up` the call is hung up.
    """
    async with api.store.writing() as tx:
        lead = require_found((await lead_edits.lock(tx, who.tenant, [lead_id])).get(lead_id), "lead")
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


class AbortRequestQuery(AbortQuery):
    request_id: Text = Field(min_length=1, max_length=200, description="The request id of the lead's sender.")
    merchant_id: ObjectId | None = Field(
        None, description="The merchant of the lead. A key that is bound to a merchant may leave it out."
    )


@router.delete(
    "",
    responses=DELETE_ERRORS
    | {202: {"model": Lead, "description": "The lead is being called, and ends with this call."}},
    summary="Abort a lead by its request id",
)
async def abort_request(
    query: Annotated[AbortRequestQuery, Query()], who: LeadsKey, api: Deps, response: Response
) -> Lead:
    """As `DELETE /leads/{lead_id}`, by the sender's own `request_id`. Idempotent."""
    merchant_id = query.merchant_id or who.tenant.merchant_id
    if merchant_id is None:
        raise invalid(FieldProblem("merchant_id", "Name the merchant: this key is not bound to one."))
    async with api.store.reading() as connection:
        known = await leads.ids_by_request(connection, who.tenant, merchant_id, [query.request_id])
    lead_id = require_found(known.get(query.request_id), "lead")
    return await abort_lead(
        lead_id, AbortQuery(reason=query.reason, hang_up=query.hang_up), who, api, response
    )


async def _waiting(tx: Connection, who: Principal, lead_id: UUID) -> StoredLead:
    """The lead, locked, if it waits."""
    lead = require_found((await lead_edits.lock(tx, who.tenant, [lead_id])).get(lead_id), "lead")
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
    key = AdmissionKey(lead.merchant_id, body.pool or lead.pool, lead.campaign_id)
    admission = require_found((await leads.admissions(tx, lead.tenant, [key])).get(key), "lead")
    reschedule = _reschedule(lead, body, admission)
    problems = [*_problems(lead, body, admission, payload_bytes_max)]
    if isinstance(reschedule, FieldProblem):
        problems.append(reschedule)
    if problems or isinstance(reschedule, FieldProblem):
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


def _reschedule(lead: StoredLead, body: LeadPatch, admission: Admission) -> Reschedule | FieldProblem | None:
    if body.scheduled_at is None:
        return None
    if problem := ingest.moment_problem(body.scheduled_at):
        return problem
    wanted_at = body.scheduled_at.astimezone(UTC)
    timing = ingest.timing(lead.phone, lead.timezone, wanted_at, admission)
    if isinstance(timing, FieldProblem):
        return timing
    return Reschedule(wanted_at, timing.due_at, timing.closes_at)


def _problems(
    lead: StoredLead, body: LeadPatch, admission: Admission, payload_bytes_max: int
) -> list[FieldProblem]:
    found_ = [
        ingest.payload_problem(body.payload, payload_bytes_max) if body.payload is not None else None,
        ingest.webhook_problem(body.reporting_webhook_url),
        ingest.expiry_problem(body.expires_at, body.scheduled_at),
    ]
    if body.pool is not None and admission.pool_id is None:
        found_.append(FieldProblem("pool", f"This merchant has no pool {body.pool!r}."))
    if body.max_attempts is not None and body.max_attempts <= lead.attempt_count:
        found_.append(FieldProblem("max_attempts", f"It was called {lead.attempt_count} times already."))
    return [problem for problem in found_ if problem is not None]
