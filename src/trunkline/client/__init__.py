"""Trunkline's API from Python. It installs without the platform.

async with TrunklineClient("https://calls.example.com", api_key) as trunkline:
    lead = await trunkline.create_lead(phone="+14155550123", merchant_id="acme-store")
"""

import sys
from typing import Any

from trunkline.client.client import SyncTrunklineClient, TrunklineClient
from trunkline.client.errors import ApiError, FieldError, Unreachable
from trunkline.client.models import Aborted, Reopened, RowProblem, UploadReport
from trunkline.client.rollout import RolloutFlags
from trunkline.client.router_settings import RouterSettings, RouterSettingsError
from trunkline.client.smart_router import Busy, CallEnded, Fallback, PodAllocation, SmartRouterClient
from trunkline.client.smart_router_sync import SyncSmartRouterClient
from trunkline.client.unisolated import UNISOLATED, UnisolatedCalls
from trunkline.schema.campaigns import Campaign, CampaignProgress
from trunkline.schema.keys import Me
from trunkline.schema.leads import Attempt, Decision, Lead, LeadWithAttempts, TimelineEvent
from trunkline.schema.numbers import Number, Pool
from trunkline.schema.probes import Health
from trunkline.schema.reminders import Occurrence, Reminder
from trunkline.schema.tenants import Merchant, Reseller

__all__ = [
    "UNISOLATED",
    "Aborted",
    "ApiError",
    "Attempt",
    "Busy",
    "CallEnded",
    "Campaign",
    "CampaignProgress",
    "Decision",
    "Fallback",
    "FieldError",
    "Health",
    "Lead",
    "LeadWithAttempts",
    "Me",
    "Merchant",
    "Number",
    "Occurrence",
    "PodAllocation",
    "Pool",
    "Reminder",
    "Reopened",
    "Reseller",
    "RolloutFlags",
    "RouterSettings",
    "RouterSettingsError",
    "RowProblem",
    "SmartRouterClient",
    "SyncSmartRouterClient",
    "SyncTrunklineClient",
    "TimelineEvent",
    "TrunklineClient",
    "UnisolatedCalls",
    "Unreachable",
    "UploadReport",
]


def __getattr__(name: str) -> Any:
    from trunkline import old_names  # only for an old name: the client loads nothing else of the package

    return old_names.renamed_class(sys.modules[__name__], name)
