"""Outcomes of calls, counted in the transaction that settles them: answer rates and shares of abandoned calls. And the
circuit breakers of merchants whose calls are answered without an agent, in lock order after jobs, before alarms.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import asyncpg

from trunkline.model import Counted
from trunkline.store.attempts import Attempt
from trunkline.store.database import Connection
from trunkline.store.rows import columns, pick
from trunkline.store.sql import Area
from trunkline.store.tenants import Tenant
from trunkline.value import Value

_SQL = Area("abandonment")
_BRAKES_SQL = Area("brakes")

NO_CAMPAIGN = UUID(int=0)


class EndedCall(Value, frozen=True):
    """A call to a lead that has ended."""

    attempt: Attempt
    was_answered: bool
    by_person: bool
    without_agent: bool
    threshold_s: float


class AbandonmentCounts(Value, frozen=True):
    """Calls of 30 days, of the last 24 hours, of a window of hours that a policy names, and of the last ten minutes."""

    last_30d: Counted = Counted()
    last_24h: Counted = Counted()
    window: Counted = Counted()
    last_10m: Counted = Counted()


class BrakeRule(Value, frozen=True):
    """Dials stop for `stop_s` when of the calls answered within `window_s` more than `calls`, and more than `share` of
    them, had no agent."""

    window_s: float = 300.0
    calls: int = 5
    share: float = 0.1
    stop_s: float = 300.0


class Tripped(Value, frozen=True):
    merchant_id: str
    stops_until: datetime
    answered: int
    without: int


async def count(tx: Connection, calls: Sequence[EndedCall]) -> list[bool]:
    """Returns a flag for each abandoned call: whether it was overdialled, without an agent by choice."""
    if not calls:
        return []
    owner = ("attempt.reseller_id", "attempt.merchant_id", "attempt.campaign_id")
    counted = ("was_answered", "by_person", "without_agent", "threshold_s")
    values = columns(calls, "attempt.id", *owner, "attempt.lead_id", "attempt.phone", *counted)
    return [row["overdialled"] for row in await tx.fetch(_SQL.count, *values)]


async def count_late(tx: Connection, attempt_ids: Sequence[UUID]) -> list[bool]:
    """Answered calls that were counted before, and turn out to have been abandoned. Returns as `count` does."""
    if not attempt_ids:
        return []
    return [row["overdialled"] for row in await tx.fetch(_SQL.count_late, attempt_ids)]


async def correct(
    tx: Connection, calls: Sequence[Attempt], by_machine: Sequence[bool], *, are_served: bool = False
) -> None:
    """Calls whose agents reported late: there was one, and a machine or a person had answered. Either they were counted
    as abandoned, each corrected once; or they had an agent, which the caller corrects once."""
    if calls:
        values = columns(calls, "id", "reseller_id", "merchant_id", "campaign_id")
        await tx.execute(_SQL.correct, *values, by_machine, are_served)


async def fold(tx: Connection, *, fresh_min: int, fresh_max: int) -> int:
    """Returns how many rows were folded: none while there are fewer than `fresh_min`."""
    return int(await tx.fetchval(_SQL.fold, fresh_min, fresh_max))


async def measured(
    conn: Connection, merchant_id: str, campaign_id: UUID | None = None, *, window_h: int = 24
) -> AbandonmentCounts:
    """Of a campaign, or without one of all calls of the merchant."""
    rows = await conn.fetch(_SQL.measured, merchant_id, campaign_id, window_h)
    spans = {row["name"]: _counted(row) for row in rows}
    return AbandonmentCounts(spans["30d"], spans["24h"], spans["window"], spans["10m"])


async def measured_by_tenant(conn: Connection, tenant: Tenant) -> AbandonmentCounts:
    if tenant.merchant_id is not None:
        return await measured(conn, tenant.merchant_id)
    row = await conn.fetchrow(_SQL.measured_by_tenant, tenant.reseller_id)
    assert row is not None, "an aggregate has one row"
    spans = {
        span: Counted(by_person=row[f"by_person_{span}"], abandoned=row[f"abandoned_{span}"])
        for span in ("30d", "24h", "10m")
    }
    return AbandonmentCounts(
        last_30d=spans["30d"], last_24h=spans["24h"], window=spans["24h"], last_10m=spans["10m"]
    )


async def recent(
    conn: Connection, campaigns: Iterable[tuple[str, UUID | None]]
) -> Mapping[tuple[str, UUID | None], list[tuple[datetime, Counted]]]:
    """The last hour of each of these, by merchant and campaign, newest first."""
    keys = list(dict.fromkeys(campaigns))
    rows = await conn.fetch(
        _SQL.recent, [merchant_id for merchant_id, _ in keys], [each or NO_CAMPAIGN for _, each in keys]
    )
    by_campaign: dict[tuple[str, UUID | None], list[tuple[datetime, Counted]]] = defaultdict(list)
    for row in rows:
        campaign_id = None if row["campaign_id"] == NO_CAMPAIGN else row["campaign_id"]
        by_campaign[row["merchant_id"], campaign_id].append((row["at"], _counted(row)))
    return by_campaign


def _counted(row: asyncpg.Record) -> Counted:
    return Counted(row["ended"], row["answered"], row["by_person"], row["abandoned"])


async def trip_brakes(tx: Connection, merchant_ids: Collection[str], rule: BrakeRule) -> list[Tripped]:
    """Of merchants that just had calls without an agent: those whose dials stop now."""
    ordered_ids = sorted(set(merchant_ids))
    await tx.execute(_BRAKES_SQL.lock, ordered_ids)
    rows = await tx.fetch(_BRAKES_SQL.trip, ordered_ids, rule.window_s, rule.calls, rule.share, rule.stop_s)
    return [pick(Tripped, row) for row in rows]


async def release_brakes(tx: Connection, merchant_ids: Collection[str]) -> list[str]:
    """Of merchants with a call that had its agent: those whose dials were stopped, and start again."""
    rows = await tx.fetch(_BRAKES_SQL.release, sorted(set(merchant_ids)))
    return [row["merchant_id"] for row in rows]
