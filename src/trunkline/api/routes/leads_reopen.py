"""Reopens finished leads, so that they are called again: one, several by id, or those that match a filter."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, BackgroundTasks
from pydantic import BaseModel, ConfigDict, Field, model_validator

from trunkline.api.auth import API_ROOT, LeadsKey
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import ApiError, conflict, forbidden, invalid, not_found
from trunkline.api.models import WRITE_ERRORS, Body, require_found
from trunkline.api.ownership import record
from trunkline.api.principal import Principal
from trunkline.api.routes.lead_edits import IDS_MAX, check_merchant
from trunkline.api.routes.leads import e164, schedule_best_effort
from trunkline.leads import ingest, phones
from trunkline.leads.ingest import FieldProblem
from trunkline.leads.reopening import ATTEMPTS_MAX, SENTENCES, ReopenRefusal, attempts_max, refusal
from trunkline.schema.fields import Moment, ObjectId, Text
from trunkline.schema.leads import Lead
from trunkline.states import LeadStatus
from trunkline.store import lead_edits, leads, schedule
from trunkline.store.database import Connection
from trunkline.store.lead_edits import FIRST_PAGE, EndedFilter, Reopened, ReopenOrder
from trunkline.store.leads import Admission, AdmissionKey, StoredLead
from trunkline.store.tenants import Tenant

router = APIRouter(prefix=f"{API_ROOT}/leads", tags=["leads"])

OUTCOMES_MAX = 20
# Locked and changed in one transaction, which bounds how long a lead is locked.
PAGE = 200
# After this time the response says that it is incomplete, and the same request continues where it ended.
BUDGET_S = 20.0
# A dry run counts no further.
COUNT_MAX = 100_000
# Concurrent queries of carriers about calls of unknown outcome.
QUERIES_MAX = 5

Reason = Annotated[
    Text,
    Field(
        min_length=1,
        max_length=200,
        description="The reason, for the audit log, the timeline and the webhook.",
    ),
]
RequestId = Annotated[
    Text,
    Field(
        min_length=1,
        max_length=200,
        description="Your own id of this request. A repeated request reopens nothing, even if the lead has "
        "finished again meanwhile.",
    ),
]
AT = Field(None, description="When to call. Left out, or in the past: now. Windows apply as for a new lead.")
MAX_ATTEMPTS = Field(
    None,
    ge=1,
    le=ATTEMPTS_MAX,
    strict=True,
    description="The maximum number of attempts, those made before included. Left out: as it was, and at least "
    "one more than were made.",
)
Result = Literal[
    "reopened", "reopened_before", "not_finished", "being_called", "call_unknown", "call_found", "do_not_call",
    "not_permitted",
    "expired", "attempts_used_up", "campaign_stopped", "not_found",
]  # fmt: skip


class ReopenIn(Body):
    """Reopens a finished lead."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"reason": "agents were away", "request_id": "again-2030-05-01"}]}
    )

    reason: Reason
    request_id: RequestId
    scheduled_at: Moment | None = AT
    max_attempts: int | None = MAX_ATTEMPTS


