"""Aborts many leads: by id, or by a filter, page by page."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from trunkline.api.auth import API_ROOT, LeadsKey
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import invalid, unknown
from trunkline.api.models import WRITE_ERRORS, Body
from trunkline.api.ownership import record
from trunkline.api.paging import LAST_ID
from trunkline.api.principal import Principal
from trunkline.api.routes.lead_edits import HANG_UP, Reason
from trunkline.api.routes.leads import e164
from trunkline.leads import phones
from trunkline.leads.ingest import FieldProblem
from trunkline.model import Outcome
from trunkline.schema.fields import ObjectId, Text
from trunkline.states import LeadStatus
from trunkline.store import lead_edits, leads
from trunkline.store.database import Connection
from trunkline.store.leads import LeadFilter, StoredLead
from trunkline.store.tenants import MERCHANTS, Tenant

router = APIRouter(prefix=f"{API_ROOT}/leads", tags=["leads"])

IDS_MAX = 1000
# Locked and ended in one transaction, which bounds how long a lead is locked.
PAGE = 500
# After this time the response says that it is incomplete, and the same request continues where it ended.
BUDGET_S = 20.0

RequestId = Annotated[Text, Field(min_length=1, max_length=200)]
Result = Literal["aborted", "cancel_requested", "finished", "not_found"]


class AbortIn(Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"merchant_id": "acme-store", "reason": "sold out"}]}
    )

    lead_ids: list[UUID] | None = Field(None, min_length=1, max_length=IDS_MAX)
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
    id: UUID | None = Field(description="null: no lead has this request id.")
    request_id: str | None = Field(None, description="Where the request named it.")
    result: Result


class AbortOut(BaseModel):
    aborted: int = Field(description="Waiting leads that were ended.")
    cancel_requested: int = Field(description="Leads that are being called, and end with this call.")
    complete: bool = Field(
        description="false: the time limit was reached before all leads were. Send the same request again."
    )
    results: list[AbortedOut] | None = Field(
        None, description="The result of each lead that was named by an id."
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
    tally = AbortCounts()
    if body.lead_ids is not None:
        async with api.store.writing() as tx:
            await _abort(tx, who, body, sorted(set(body.lead_ids)), tally)
        complete = True
    elif body.request_ids is not None:
        await _abort_requests(api, who, body, body.request_ids, tally)
        complete = True
    else:
        complete = await _abort_all(api, who, body, tally)
    response.status_code = 202 if tally.cancel_requested else 200
    is_named = body.lead_ids is not None or body.request_ids is not None
    results = tally.results if is_named else None
    return AbortOut(
        aborted=tally.aborted,
        cancel_requested=tally.cancel_requested,
        complete=complete,
        results=results,
    )


async def _abort_requests(
    api: Api, who: Principal, body: AbortIn, request_ids: Sequence[str], tally: AbortCounts
) -> None:
    merchant_id = body.merchant_id or who.tenant.merchant_id
    if merchant_id is None:
        raise invalid(FieldProblem("merchant_id", "Name the merchant: this key is not bound to one."))
    await _check_merchant(api, who.tenant, merchant_id)
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
    await _check_merchant(api, who.tenant, body.merchant_id)
    deadline_s = asyncio.get_running_loop().time() + BUDGET_S
    done = -1
    while done < (done := tally.aborted + tally.cancel_requested):
        for status in (LeadStatus.BACKLOG, LeadStatus.PROCESSING):
            wanted = LeadFilter(body.merchant_id, body.campaign_id, e164(body.phone), status)
            before: UUID | None = LAST_ID
            while before is not None:
                if asyncio.get_running_loop().time() > deadline_s:
                    return False
                before = await _abort_page(api, who, body, wanted, before, tally)
    return True


async def _check_merchant(api: Api, tenant: Tenant, merchant_id: str | None) -> None:
    if merchant_id is not None:
        async with api.store.reading() as connection:
            if await MERCHANTS.get(connection, tenant, merchant_id) is None:
                raise unknown("merchant_id", "merchant")


async def _abort_page(
    api: Api, who: Principal, body: AbortIn, wanted: LeadFilter, before: UUID, tally: AbortCounts
) -> UUID | None:
    """Returns the start of the next page, if there is one."""
    async with api.store.writing() as tx:
        page = await leads.list_leads(tx, who.tenant, wanted, before=before, limit=PAGE)
        fresh = [lead.id for lead in page if lead.cancel_requested_at is None or body.hang_up]
        if fresh:
            await _abort(tx, who, body, sorted(fresh), tally)
    return page[-1].id if len(page) == PAGE else None


async def _abort(
    tx: Connection, who: Principal, body: AbortIn, ids: Sequence[UUID], tally: AbortCounts
) -> None:
    locked = await lead_edits.lock(tx, who.tenant, ids)
    aborted = await lead_edits.abort(tx, _with(locked, LeadStatus.BACKLOG), body.reason)
    called = _with(locked, LeadStatus.PROCESSING)
    await lead_edits.request_cancel(tx, called, body.reason, hang_up=body.hang_up)
    new = [lead_id for lead_id in called if locked[lead_id].cancel_requested_at is None]
    tally.aborted += len(aborted)
    is_filter = body.lead_ids is None and body.request_ids is None
    tally.cancel_requested += len(new) if is_filter else len(called)
    tally.results += [AbortedOut(id=lead_id, result=_result(locked.get(lead_id))) for lead_id in ids]
    await _record(tx, who, body, [*aborted, *(locked[lead_id] for lead_id in called)])


async def _record(tx: Connection, who: Principal, body: AbortIn, changed: Sequence[StoredLead]) -> None:
    """A line of the audit log for each merchant, which it may read."""
    for owner, count in Counter(lead.tenant for lead in changed).items():
        details: dict[str, object] = {"leads": count, "hang_up": body.hang_up}
        if body.campaign_id is not None:
            details["campaign_id"] = str(body.campaign_id)
        await record(tx, who, "leads.aborted", owner.merchant_id, owner, reason=body.reason, **details)


def _with(locked: dict[UUID, StoredLead], status: LeadStatus) -> list[UUID]:
    return [lead_id for lead_id, lead in locked.items() if lead.status == status]


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
