"""From a request for a campaign to a campaign, or to every reason why not. Pure."""

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from trunkline.leads import ingest
from trunkline.leads.calling_policy import EMPTY, CallingPolicy
from trunkline.leads.ingest import FieldProblem, LeadRefused
from trunkline.model import new_id
from trunkline.schema.fields import Moment, ObjectId, Text
from trunkline.store.campaigns import NewCampaign
from trunkline.store.leads import Admission

ATTEMPTS = 3

EXAMPLE: JsonDict = {
    "name": "Renewals in May",
    "merchant_id": "acme-store",
    "policy": {
        "windows": [{"spans": [{"start": "10:00", "end": "18:00"}], "holidays": [{"country": "US"}]}],
        "packs": ["us-tcpa"],
        "starts_per_s": 5,
        "max_concurrent": 50,
        "retries": {"by_outcome": {"BUSY": {"delays_s": [300, 900]}}},
    },
    "priority": 50,
    "max_attempts": 3,
    "ends_at": "2030-06-01T00:00:00Z",
}

STARTS = Field(
    None, description="The time before which no lead is called. Left out: the start of the campaign."
)
ENDS = Field(
    None, description="The time at which the campaign stops by itself. Waiting leads are not called."
)
POLICY = Field(
    EMPTY,
    description="Windows, weekdays, holidays, closed days, pace, calls at once, retries by outcome and limits: "
    "a layer of calling policy, added to those of the merchant, its reseller and the platform.",
)


class CampaignRequest(BaseModel):
    """Many leads under one policy."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [EXAMPLE]})

    request_id: Text | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="Your own id of this request, unique per merchant. A repeated request returns the same campaign.",
    )
    merchant_id: ObjectId | None = Field(
        None, description="The merchant of the campaign. A key that is bound to a merchant may leave it out."
    )
    name: Text = Field(min_length=1, max_length=200)
    policy: CallingPolicy = POLICY
    pool: ObjectId | None = Field(None, description="Left out: the merchant's default pool.")
    priority: int = Field(
        50, ge=1, le=99, strict=True, description="The priority of its leads, unless a row has its own."
    )
    max_attempts: int = Field(
        ATTEMPTS,
        ge=1,
        le=20,
        strict=True,
        description="The maximum number of attempts for each person, whatever their outcome.",
    )
    starts_at: Moment | None = STARTS
    ends_at: Moment | None = ENDS
    reporting_webhook_url: Text | None = Field(None, min_length=1, max_length=ingest.URL_MAX)


def prepare(request: CampaignRequest, admission: Admission) -> NewCampaign | LeadRefused:
    problems = list(
        content_problems(request.starts_at, request.ends_at, request.reporting_webhook_url, admission.now)
    )
    if admission.pool_id is None:
        problems.insert(0, ingest.no_pool(request.pool, "Name a pool, or set the merchant's default_pool."))
    if problems or admission.pool_id is None:
        return LeadRefused(tuple(problems))
    content = request.model_dump(mode="json", exclude={"request_id", "merchant_id"})
    return NewCampaign(
        id=new_id(),
        reseller_id=admission.reseller_id,
        merchant_id=admission.merchant_id,
        request_id=request.request_id,
        request_hash=hashlib.sha256(ingest.encode(content)).digest(),
        name=request.name,
        pool_id=admission.pool_id,
        priority=request.priority,
        max_attempts=request.max_attempts,
        starts_at=request.starts_at and request.starts_at.astimezone(UTC),
        ends_at=request.ends_at and request.ends_at.astimezone(UTC),
        reporting_webhook_url=request.reporting_webhook_url,
    )


def content_problems(
    starts_at: datetime | None, ends_at: datetime | None, reporting_webhook_url: str | None, now: datetime
) -> Iterator[FieldProblem]:
    """Of a request, or of a campaign with a change."""
    bounds = (("starts_at", starts_at), ("ends_at", ends_at))
    outside = next(filter(None, (ingest.moment_problem(moment, field) for field, moment in bounds)), None)
    if outside is not None:
        yield outside
    elif ends_at is not None:
        if ends_at <= now:
            yield FieldProblem("ends_at", "This time has passed: no lead would be called.")
        if starts_at is not None and ends_at <= starts_at:
            yield FieldProblem("ends_at", "The campaign ends before it starts.")
    if reporting_webhook_url and (problem := ingest.webhook_problem(reporting_webhook_url)):
        yield problem
