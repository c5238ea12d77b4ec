"""Campaigns."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from trunkline.schema.fields import CREATED_AT, ITS_ID, UPDATED_AT, about

CampaignStatus = Literal["DRAFT", "RUNNING", "PAUSED", "COMPLETED", "STOPPING", "STOPPED"]


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
    policy: dict[str, Any] = field(
        metadata=about("The campaign's own layer of calling policy, as it was set.")
    )
