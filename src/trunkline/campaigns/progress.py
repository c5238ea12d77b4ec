"""The progress of a campaign: its counts, its estimated end, its abandoned calls. Pure.

The estimate assumes the pace of the last ten minutes, or since the campaign runs. The remaining work takes its time
only while its windows are open: nights and holidays are added. It is absent where nothing has happened yet.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from trunkline.dispatch.overdialling import is_over
from trunkline.leads import abandonment
from trunkline.leads.calling_policy import Effective
from trunkline.leads.windows import WindowRule, next_opening
from trunkline.model import Counted
from trunkline.schema.campaigns import CampaignProgress, CampaignShares, Overdialling, Share, Shares
from trunkline.states import LeadStatus
from trunkline.store.abandonment import AbandonmentCounts
from trunkline.store.campaigns import OutcomeCount, StoredCampaign

RECENT_S = 600.0
# The estimate walks over windows one by one. After this many it is further away than any plan.
OPENINGS_MAX = 400


def pace(ended: int, since: datetime | None, now: datetime) -> float:
    """How many leads end per second. A campaign that has just begun or resumed is measured over the time since then, at
    least a second. One that does not run is measured over ten minutes."""
    passed_s = (now - since).total_seconds() if since else RECENT_S
    return ended / max(1.0, min(RECENT_S, passed_s))


def ends_at(left: int, per_s: float, now: datetime, rules: tuple[WindowRule, ...]) -> datetime | None:
    """None: it cannot be estimated."""
    if left == 0:
        return now
    if per_s <= 0:
        return None
    work, at = timedelta(seconds=left / per_s), now
    for _ in range(OPENINGS_MAX):
        opening = next_opening(rules, at) if rules else None
        if rules and opening is None:
            return None
        if opening is None or opening.closes_at is None:
            return max(at, opening.opens_at if opening else at) + work
        open_for = opening.closes_at - opening.opens_at
        if work <= open_for:
            return opening.opens_at + work
        work, at = work - open_for, opening.closes_at
    return None


def progress(
    campaign: StoredCampaign,
    tallies: Sequence[OutcomeCount],
    rules: tuple[WindowRule, ...],
    abandoned: CampaignShares,
) -> CampaignProgress:
    """`rules` are the windows of one lead that is still to be called, taken for all of them."""
    by_status: Counter[str] = Counter()
    for tally in tallies:
        by_status[tally.status] += tally.leads
    total, finished = by_status.total(), by_status[LeadStatus.FINISHED]
    per_s = pace(sum(tally.lately for tally in tallies), campaign.runs_since, campaign.now)
    waits = [tally for tally in tallies if tally.status == LeadStatus.BACKLOG]
    is_running = campaign.status == "RUNNING" and total > finished
    return CampaignProgress(
        status=campaign.status,
        leads=total,
        waiting=by_status[LeadStatus.BACKLOG],
        to_be_retried=sum(tally.tried for tally in waits),
        calling=by_status[LeadStatus.PROCESSING],
        finished=finished,
        outcomes={tally.outcome: tally.leads for tally in tallies if tally.outcome},
        attempts=sum(tally.attempts for tally in tallies),
        share=finished / total if total else 0.0,
        finished_per_minute=round(per_s * 60, 2),
        next_due_at=min((tally.next_due_at for tally in waits if tally.next_due_at), default=None),
        estimated_end_at=ends_at(total - finished, per_s, campaign.now, rules) if is_running else None,
        abandonment=abandoned,
        as_of=campaign.now,
    )


def shares(measured: AbandonmentCounts) -> Shares:
    return Shares(_share(measured.last_10m), _share(measured.last_24h), _share(measured.last_30d))


def campaign_shares(
    policy: Effective, campaign: AbandonmentCounts, merchant: AbandonmentCounts, recent: Counted
) -> CampaignShares:
    overdialling: Overdialling = "off"
    if policy.abandon_max:
        of_merchant = is_over(policy, merchant, policy.abandon_max)
        overdialling = "ended_by_merchant" if of_merchant else "on"
        if is_over(policy, campaign, policy.abandon_max):
            overdialling = "ended_by_campaign"
    return CampaignShares(
        _share(campaign.last_10m),
        _share(campaign.last_24h),
        _share(campaign.last_30d),
        abandon_max=policy.abandon_max,
        overdialling=overdialling,
        answer_rate=round(abandonment.answer_rate(recent.answered, recent.ended), 4),
        merchant_last_30d=_share(merchant.last_30d),
    )


def _share(counted: Counted) -> Share:
    share = counted.abandoned_share
    return Share(
        max(0, counted.by_person), max(0, counted.abandoned), None if share is None else round(share, 5)
    )
