"""Stops: who set them, why and until when. Every change raises a version that all processes poll."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

import asyncpg

from trunkline.store.database import Connection
from trunkline.store.sql import Area
from trunkline.store.tenants import Tenant

_SQL = Area("controls")


class Scope(StrEnum):
    """What a stop applies to."""

    KILL_SWITCH = "kill_switch"
    PROMOTER = "promoter"
    RESELLER = "reseller"
    MERCHANT = "merchant"
    CAMPAIGN = "campaign"
    NUMBER = "number"
    CARRIER = "carrier"


class Level(StrEnum):
    """Who set a stop. Only the level that set a stop can lift it."""

    PLATFORM = "platform"
    RESELLER = "reseller"
    MERCHANT = "merchant"

    @classmethod
    def of(cls, tenant: Tenant) -> "Level":
        if tenant.is_platform:
            return cls.PLATFORM
        return cls.RESELLER if tenant.merchant_id is None else cls.MERCHANT

    def is_over(self, other: "Level") -> bool:
        order = list(Level)
        return order.index(self) <= order.index(other)


Phase = Literal["stopped", "ramping", "over"]


@dataclass(frozen=True, slots=True)
class Control:
    """A stop and its ramp: stopped until `ends_at`, then growing to the full pace within `ramp_s`."""

    scope: Scope
    subject: str
    set_by: Level
    reason: str
    changed_by: str
    changed_at: datetime
    stopped_at: datetime
    ends_at: datetime | None
    ramp_s: int
    reseller_id: str | None
    merchant_id: str | None
    # Postgres's clock when this was read.
    seen_at: datetime

    @property
    def tenant(self) -> Tenant:
        return Tenant(self.reseller_id, self.merchant_id)

    @property
    def ramp_until(self) -> datetime | None:
        return self.ends_at and self.ends_at + timedelta(seconds=self.ramp_s)

    def share(self, now: datetime) -> float:
        """The share of its usual starts that it may make: 0 while stopped, 1 after the ramp."""
        if self.ends_at is None or now < self.ends_at:
            return 0.0
        since_s = (now - self.ends_at).total_seconds()
        return 1.0 if since_s >= self.ramp_s else since_s / self.ramp_s

    def phase(self, now: datetime) -> Phase:
        if self.ends_at is None or now < self.ends_at:
            return "stopped"
        return "ramping" if self.share(now) < 1.0 else "over"


@dataclass(frozen=True, slots=True)
class NewStop:
    """`ends_at` is a time, `ends_in_s` a delay from now by Postgres's clock; neither: until it is lifted."""

    scope: Scope
    subject: str
    set_by: Level
    reason: str
    by: str
    # The owner of the subject.
    tenant: Tenant
    ramp_s: int
    ends_at: datetime | None = None
    ends_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class Poll:
    controls_version: int
    flags_version: int
    installation: UUID | None
    beat: int
    beat_at: datetime
    now: datetime


async def poll(conn: Connection) -> Poll:
    row = await conn.fetchrow(_SQL.poll)
    assert row is not None, "the migration makes both rows"
    return Poll(**row)


async def in_force(conn: Connection) -> list[Control]:
    return [_control(row) for row in await conn.fetch(_SQL.in_force)]


async def get(conn: Connection, scope: Scope, subject: str) -> list[Control]:
    return [_control(row) for row in await conn.fetch(_SQL.get, scope, subject)]


async def list_controls(
    conn: Connection, tenant: Tenant, *, scope: Scope | None, after: str, limit: int
) -> Sequence[Control]:
    rows = await conn.fetch(_SQL.list, tenant.reseller_id, tenant.merchant_id, after, scope, limit)
    return [_control(row) for row in rows]


async def stop(tx: Connection, new: NewStop) -> Control:
    """Needs a transaction: other processes find the change by the version that it raises."""
    await tx.execute(_SQL.raise_version)
    await tx.execute(_SQL.forget_over)
    row = await tx.fetchrow(
        _SQL.stop,
        new.scope,
        new.subject,
        new.set_by,
        new.reason,
        new.by,
        new.ends_at,
        new.ends_in_s,
        new.ramp_s,
        new.tenant.reseller_id,
        new.tenant.merchant_id,
    )
    assert row is not None, "an upsert has one row"
    return _control(row)


async def resume(
    tx: Connection, scope: Scope, subject: str, set_by: Level, *, reason: str, by: str, ramp_s: int
) -> Control | None:
    """None if it was not stopped."""
    await tx.execute(_SQL.raise_version)
    row = await tx.fetchrow(_SQL.resume, scope, subject, set_by, reason, by, ramp_s)
    return None if row is None else _control(row)


async def campaign_owner(conn: Connection, tenant: Tenant, campaign_id: UUID) -> Tenant | None:
    row = await conn.fetchrow(_SQL.campaign_owner, tenant.reseller_id, tenant.merchant_id, campaign_id)
    return None if row is None else Tenant(row["reseller_id"], row["merchant_id"])


def _control(row: asyncpg.Record) -> Control:
    values: dict[str, Any] = dict(row)
    return Control(**values | {"scope": Scope(row["scope"]), "set_by": Level(row["set_by"])})