class ReopenManyIn(ReopenIn):
    """Reopens finished leads, by their ids or by how they ended."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "outcomes": ["NO_AGENT"],
                    "finished_since": "2030-05-01T09:00:00Z",
                    "merchant_id": "acme-store",
                    "reason": "agents were away",
                    "request_id": "again-2030-05-01",
                }
            ]
        }
    )

    lead_ids: list[UUID] | None = Field(None, min_length=1, max_length=IDS_MAX, description="The leads.")
    outcomes: list[Annotated[Text, Field(min_length=1, max_length=100)]] | None = Field(
        None,
        min_length=1,
        max_length=OUTCOMES_MAX,
        description="All leads that ended with one of these outcomes,",
    )
    finished_since: Moment | None = Field(None, description="at this time or later,")
    finished_before: Moment | None = Field(None, description="and before this one. Left out: until now.")
    merchant_id: ObjectId | None = Field(None, description="Only leads of this merchant.")
    campaign_id: UUID | None = Field(None, description="Only leads of this campaign.")
    phone: Text | None = Field(
        None, min_length=1, max_length=phones.TEXT_MAX, description="Only leads to this phone."
    )
    dry_run: bool = Field(False, description="Count the leads, and change nothing.")

    @model_validator(mode="after")
    def _names_some(self) -> "ReopenManyIn":
        by_filter = self.outcomes is not None and self.finished_since is not None
        narrower = (self.finished_before, self.merchant_id, self.campaign_id, self.phone)
        if self.lead_ids is not None:
            if (self.outcomes, self.finished_since, *narrower) != (None,) * 6:
                raise ValueError("name either lead_ids, or outcomes and finished_since")
        elif not by_filter:
            raise ValueError("name either lead_ids, or outcomes and finished_since")
        return self


class ReopenedOut(BaseModel):
    """What became of a lead."""

    id: UUID
    result: Result = Field(description="What was done.")


class ReopenManyOut(BaseModel):
    """How many leads were reopened."""

    matched: int = Field(
        description="Finished leads that were named or match. A dry run counts up to 100,000."
    )
    reopened: int = Field(description="Leads that wait to be called again.")
    refused: dict[str, int] = Field(description="Leads that were not reopened, by reason.")
    complete: bool = Field(
        description="false: the time limit was reached before all leads were. Send the same request again."
    )
    results: list[ReopenedOut] | None = Field(
        None, description="The result of each lead that was named by its id."
    )


@dataclass(slots=True)
class ReopenResults:
    results: dict[UUID, Result] = field(default_factory=dict)
    reopened: list[UUID] = field(default_factory=list)


@router.post(
    "/reopen", response_model=ReopenManyOut, responses=WRITE_ERRORS, summary="Reopen many finished leads"
)
async def reopen_leads(
    body: ReopenManyIn, who: LeadsKey, api: Deps, afterwards: BackgroundTasks
) -> ReopenManyOut:
    """By their ids, or all that ended with an outcome since a time, each as `POST /leads/{lead_id}/reopen` does it.

    Idempotent with the same `request_id`.
    """
    if problem := ingest.moment_problem(body.scheduled_at):
        raise invalid(problem)
    tally = ReopenResults()
    if body.lead_ids is not None:
        wanted = sorted(set(body.lead_ids))
        complete = True
        if body.dry_run:
            async with api.store.reading() as connection:
                found = [await leads.get(connection, who.tenant, lead_id) for lead_id in wanted]
            return _counted(sum(lead is not None and lead.status == LeadStatus.FINISHED for lead in found))
        for start in range(0, len(wanted), PAGE):
            await _reopen(api, who, body, wanted[start : start + PAGE], tally)
    else:
        await check_merchant(api, who, body.merchant_id)
        if body.dry_run:
            ended = await _filter(api, body)
            async with api.store.reading() as connection:
                return _counted(
                    await lead_edits.count_ended(
                        connection, who.tenant, ended, request_id=body.request_id, limit=COUNT_MAX
                    )
                )
        complete = await _reopen_all(api, who, body, tally)
    if tally.reopened:
        afterwards.add_task(schedule_best_effort, api, tally.reopened)
    refused = Counter(each for each in tally.results.values() if not each.startswith("reopened"))
    results = [ReopenedOut(id=each, result=tally.results[each]) for each in tally.results]
    return ReopenManyOut(
        matched=len(tally.results),
        reopened=len(tally.reopened),
        refused=dict(refused),
        complete=complete,
        results=None if body.lead_ids is None else results,
    )


@router.post("/{lead_id}/reopen", responses=WRITE_ERRORS, summary="Reopen a finished lead")
async def reopen_lead(
    lead_id: UUID, body: ReopenIn, who: LeadsKey, api: Deps, afterwards: BackgroundTasks
) -> Lead:
    """The lead waits again, and windows, limits, lists and stops apply as for every lead. Attempts go on counting, 20
    at most over all reopenings. Idempotent with the same `request_id`.

    If the outcome of its last call is unknown, the carrier is queried first; unless it reports that there was no such
    call, the lead is not called again (409 `call_unknown`).
    """
    if problem := ingest.moment_problem(body.scheduled_at):
        raise invalid(problem)
    tally = ReopenResults()
    await _reopen(api, who, body, [lead_id], tally)
    result = tally.results[lead_id]
    if not result.startswith("reopened"):
        raise _refused(ReopenRefusal(result))
    if tally.reopened:
        afterwards.add_task(schedule_best_effort, api, tally.reopened)
    async with api.store.reading() as connection:
        return require_found(await leads.get(connection, who.tenant, lead_id), "lead")


def _refused(why: ReopenRefusal) -> ApiError:
    match why:
        case ReopenRefusal.NOT_FOUND:
            return not_found("lead")
        case ReopenRefusal.DO_NOT_CALL:
            return forbidden("do_not_call", SENTENCES[why])
        case _:
            return conflict(why.value, SENTENCES[why])


async def _reopen_all(api: Api, who: Principal, body: ReopenManyIn, tally: ReopenResults) -> bool:
    """Page by page, oldest end first. Leads that end after the request began are not included."""
    wanted = await _filter(api, body)
    deadline_s = asyncio.get_running_loop().time() + BUDGET_S
    after = FIRST_PAGE
    while asyncio.get_running_loop().time() < deadline_s:
        async with api.store.reading() as connection:
            page = await lead_edits.list_ended(
                connection, who.tenant, wanted, request_id=body.request_id, after=after, limit=PAGE
            )
        if page:
            await _reopen(api, who, body, sorted(lead.id for lead in page), tally)
        if len(page) < PAGE:
            return True
        assert page[-1].finished_at is not None, "it has finished"
        after = (page[-1].finished_at, page[-1].id)
    return False


async def _filter(api: Api, body: ReopenManyIn) -> EndedFilter:
    assert body.outcomes is not None, "checked with the body"
    assert body.finished_since is not None, "checked with the body"
    async with api.store.reading() as connection:
        now = datetime.fromtimestamp(await schedule.clock_s(connection), UTC)
    for name in ("finished_since", "finished_before"):
        if ingest.moment_problem(getattr(body, name)):
            raise invalid(FieldProblem(name, "This moment is outside the calendar."))
    before = min(body.finished_before.astimezone(UTC), now) if body.finished_before else now
    return EndedFilter(
        body.outcomes,
        body.finished_since.astimezone(UTC),
        before,
        body.merchant_id,
        body.campaign_id,
        e164(body.phone),
    )


def _counted(matched: int) -> ReopenManyOut:
    return ReopenManyOut(matched=matched, reopened=0, refused={}, complete=True)


async def _reopen(
    api: Api, who: Principal, body: ReopenIn, ids: Sequence[UUID], tally: ReopenResults
) -> None:
    """One page: first the queries of carriers, outside any transaction; then the changes under the leads' locks."""
    found_calls = await _ask_carriers(api, who, body, ids)
    async with api.store.writing() as tx:
        locked = await lead_edits.lock(tx, who.tenant, ids)
        facts = await lead_edits.reopening_facts(tx, list(locked), body.request_id)
        timed = await _timings(tx, body, locked)
        wanted: list[Reopened] = []
        for lead_id in ids:
            lead = locked.get(lead_id)
            if lead is None:
                tally.results[lead_id] = "not_found"
            elif facts[lead_id].is_repeat:
                tally.results[lead_id] = "reopened_before"
            elif lead_id in found_calls:
                tally.results[lead_id] = "call_found"
            elif why := refusal(lead, facts[lead_id], body.max_attempts):
                tally.results[lead_id] = why.value
            elif (to_be := timed[lead_id]) is None:
                tally.results[lead_id] = "not_permitted"
            elif lead.expires_at is not None and lead.expires_at <= (to_be.due_at or to_be.wanted_at):
                tally.results[lead_id] = "expired"
            else:
                wanted.append(to_be)
        order = ReopenOrder(body.request_id, body.reason, who.actor)
        reopened = await lead_edits.reopen(tx, wanted, order)
        for lead in reopened:
            await record(
                tx,
                who,
                "lead.reopened",
                lead.id,
                lead.tenant,
                reason=body.reason,
                order=lead.reopen_count,
                request_id=body.request_id,
            )
    for lead in reopened:
        tally.results[lead.id] = "reopened"
        tally.reopened.append(lead.id)


