"""Campaigns: many leads under one policy, from the draft to the results."""

from collections.abc import AsyncIterator
from datetime import UTC
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, BackgroundTasks, Query, Response
from pydantic import ConfigDict, Field
from starlette.responses import StreamingResponse

from trunkline.api.auth import API_ROOT, LeadsKey, ReadKey
from trunkline.api.deps import Api, Deps
from trunkline.api.errors import conflict, invalid, unknown
from trunkline.api.models import READ_ERRORS, WRITE_ERRORS, Body, require_found
from trunkline.api.ownership import record
from trunkline.api.paging import LAST_ID, Cursors, Page, PageQuery
from trunkline.api.principal import Principal
from trunkline.api.resources import extended
from trunkline.api.routes.lead_edits import HANG_UP
from trunkline.api.routes.leads import merchant_of, same_request
from trunkline.api.routes.policy import put_layer, wake_leads
from trunkline.campaigns import lifecycle
from trunkline.campaigns.lifecycle import DONE, FROM, Action
from trunkline.campaigns.progress import campaign_shares, progress
from trunkline.campaigns.request import ENDS, STARTS, CampaignRequest, content_problems, prepare
from trunkline.dispatch.policy_cache import campaign_key
from trunkline.jobs.platform.exports import COLUMNS, as_csv
from trunkline.leads import ingest
from trunkline.leads.abandonment import recent as recent_calls
from trunkline.leads.calling_policy import CallingPolicy
from trunkline.leads.ingest import LeadRefused
from trunkline.schema.campaigns import (
    Campaign,
    CampaignProgress,
    CampaignStatus,
    CampaignWithPolicy,
    ListedCampaign,
)
from trunkline.schema.controls import RAMP_MAX_S, Reason
from trunkline.schema.fields import Moment, ObjectId, Text
from trunkline.store import abandonment, campaigns, leads, policy
from trunkline.store.campaigns import StoredCampaign
from trunkline.store.database import Connection
from trunkline.store.leads import LeadFilter
from trunkline.store.reminders import StoredReminder

router = APIRouter(prefix=f"{API_ROOT}/campaigns", tags=["campaigns"])

RESULTS_PAGE = 1000


class CampaignQuery(PageQuery):
    merchant_id: ObjectId | None = None
    status: CampaignStatus | None = None


class CampaignChange(Body):
    """Omitted fields do not change. `policy` is replaced as a whole."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"priority": 10, "ends_at": "2030-06-15T00:00:00Z"}]}
    )

    name: Text | None = Field(None, min_length=1, max_length=200)
    policy: CallingPolicy | None = Field(
        None, description="The campaign's own layer of calling policy, as a whole."
    )
    pool: ObjectId | None = Field(None, description="The number pool of its leads; waiting leads get it too.")
    priority: int | None = Field(None, ge=1, le=99, strict=True)
    max_attempts: int | None = Field(
        None,
        ge=1,
        le=20,
        strict=True,
        description="How often each lead is called at most; for waiting leads too.",
    )
    starts_at: Moment | None = STARTS
    ends_at: Moment | None = ENDS
    reporting_webhook_url: Text | None = Field(None, min_length=1, max_length=ingest.URL_MAX)


class RunIn(Body):
    """Starts or resumes a campaign."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"ramp_s": 60}]})

    ramp_s: int = Field(
        0, ge=0, le=RAMP_MAX_S, strict=True, description="Over how many seconds the pace ramps up."
    )


class PauseIn(Body):
    """Pauses a campaign."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "wrong prompt"}]})

    reason: Reason = Field("paused", description="The reason, for the audit log.")


class CampaignStopIn(Body):
    """Stops a campaign for good."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "sold out", "hang_up": True}]})

    reason: Reason = Field(
        "stopped", description="The reason, for the outcome of every lead that was not called."
    )
    hang_up: bool = HANG_UP


@router.post(
    "",
    status_code=201,
    responses=WRITE_ERRORS
    | {200: {"model": CampaignWithPolicy, "description": "This request was sent before."}},
    summary="Create a campaign",
)
async def create_campaign(
    body: CampaignRequest, who: LeadsKey, api: Deps, response: Response
) -> CampaignWithPolicy:
    """A draft: upload its leads, then start it. Idempotent with a `request_id`."""
    merchant_id = merchant_of(who, body.merchant_id)
    async with api.store.writing() as tx:
        admission = await leads.admission(tx, who.tenant, merchant_id, body.pool)
        if admission is None:
            raise unknown("merchant_id", "merchant")
        new = prepare(body, admission)
        if isinstance(new, LeadRefused):
            raise invalid(*new.problems)
        campaign = await campaigns.insert(tx, new)
        if campaign is None:
            response.status_code = 200
            earlier = await campaigns.by_request(tx, new.merchant_id, new.request_id)
            return await with_policy(tx, same_request(require_found(earlier, "campaign"), new))
        await put_own_policy(tx, api, who, campaign, body.policy)
        await lifecycle.hold(tx, campaign, who.actor, "not started")
        await record(tx, who, "campaign.made", campaign.id, campaign.tenant, name=campaign.name)
        return await with_policy(tx, campaign)


