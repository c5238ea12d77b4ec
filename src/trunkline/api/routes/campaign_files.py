"""Files of campaigns, as CSV, JSON lines or a JSON array with any names of columns: upload their leads, or plan a
campaign without calls and without writes."""

import asyncio
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import StreamingResponse

from trunkline.api.auth import API_ROOT, LeadsKey
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import conflict, invalid, unknown
from trunkline.api.models import WRITE_ERRORS, require_found
from trunkline.api.ownership import record
from trunkline.api.principal import Principal
from trunkline.api.routes.leads_bulk import (
    UPLOADED,
    blocks,
    kind_of,
    request_body,
    take_upload,
    upload_problem,
)
from trunkline.campaigns.plan import PlanSettings, plan_file
from trunkline.campaigns.rows import CampaignRows, Columns, Others, Spool, parse_mapping, reader, same_person
from trunkline.leads.bulk import ROWS_MAX
from trunkline.leads.calling_policy import CallingPolicy, Effective, resolve
from trunkline.leads.ingest import FieldProblem
from trunkline.leads.upload_report import UploadReport
from trunkline.leads.uploads import BrokenUpload
from trunkline.schema.fields import ObjectId
from trunkline.store import campaigns, leads

router = APIRouter(prefix=f"{API_ROOT}/campaigns", tags=["campaigns"])

CAMPAIGN_ROWS_MAX = 2_000_000
_CSV = "Mobile,Full name,Plan\n+14155550123,Ada,gold\n"
_ROW = {"phone": "+14155550123", "payload": {"name": "Ada"}}
_EXAMPLE = [{"phone": "+14155550123"}, {"phone": "+12125550123", "priority": 10}]


class CampaignUploadQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    map: list[str] = Field(
        [],
        max_length=100,
        description="`field:column`, for columns that are not called like their field: `phone:Mobile`.",
    )
    others: Others = Field(
        "payload",
        description="The other columns: part of the payload, left out, or a reason to refuse the file.",
    )
    encoding: Literal["utf-8", "utf-16", "latin-1", "windows-1252"] = "utf-8"
    atomic: bool = Field(
        False, description="All rows or none, up to 100,000: one refused row rolls the others back."
    )
    results: Literal["all", "problems"] = Field(
        "problems", description="Which rows the response lists: all, or those that created no lead."
    )


@router.post(
    "/{campaign_id}/leads",
    response_model=None,
    responses=UPLOADED,
    openapi_extra=request_body({"type": "object"}, [_ROW], '{"phone": "+14155550123"}\n', _CSV),
    summary="Upload the leads of a campaign",
)
async def upload_campaign(
    campaign_id: UUID,
    request: Request,
    query: Annotated[CampaignUploadQuery, Query()],
    who: LeadsKey,
    api: Deps,
) -> StreamingResponse:
    """Up to 2,000,000 rows. No row is accepted before the whole file has arrived and can be read; then a refused row
    does not affect the others, unless `atomic` is set. A lead that is in the campaign already is `existing`.
    Idempotent."""
    columns, kind = _columns(query.map, query.others), kind_of(request)
    async with api.store.reading() as connection:
        campaign = require_found(await campaigns.get(connection, who.tenant, campaign_id), "campaign")
        if campaign.status in ("STOPPING", "STOPPED"):
            raise conflict("wrong_status", f"This campaign is {campaign.status}: it takes no more leads.")
        admission = await leads.admission(
            connection, campaign.tenant, campaign.merchant_id, campaign.pool, campaign.id
        )
        assert admission is not None, "a campaign's merchant is its tenant"
    spool = Spool(query.encoding, reader(kind, columns), ROWS_MAX if query.atomic else CAMPAIGN_ROWS_MAX)
    try:
        await spool.take(blocks(request))
        answer = await take_upload(
            request,
            api,
            campaign.tenant,
            spool.blocks(),
            CampaignRows(kind, campaign, admission.default_region, columns),
            UploadReport(problems_only=query.results == "problems"),
            is_atomic=query.atomic,
            rows_max=CAMPAIGN_ROWS_MAX,
            hash_of=same_person,
        )
    except BrokenUpload as error:
        raise upload_problem(error) from None
    finally:
        spool.close()
    async with api.store.writing() as tx:
        await record(tx, who, "campaign.uploaded", campaign.id, campaign.tenant, rows=spool.rows)
    return answer


class PlanQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    settings: str = Field(
        "{}",
        max_length=4000,
        description='The campaign to plan, as JSON: `{"policy": {"packs": ["us-tcpa"]}, "channels": 50}`.',
    )
    map: list[str] = Field([], max_length=100, description="`field:column`, as of an upload.")
    merchant_id: ObjectId | None = Field(
        None, description="The merchant whose policies apply too. Left out: the key's own merchant, or none."
    )


class HourOut(BaseModel):
    """The calls of an hour."""

    hour: datetime = Field(description="When it begins.")
    calls: int = Field(description="Calls that are made in it.")
    answered: int = Field(description="Calls that are answered in it.")


class PlanProblemOut(BaseModel):
    """A row that would not be called."""

    row: int = Field(description="The row, from 1.")
    reason: str = Field(description="Why not, as a word for programs.")
    detail: str = Field(description="Why not, for people.")


class AssumedOut(BaseModel):
    """The assumptions of a plan."""

    starts_at: datetime = Field(description="When the campaign starts.")
    channels: int = Field(description="How many channels it has.")
    answer_rate: float = Field(description="The share of calls that are answered.")
    call_s: float = Field(description="How long an answered call lasts.")
    ring_s: float = Field(description="How long a call rings.")


class PlanOut(BaseModel):
    """How a campaign would run."""

    rows: int = Field(description="Rows of the file.")
    people: int = Field(description="People who would be called.")
    calls: int = Field(description="Calls that would be made.")
    answered: int = Field(description="Calls that would be answered.")
    not_reached: int = Field(description="People who were called as often as allowed, and did not answer.")
    not_called: dict[str, int] = Field(description="People who would not be called, by reason.")
    first_call_at: datetime | None = Field(description="When the first call would be made.")
    last_call_at: datetime | None = Field(description="When the last call would be made.")
    ends_at: datetime | None = Field(description="When the campaign would end.")
    calls_per_hour: list[HourOut] = Field(description="Hour by hour.")
    held_back_by: dict[str, int] = Field(description="In how many minutes each bound held calls back.")
    problems: list[PlanProblemOut] = Field(description="The first 100 people who would not be called.")
    assumed: AssumedOut = Field(description="What the plan assumes.")


@router.post(
    "/plan",
    response_model=PlanOut,
    responses=WRITE_ERRORS,
    openapi_extra=request_body(
        {"type": "object"}, _EXAMPLE, '{"phone": "+14155550123"}\n', "phone\n+14155550123\n"
    ),
    summary="Plan a campaign without placing calls",
)
async def plan_campaign(
    request: Request, query: Annotated[PlanQuery, Query()], who: LeadsKey, api: Deps
) -> dict[str, Any]:
    """Simulates policy, clock changes, holidays, channels and pace. The rows are as in an upload, and are not stored.
    Do-not-call lists, pre-checks and other campaigns are not considered."""
    kind, now = kind_of(request), api.deps.clock.now()
    settings, columns = _settings(query.settings, now), _columns(query.map, "payload")
    policy = await _policy(api, who, query.merchant_id, settings.policy)
    body = await request.body()
    try:
        # 100,000 rows take a second of CPU: not on the event loop.
        async with api.uploads:
            return await asyncio.to_thread(plan_file, (body,), kind, settings, policy, columns, now)
    except BrokenUpload as error:
        raise upload_problem(error) from None


def _columns(pairs: list[str], others: Others) -> Columns:
    columns = parse_mapping(pairs, others)
    if isinstance(columns, str):
        raise invalid(FieldProblem("map", columns))
    return columns


def _settings(text: str, now: datetime) -> PlanSettings:
    try:
        settings = PlanSettings.model_validate_json(text)
    except ValidationError as error:
        problems = [(".".join(("settings", *map(str, each["loc"]))), each["msg"]) for each in error.errors()]
        raise invalid(*(FieldProblem(name[:100], problem) for name, problem in problems)) from None
    if wrong := settings.problems(now):
        raise invalid(*(FieldProblem(f"settings.{each.field}", each.error) for each in wrong))
    return settings


async def _policy(api: Api, who: Principal, merchant_id: str | None, own: CallingPolicy) -> Effective:
    """With the layers above, if a merchant is named."""
    merchant_id = merchant_id or who.tenant.merchant_id
    if merchant_id is None:
        return resolve(campaign=own)
    async with api.store.reading() as connection:
        admission = await leads.admission(connection, who.tenant, merchant_id, None)
    if admission is None:
        raise unknown("merchant_id", "merchant")
    platform, reseller, merchant, _ = (
        CallingPolicy.model_validate_json(text or "{}") for text in admission.policy
    )
    return resolve(platform, reseller, merchant, own)
