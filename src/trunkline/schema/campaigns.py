"""Campaigns and their progress."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from trunkline.schema.fields import CREATED_AT, ITS_ID, UPDATED_AT, about

CampaignStatus = Literal["DRAFT", "RUNNING", "PAUSED", "COMPLETED", "STOPPING", "STOPPED"]
Overdialling = Literal["off", "on", "ended_by_campaign", "ended_by_merchant"]


@dataclass(frozen=True, slots=True)
class Campaign:
    """Many leads under one policy."""

    id: UUID = field(metadata=ITS_ID)
    merchant_id: str = field(metadata=about("Its merchant."))
    name: str = field(metadata=about("For people."))
    status: CampaignStatus = field(
        metadata=about(
            "DRAFT: no lead is called. COMPLETED: no lead is left to call; the campaign runs again when one is added "
            "or reopened. STOPPING: no new call is started, and its leads are being ended."
        )
    )
    pool: str = field(metadata=about("The number pool of its leads, unless a row named its own."))
    priority: int = field(metadata=about("Of its leads, unless a row named its own."))
    max_attempts: int = field(metadata=about("Of its leads, unless a row named its own."))
    starts_at: datetime | None = field(metadata=about("Nobody is called before."))
    ends_at: datetime | None = field(metadata=about("When it stops by itself."))
    stop_reason: str | None = field(metadata=about("Why it was stopped."))
    started_at: datetime | None = field(metadata=about("When it was started first."))
    stopped_at: datetime | None = field(metadata=about("When it was stopped."))
    created_at: datetime = field(metadata=CREATED_AT)
    updated_at: datetime = field(metadata=UPDATED_AT)
    completed_at: datetime | None = field(metadata=about("Since when no lead is left to call.", absent=None))
    request_id: str | None = field(
        metadata=about("The id of the request that created it, if it had one.", absent=None)
    )
    reseller_id: str = field(metadata=about("The reseller of its merchant.", absent=""))
    reporting_webhook_url: str | None = field(
        metadata=about("Where the results of its leads are reported.", absent=None)
    )


@dataclass(frozen=True, slots=True)
class ListedCampaign(Campaign):
    """A campaign with its progress."""

    leads: int = field(metadata=about("The number of its leads."))
    finished: int = field(metadata=about("The number of its finished leads."))


@dataclass(frozen=True, slots=True)
class CampaignWithPolicy(Campaign):
    """A campaign with its calling policy."""

    policy: dict[str, Any] = field(
        metadata=about("The campaign's own layer of calling policy, as it was set.")
    )


@dataclass(frozen=True, slots=True)
class Share:
    """How many calls were abandoned: a person answered, and no agent took the call."""

    answered_by_person: int = field(metadata=about("Calls that a person answered."))
    abandoned: int = field(metadata=about("Of those, the calls that no agent took in time."))
    share: float | None = field(metadata=about("From 0 to 1; null before the first answered call."))


@dataclass(frozen=True, slots=True)
class Shares:
    """Abandoned calls over three spans of time."""

    last_10m: Share = field(metadata=about("Over ten minutes."))
    last_24h: Share = field(metadata=about("Over a day."))
    last_30d: Share = field(metadata=about("Over 30 days."))


@dataclass(frozen=True, slots=True)
class CampaignShares(Shares):
    """Abandoned calls of a campaign, and what follows for its dials."""

    abandon_max: float = field(
        metadata=about(
            "The maximum that all layers of policy together allow; a callee's country may lower it."
        )
    )
    overdialling: Overdialling = field(
        metadata=about(
            "`off`: the dialer reserves an agent for every call. `ended_by_…`: it does so again, because the share "
            "over 30 days, or over the policy's window, has reached 80 % of the maximum."
        )
    )
    answer_rate: float = field(
        metadata=about(
            "The answer rate that overdialling assumes: the upper 95 % bound over the campaign's last calls, 1 while "
            "they are few."
        )
    )
    merchant_last_30d: Share = field(metadata=about("Of its merchant, over 30 days."))


@dataclass(frozen=True, slots=True)
class CampaignProgress:
    """How far a campaign has come."""

    status: CampaignStatus = field(metadata=about("As of the campaign."))
    leads: int = field(metadata=about("The number of its leads."))
    waiting: int = field(metadata=about("Not called yet, or to be called again."))
    to_be_retried: int = field(metadata=about("Waiting leads that were called at least once."))
    calling: int = field(metadata=about("Being called now."))
    finished: int = field(metadata=about("The number of its finished leads."))
    outcomes: dict[str, int] = field(metadata=about("Of the finished leads, by outcome."))
    attempts: int = field(metadata=about("The number of calls."))
    share: float = field(metadata=about("The share of finished leads, from 0 to 1."))
    finished_per_minute: float = field(
        metadata=about("In the last ten minutes, or since the campaign started.")
    )
    next_due_at: datetime | None = field(metadata=about("When the next waiting lead is due."))
    estimated_end_at: datetime | None = field(
        metadata=about(
            "The estimated end, at the pace of the last ten minutes, or since the campaign started, within its "
            "windows. null: the campaign does not run, is completed, or there is no estimate."
        )
    )
    abandonment: CampaignShares = field(
        metadata=about("Abandoned calls: a person answered, and no agent took the call.", absent=None)
    )
    as_of: datetime = field(metadata=about("When it was read."))