@router.get("", responses=READ_ERRORS, summary="List campaigns")
async def list_campaigns(
    query: Annotated[CampaignQuery, Query()], who: ReadKey, api: Deps
) -> Page[ListedCampaign]:
    """Newest first, each with its progress."""
    cursors = Cursors("campaigns", who, query)
    async with api.store.reading() as connection:
        rows = await campaigns.list_campaigns(
            connection,
            who.tenant,
            merchant_id=query.merchant_id,
            status=query.status,
            before=cursors.start_id(LAST_ID),
            limit=cursors.fetch_limit,
        )
    return cursors.page(rows, lambda campaign: campaign.id)


@router.get("/{campaign_id}", responses=READ_ERRORS, summary="Get a campaign")
async def get_campaign(campaign_id: UUID, who: ReadKey, api: Deps) -> CampaignWithPolicy:
    async with api.store.reading() as connection:
        campaign = require_found(await campaigns.get(connection, who.tenant, campaign_id), "campaign")
        return await with_policy(connection, campaign)


@router.get(
    "/{campaign_id}/progress",
    responses=READ_ERRORS,
    summary="Get the progress of a campaign",
)
async def campaign_progress(campaign_id: UUID, who: ReadKey, api: Deps) -> CampaignProgress:
    """From counts that are maintained with every change of its leads."""
    async with api.store.reading() as connection:
        campaign = require_found(await campaigns.get(connection, who.tenant, campaign_id), "campaign")
        tallies = await campaigns.progress(connection, campaign)
        effective = ingest.effective(*await campaigns.layers(connection, campaign))
        sample = await campaigns.sample(connection, campaign) if campaign.status == "RUNNING" else None
        merchant_id, window_h = campaign.merchant_id, effective.abandon_window_h or 24
        calls = await abandonment.recent(connection, [(merchant_id, campaign.id)])
        shares = campaign_shares(
            effective,
            await abandonment.measured(connection, merchant_id, campaign.id, window_h=window_h),
            await abandonment.measured(connection, merchant_id, window_h=window_h),
            recent_calls(calls.get((merchant_id, campaign.id), ()), campaign.now),
        )
    return progress(campaign, tallies, effective.rules_of(*sample) if sample else (), shares)


@router.patch(
    "/{campaign_id}",
    responses=WRITE_ERRORS,
    summary="Change a campaign that does not run",
)
async def update_campaign(
    campaign_id: UUID, body: CampaignChange, who: LeadsKey, api: Deps, afterwards: BackgroundTasks
) -> CampaignWithPolicy:
    """Only for a draft or a paused campaign. Waiting leads get a new pool, priority or number of attempts too, unless
    their row named its own."""
    given = body.model_dump(include=body.model_fields_set - {"policy", "pool"})
    async with api.store.writing() as tx:
        campaign = await _locked(tx, who, campaign_id)
        if campaign.status not in ("DRAFT", "PAUSED"):
            raise conflict("not_paused", f"This campaign is {campaign.status}. Pause it first.")
        if campaign.given != campaign.gives:
            raise conflict(
                "being_applied", "The last change is still being applied to its leads. Try again soon."
            )
        if body.pool is not None:
            admission = await leads.admission(tx, who.tenant, campaign.merchant_id, body.pool)
            if admission is None or admission.pool_id is None:
                raise invalid(ingest.no_pool(body.pool))
            given["pool_id"] = admission.pool_id
        _refuse_content(campaign, given)
        campaign = await campaigns.edit(tx, campaign.id, given)
        if body.policy is not None:
            await put_own_policy(tx, api, who, campaign, body.policy)
            afterwards.add_task(wake_leads, api, campaign.tenant)
        await record(
            tx, who, "campaign.changed", campaign.id, campaign.tenant, fields=sorted(body.model_fields_set)
        )
        return await with_policy(tx, campaign)


@router.post("/{campaign_id}/start", responses=WRITE_ERRORS, summary="Start a campaign")
async def start_campaign(campaign_id: UUID, body: RunIn, who: LeadsKey, api: Deps) -> Campaign:
    """Its leads are called from now on, or from `starts_at` on. Idempotent."""
    return await _run(api, who, campaign_id, "start", body.ramp_s)


@router.post("/{campaign_id}/resume", responses=WRITE_ERRORS, summary="Resume a campaign")
async def resume_campaign(campaign_id: UUID, body: RunIn, who: LeadsKey, api: Deps) -> Campaign:
    """After a pause. Idempotent."""
    return await _run(api, who, campaign_id, "resume", body.ramp_s)


