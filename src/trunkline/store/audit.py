"""Who changed what. Written in the transaction of the change itself, so neither exists without the other."""

from collections.abc import Mapping
from typing import Any

from trunkline.store.database import Connection
from trunkline.store.sql import query
from trunkline.store.tenants import Tenant

_INSERT = query("audit/insert")


async def record(
    tx: Connection,
    *,
    actor: str,
    action: str,
    subject: str,
    tenant: Tenant,
    details: Mapping[str, Any] | None = None,
    reason: str | None = None,
) -> None:
    """`action` is an event in the past tense (`key.revoked`); `tenant` says who may read the line."""
    await tx.execute(
        _INSERT, actor, action, subject, reason, dict(details or {}), tenant.reseller_id, tenant.merchant_id
    )
