"""Trunkline's API from Python. It installs without the platform.

async with TrunklineClient("https://calls.example.com", api_key) as trunkline:
    lead = await trunkline.create_lead(phone="+14155550123", merchant_id="acme-store")
"""

from trunkline.client.client import TrunklineClient
from trunkline.client.errors import ApiError, FieldError, Unreachable
from trunkline.client.models import (
    Aborted,
    Attempt,
    Decision,
    Happening,
    Health,
    Lead,
    LeadWithAttempts,
    Me,
    Merchant,
    Number,
    Pool,
    Reseller,
    RowProblem,
    UploadReport,
)

__all__ = [
    "Aborted",
    "ApiError",
    "Attempt",
    "Decision",
    "FieldError",
    "Happening",
    "Health",
    "Lead",
    "LeadWithAttempts",
    "Me",
    "Merchant",
    "Number",
    "Pool",
    "Reseller",
    "RowProblem",
    "TrunklineClient",
    "Unreachable",
    "UploadReport",
]