async def _timings(
    tx: Connection, body: ReopenIn, locked: Mapping[UUID, StoredLead]
) -> dict[UUID, Reopened | None]:
    """When each may be called, by the present policy. None: never."""
    by_tenant: dict[Tenant, set[AdmissionKey]] = {}
    for lead in locked.values():
        by_tenant.setdefault(lead.tenant, set()).add(_admission_key(lead))
    admissions: dict[AdmissionKey, Admission] = {}
    for tenant, keys in by_tenant.items():
        admissions |= await leads.admissions(tx, tenant, list(keys))
    timed: dict[UUID, Reopened | None] = dict.fromkeys(locked)
    for lead_id, lead in locked.items():
        admission = admissions[_admission_key(lead)]
        wanted_at = (body.scheduled_at or admission.now).astimezone(UTC)
        timing = ingest.timing(lead.phone, lead.timezone, wanted_at, admission)
        most = attempts_max(lead, body.max_attempts)
        if not isinstance(timing, FieldProblem) and most is not None:
            timed[lead_id] = Reopened(lead_id, wanted_at, timing.due_at, timing.closes_at, most)
    return timed


def _admission_key(lead: StoredLead) -> AdmissionKey:
    return AdmissionKey(lead.merchant_id, lead.pool, lead.campaign_id)


async def _ask_carriers(api: Api, who: Principal, body: ReopenIn, ids: Sequence[UUID]) -> set[UUID]:
    """Leads whose call of unknown outcome the carrier has after all. The others are checked under the lock: an attempt
    that stays unknown keeps its lead from being called."""
    resolve = api.deps.resolve_unknown
    async with api.store.writing() as tx:
        locked = await lead_edits.lock(tx, who.tenant, ids)
        facts = await lead_edits.reopening_facts(tx, list(locked), body.request_id)
    doubts = [
        (lead_id, attempt_id)
        for lead_id, known in facts.items()
        for attempt_id in known.unknown_attempts
        if locked[lead_id].status == LeadStatus.FINISHED and not known.is_repeat
    ]
    if not doubts or resolve is None:
        return set()
    room = asyncio.Semaphore(QUERIES_MAX)

    async def ask(lead_id: UUID, attempt_id: UUID) -> UUID | None:
        async with room:
            return lead_id if await resolve(attempt_id) == "found" else None

    existing = await asyncio.gather(*(ask(*doubt) for doubt in doubts))
    return {lead_id for lead_id in existing if lead_id is not None}
