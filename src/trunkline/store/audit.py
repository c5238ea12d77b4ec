"""The audit log. Written in the transaction of the change itself, so neither exists without the other."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trunkline.schema.alarms import AuditLine
from trunkline.store.database import Connection
from trunkline.store.rows import pick
from trunkline.store.sql import Area
from trunkline.store.tenants import Tenant

_SQL = Area("audit")


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """`action` is a whole action (`key.revoked`) or the first part of several (`key`)."""

    actor: str | None = None
    action: str | None = None
    subject: str | None = None
    since: datetime | None = None
    until: datetime | None = None


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
    """`action` is an event in the past tense (`key.revoked`); `tenant` is the one that may read the line."""
    await tx.execute(
        _SQL.insert,
        actor,
        action,
        subject,
        reason,
        dict(details or {}),
        tenant.reseller_id,
        tenant.merchant_id,
    )


async def list_lines(
    conn: Connection, tenant: Tenant, wanted: AuditFilter, *, before: int, limit: int
) -> list[AuditLine]:
    """Newest first: the lines of the tenant and of all below it."""
    rows = await conn.fetch(
        _SQL.list if wanted.since is None or wanted.until is None else _SQL.list_between,
        tenant.reseller_id,
        tenant.merchant_id,
        before,
        wanted.actor,
        wanted.action,
        wanted.subject,
        wanted.since,
        wanted.until,
        limit,
    )
    return [pick(AuditLine, row) for row in rows]
