"""Raises and clears alarms, for the components that detect the fault."""

from collections.abc import Mapping
from typing import Any

from trunkline.control.alarms import DEFINITIONS
from trunkline.store import alarms
from trunkline.store.database import Connection, Database
from trunkline.store.tenants import PLATFORM, Tenant
from trunkline.telemetry import get_logger

log = get_logger(__name__)


async def raise_alarm(
    where: "Connection | Database",
    name: str,
    subject: str = "",
    detail: Mapping[str, Any] | None = None,
    tenant: Tenant = PLATFORM,
) -> bool:
    """Raise an alarm, or renew it if it is open. True if it is new.

    In a transaction it comes last, after leads, limits, attempts, mailboxes and jobs: all components that raise the
    same alarm lock its row. Several are raised in the order of their names and subjects. The `AlarmNotifier` of any
    process sends the webhook, after the commit.
    """
    if isinstance(where, Database):
        async with where.transaction() as tx:
            return await raise_alarm(tx, name, subject, detail, tenant)
    definition = DEFINITIONS[name]
    is_new = await alarms.raise_alarm(
        where, name, subject, severity=definition.severity, detail=detail or {}, tenant=tenant
    )
    if is_new:
        log.error("alarm.raised", alarm=name, subject=subject, severity=definition.severity.value)
    return is_new


async def clear_alarm(
    where: "Connection | Database", name: str, subject: str = "", by: str = "system"
) -> bool:
    """Clear an alarm. True if it was open."""
    if isinstance(where, Database):
        async with where.transaction() as tx:
            return await clear_alarm(tx, name, subject, by)
    was_open = await alarms.clear(where, name, subject, by)
    if was_open:
        log.info("alarm.cleared", alarm=name, subject=subject)
    return was_open
