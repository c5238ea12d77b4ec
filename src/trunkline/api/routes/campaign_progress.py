"""The progress of a campaign, and its estimated end."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from fastapi import APIRouter
from pydantic import BaseModel, Field

from trunkline.api.abandonment import CampaignSharesOut, campaign_shares
from trunkline.api.auth import API_ROOT, ReadKey
from trunkline.api.deps import Deps
from trunkline.api.models import READ_ERRORS, require_found
from trunkline.campaigns import estimate
from trunkline.campaigns.lifecycle import Status
from trunkline.leads import ingest
from trunkline.leads.abandonment import recent as recent_calls
from trunkline.leads.calling_policy import Effective
from trunkline.leads.windows import WindowRule
from trunkline.states import LeadStatus
from trunkline.store import abandonment, campaigns
from trunkline.store.campaigns import OutcomeCount, StoredCampaign
from trunkline.store.database import Connection

router = APIRouter(prefix=f"{API_ROOT}/campaigns", tags=["campaigns"])


class CampaignProgressOut(BaseModel):
    status: Status
    leads: int
    waiting: int = Field(description="Not called yet, or to be called again.")
    to_be_retried: int = Field(description="Waiting leads that were called at least once.")
    calling: int = Field(description="Being called now.")
    finished: int
    outcomes: dict[str, int] = Field(description="Of the finished leads, by outcome.")
    attempts: int
    share: float = Field(description="The share of finished leads, from 0 to 1.")
    finished_per_minute: float = Field(description="In the last ten minutes, or since the campaign started.")
    next_due_at: datetime | None = Field(description="When the next waiting lead is due.")
    estimated_end_at: datetime | None = Field(
        description="The estimated end, at the pace of the last ten minutes, or since the campaign started, "
        "within its windows. null: the campaign does not run, is completed, or there is no estimate."
    )
    abandonment: CampaignSharesOut = Field(
        description="Abandoned calls: a person answered, and no agent took the call."
    )
    as_of: datetime


@router.get(
    "/{campaign_id}/progress",
    response_model=CampaignProgressOut,
    responses=READ_ERRORS,
    summary="Get the progress of a campaign",
)
async def campaign_progress(campaign_id: UUID, who: ReadKey, api: Deps) -> CampaignProgressOut:
    """From counts that are maintained with every change of its leads."""
    async with api.store.reading() as connection:
        campaign = require_found(await campaigns.get(connection, who.tenant, campaign_id), "campaign")
        tallies = await campaigns.progress(connection, campaign)
        policy = ingest.effective(*await campaigns.layers(connection, campaign))
        rules = await _rules(connection, campaign, policy) if campaign.status == "RUNNING" else ()
        shares = await _shares(connection, campaign, policy)
    return _progress(campaign, tallies, rules, shares)


async def _rules(
    connection: Connection, campaign: StoredCampaign, policy: Effective
) -> tuple[WindowRule, ...]:
    """The windows of one lead that is still to be called, taken for all of them."""
    sample = await campaigns.sample(connection, campaign)
    return () if sample is None else policy.rules_of(*sample)


async def _shares(connection: Connection, campaign: StoredCampaign, policy: Effective) -> CampaignSharesOut:
    merchant_id, window_h = campaign.merchant_id, policy.abandon_window_h or 24
    recent = await abandonment.recent(connection, [(merchant_id, campaign.id)])
    return campaign_shares(
        policy,
        await abandonment.measured(connection, merchant_id, campaign.id, window_h=window_h),
        await abandonment.measured(connection, merchant_id, window_h=window_h),
        recent_calls(recent.get((merchant_id, campaign.id), ()), campaign.now),
    )


def _progress(
    campaign: StoredCampaign,
    tallies: Sequence[OutcomeCount],
    rules: tuple[WindowRule, ...],
    shares: CampaignSharesOut,
) -> CampaignProgressOut:
    by_status: Counter[str] = Counter()
    for tally in tallies:
        by_status[tally.status] += tally.leads
    total, finished = by_status.total(), by_status[LeadStatus.FINISHED]
    per_s = estimate.pace(sum(tally.lately for tally in tallies), campaign.runs_since, campaign.now)
    left = total - finished
    waits = [tally for tally in tallies if tally.status == LeadStatus.BACKLOG]
    is_running = campaign.status == "RUNNING" and left > 0
    end_at = estimate.ends_at(left, per_s, campaign.now, rules) if is_running else None
    return CampaignProgressOut.model_validate(
        {
            "status": campaign.status,
            "leads": total,
            "waiting": by_status[LeadStatus.BACKLOG],
            "to_be_retried": sum(tally.tried for tally in waits),
            "calling": by_status[LeadStatus.PROCESSING],
            "finished": finished,
            "outcomes": {tally.outcome: tally.leads for tally in tallies if tally.outcome},
            "attempts": sum(tally.attempts for tally in tallies),
            "share": finished / total if total else 0.0,
            "finished_per_minute": round(per_s * 60, 2),
            "next_due_at": min((tally.next_due_at for tally in waits if tally.next_due_at), default=None),
            "estimated_end_at": end_at,
            "abandonment": shares,
            "as_of": campaign.now,
        }
    )
