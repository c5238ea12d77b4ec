"""Dry runs: simulates a campaign, without calls and without writes."""

import asyncio
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from trunkline.api.auth import API_ROOT, LeadsKey
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import invalid, unknown
from trunkline.api.models import WRITE_ERRORS
from trunkline.api.principal import Principal
from trunkline.api.routes.leads_bulk import kind_of, request_body, upload_problem
from trunkline.campaigns.plan import PlanSettings, plan_file
from trunkline.campaigns.rows import parse_mapping
from trunkline.leads.calling_policy import CallingPolicy, Effective, resolve
from trunkline.leads.ingest import FieldProblem
from trunkline.leads.uploads import BrokenUpload
from trunkline.schema.fields import ObjectId
from trunkline.store import leads

router = APIRouter(prefix=f"{API_ROOT}/campaigns", tags=["campaigns"])

_EXAMPLE = [{"phone": "+14155550123"}, {"phone": "+12125550123", "priority": 10}]


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
    hour: datetime
    calls: int
    answered: int


class PlanProblemOut(BaseModel):
    row: int
    reason: str
    detail: str


class AssumedOut(BaseModel):
    starts_at: datetime
    channels: int
    answer_rate: float
    call_s: float
    ring_s: float


class PlanOut(BaseModel):
    rows: int
    people: int = Field(description="People who would be called.")
    calls: int
    answered: int
    not_reached: int = Field(description="People who were called as often as allowed, and did not answer.")
    not_called: dict[str, int] = Field(description="People who would not be called, by reason.")
    first_call_at: datetime | None
    last_call_at: datetime | None
    ends_at: datetime | None
    calls_per_hour: list[HourOut]
    held_back_by: dict[str, int] = Field(description="In how many minutes each bound held calls back.")
    problems: list[PlanProblemOut] = Field(description="The first 100 people who would not be called.")
    assumed: AssumedOut


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
    settings, columns = _settings(query.settings, now), parse_mapping(query.map, "payload")
    if isinstance(columns, str):
        raise invalid(FieldProblem("map", columns))
    policy = await _policy(api, who, query.merchant_id, settings.policy)
    body = await request.body()
    try:
        # 100,000 rows take a second of CPU: not on the event loop.
        async with api.uploads:
            return await asyncio.to_thread(plan_file, (body,), kind, settings, policy, columns, now)
    except BrokenUpload as error:
        raise upload_problem(error) from None


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
