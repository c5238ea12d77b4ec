"""Abandonment rates in the API's bodies."""

from typing import Literal

from pydantic import Field

from trunkline.api.models import Out
from trunkline.dispatch.overdialling import is_over
from trunkline.leads import abandonment
from trunkline.leads.calling_policy import Effective
from trunkline.model import Counted
from trunkline.store.abandonment import AbandonmentCounts


class ShareOut(Out):
    answered_by_person: int
    abandoned: int = Field(description="Of those, the calls that no agent took in time.")
    share: float | None = Field(description="From 0 to 1; null before the first answered call.")


class SharesOut(Out):
    last_10m: ShareOut
    last_24h: ShareOut
    last_30d: ShareOut


class CampaignSharesOut(SharesOut):
    abandon_max: float = Field(
        description="The maximum that all layers of policy together allow; a callee's country may lower it."
    )
    overdialling: Literal["off", "on", "ended_by_campaign", "ended_by_merchant"] = Field(
        description="`off`: the dialer reserves an agent for every call. `ended_by_…`: it does so again, because "
        "the share over 30 days, or over the policy's window, has reached 80 % of the maximum."
    )
    answer_rate: float = Field(
        description="The answer rate that overdialling assumes: the upper 95 % bound over the campaign's last "
        "calls, 1 while they are few."
    )
    merchant_last_30d: ShareOut


def shares(measured: AbandonmentCounts) -> SharesOut:
    return SharesOut(
        last_10m=_share(measured.last_10m),
        last_24h=_share(measured.last_24h),
        last_30d=_share(measured.last_30d),
    )


def campaign_shares(
    policy: Effective, campaign: AbandonmentCounts, merchant: AbandonmentCounts, recent: Counted
) -> CampaignSharesOut:
    return CampaignSharesOut(
        **dict(shares(campaign)),
        abandon_max=policy.abandon_max,
        overdialling=_overdialling(policy, campaign, merchant),
        answer_rate=round(abandonment.answer_rate(recent.answered, recent.ended), 4),
        merchant_last_30d=_share(merchant.last_30d),
    )


def _overdialling(
    policy: Effective, campaign: AbandonmentCounts, merchant: AbandonmentCounts
) -> Literal["off", "on", "ended_by_campaign", "ended_by_merchant"]:
    if policy.abandon_max == 0:
        return "off"
    if is_over(policy, campaign, policy.abandon_max):
        return "ended_by_campaign"
    return "ended_by_merchant" if is_over(policy, merchant, policy.abandon_max) else "on"


def _share(counted: Counted) -> ShareOut:
    share = counted.abandoned_share
    return ShareOut(
        answered_by_person=max(0, counted.by_person),
        abandoned=max(0, counted.abandoned),
        share=None if share is None else round(share, 5),
    )
