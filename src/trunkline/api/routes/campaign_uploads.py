"""Uploads leads of a campaign from a file: CSV, JSON lines or a JSON array, with any names of columns."""

from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import StreamingResponse

from trunkline.api.auth import API_ROOT, LeadsKey
from trunkline.api.deps import Deps
from trunkline.api.errors import conflict, invalid
from trunkline.api.models import require_found
from trunkline.api.ownership import record
from trunkline.api.routes.leads_bulk import (
    UPLOADED,
    blocks,
    kind_of,
    request_body,
    take_upload,
    upload_problem,
)
from trunkline.campaigns.rows import CampaignRows, Others, parse_mapping, reader, same_person
from trunkline.campaigns.spool import Spool
from trunkline.leads.bulk import ROWS_MAX
from trunkline.leads.ingest import FieldProblem
from trunkline.leads.upload_report import UploadReport
from trunkline.leads.uploads import BrokenUpload
from trunkline.store import campaigns, leads

router = APIRouter(prefix=f"{API_ROOT}/campaigns", tags=["campaigns"])

CAMPAIGN_ROWS_MAX = 2_000_000
_CSV = "Mobile,Full name,Plan\n+14155550123,Ada,gold\n"
_ROW = {"phone": "+14155550123", "payload": {"name": "Ada"}}


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
    columns = parse_mapping(query.map, query.others)
    if isinstance(columns, str):
        raise invalid(FieldProblem("map", columns))
    kind = kind_of(request)
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
        await _fill(spool, request)
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
    finally:
        spool.close()
    async with api.store.writing() as tx:
        await record(tx, who, "campaign.uploaded", campaign.id, campaign.tenant, rows=spool.rows)
    return answer


async def _fill(spool: Spool, request: Request) -> None:
    try:
        await spool.take(blocks(request))
    except BrokenUpload as error:
        raise upload_problem(error) from None