@router.post("/{campaign_id}/pause", responses=WRITE_ERRORS, summary="Pause a campaign")
async def pause_campaign(campaign_id: UUID, body: PauseIn, who: LeadsKey, api: Deps) -> Campaign:
    """Within a second no new call is started; live calls go on. Idempotent."""
    async with api.store.writing() as tx:
        campaign = await _locked(tx, who, campaign_id)
        if not _is_to_do(campaign, "pause"):
            return campaign
        await record(tx, who, "campaign.paused", campaign.id, campaign.tenant, reason=body.reason)
        return await lifecycle.pause(tx, campaign, who.actor, body.reason)


@router.post(
    "/{campaign_id}/stop",
    status_code=202,
    responses=WRITE_ERRORS,
    summary="Stop a campaign for good",
)
async def stop_campaign(campaign_id: UUID, body: CampaignStopIn, who: LeadsKey, api: Deps) -> Campaign:
    """No new call is started. Waiting leads end within seconds as ABORTED; live calls go on, or are hung up with
    `hang_up`. Idempotent."""
    async with api.store.writing() as tx:
        campaign = await _locked(tx, who, campaign_id)
        if not _is_to_do(campaign, "stop"):
            return campaign
        await record(
            tx,
            who,
            "campaign.stopped",
            campaign.id,
            campaign.tenant,
            reason=body.reason,
            hang_up=body.hang_up,
        )
        return await lifecycle.stop(tx, campaign, who.actor, body.reason, hang_up=body.hang_up)


@router.get(
    "/{campaign_id}/results",
    response_class=StreamingResponse,
    responses=READ_ERRORS | {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
    summary="The results of a campaign as CSV",
)
async def get_campaign_results(campaign_id: UUID, who: ReadKey, api: Deps) -> StreamingResponse:
    """A line for each lead, newest first, streamed: only a page of leads is in memory, whatever the length."""
    async with api.store.reading() as connection:
        campaign = require_found(await campaigns.get(connection, who.tenant, campaign_id), "campaign")
    headers = {"Content-Disposition": f'attachment; filename="campaign-{campaign_id}.csv"'}
    return StreamingResponse(_results(api, campaign), media_type="text/csv", headers=headers)


async def _results(api: Api, campaign: StoredCampaign) -> AsyncIterator[bytes]:
    yield ",".join(COLUMNS).encode() + b"\r\n"
    wanted, before = LeadFilter(campaign.merchant_id, campaign.id), LAST_ID
    while True:
        async with api.store.reading() as connection:
            page = await leads.list_leads(
                connection, campaign.tenant, wanted, before=before, limit=RESULTS_PAGE
            )
        if not page:
            return
        yield as_csv(page)
        before = page[-1].id


async def with_policy(conn: Connection, campaign: StoredCampaign) -> CampaignWithPolicy:
    rows = await policy.read(conn, [campaign_key(campaign.merchant_id, campaign.id)])
    return extended(CampaignWithPolicy, campaign, policy=rows[0].policy if rows else {})


async def _run(api: Api, who: Principal, campaign_id: UUID, act: Action, ramp_s: int) -> StoredCampaign:
    async with api.store.writing() as tx:
        campaign = await _locked(tx, who, campaign_id)
        if not _is_to_do(campaign, act):
            return campaign
        if campaign.ends_at is not None and campaign.ends_at <= campaign.now:
            raise conflict("over", "The end of this campaign has passed. Change `ends_at` first.")
        await record(
            tx,
            who,
            "campaign.started" if act == "start" else "campaign.resumed",
            campaign.id,
            campaign.tenant,
        )
        return await lifecycle.run(tx, campaign, who.actor, ramp_s=ramp_s)


def _is_to_do(campaign: StoredCampaign, act: Action) -> bool:
    """False: the campaign is in that state already."""
    if campaign.status in FROM[act]:
        return True
    if campaign.status in DONE[act]:
        return False
    raise conflict("wrong_status", f"This campaign is {campaign.status}: there is nothing to {act}.")


async def _locked(tx: Connection, who: Principal, campaign_id: UUID) -> StoredCampaign:
    return require_found(await campaigns.lock(tx, who.tenant, campaign_id), "campaign")


async def put_own_policy(
    tx: Connection, api: Api, who: Principal, owner: StoredCampaign | StoredReminder, body: CallingPolicy
) -> None:
    """A layer below the merchant's, under the owner's id: the gates read it like every other one."""
    await put_layer(tx, api, who, campaign_key(owner.merchant_id, owner.id), body, owner.tenant)


def _refuse_content(campaign: StoredCampaign, given: dict[str, Any]) -> None:
    for name in ("starts_at", "ends_at"):
        if given.get(name) is not None and ingest.moment_problem(given[name]) is None:
            given[name] = given[name].astimezone(UTC)
    starts_at, ends_at = given.get("starts_at", campaign.starts_at), given.get("ends_at", campaign.ends_at)
    url = given.get("reporting_webhook_url")
    if problems := list(content_problems(starts_at, ends_at, url, campaign.now)):
        raise invalid(*problems)
