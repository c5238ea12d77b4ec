"""Live figures for people who watch. Every query reads a bounded number of rows, whatever the tables hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from trunkline.schema.numbers import ChannelHolder
from trunkline.schema.overview import COUNT_MAX as COUNT_MAX
from trunkline.schema.overview import (
    QUEUES_MAX,
    ChannelsInUse,
    DialSlice,
    PlatformProcess,
    WaitingQueue,
)
from trunkline.store.database import Connection
from trunkline.store.rows import pick
from trunkline.store.sql import Area
from trunkline.store.tenants import Tenant
from trunkline.store.waiting import FlowName

_SQL = Area("live")

# Read in about 20 ms. At 30 dials per second that is the whole window.
RECENT_MAX = 10_000
# A queue is searched among this many.
FLOWS_MAX = 2_000
PROCESSES_MAX = 200
# The pace of a queue is that of the last ten minutes, by calls that may have begun up to an hour before.
PACE_S = 600
PACE_BEGAN_S = 4200


@dataclass(frozen=True, slots=True)
class Recent:
    # None: nothing was dialled in the window.
    since: datetime | None
    slices: list[DialSlice]
    endings: dict[str, int]


@dataclass(frozen=True, slots=True)
class FlowPace:
    """Calls of a flow that have ended recently, and the period."""

    ended: int
    over_s: float

    @property
    def per_s(self) -> float:
        return self.ended / self.over_s


async def calls(conn: Connection, tenant: Tenant) -> dict[str, int]:
    rows = await conn.fetch(_SQL.calls, tenant.reseller_id, tenant.merchant_id)
    return {row["state"]: row["calls"] for row in rows}


async def channels(conn: Connection, tenant: Tenant) -> ChannelsInUse:
    row = await conn.fetchrow(_SQL.channels, tenant.reseller_id, tenant.merchant_id)
    assert row is not None, "an aggregate has one row"
    return pick(ChannelsInUse, row)


async def recent(conn: Connection, tenant: Tenant, *, window_s: int, slice_s: int) -> Recent:
    rows = await conn.fetch(
        _SQL.recent, tenant.reseller_id, tenant.merchant_id, window_s, slice_s, RECENT_MAX
    )
    return Recent(
        since=rows[0]["since"] if rows else None,
        slices=[_slice(row) for row in rows if row["is_slice"]],
        endings={row["ending"]: row["calls"] for row in rows if not row["is_slice"] and row["ending"]},
    )


async def queues(conn: Connection, tenant: Tenant) -> list[WaitingQueue]:
    rows = await conn.fetch(
        _SQL.queues, tenant.reseller_id, tenant.merchant_id, QUEUES_MAX, COUNT_MAX, FLOWS_MAX
    )
    return [pick(WaitingQueue, row) for row in rows]


async def paces(conn: Connection, flows: Sequence[FlowName]) -> dict[FlowName, FlowPace]:
    """Of flows with recent calls."""
    names = (
        [pool for pool, _, _ in flows],
        [merchant for _, merchant, _ in flows],
        [each for _, _, each in flows],
    )
    rows = await conn.fetch(_SQL.paces, *names, PACE_S, PACE_BEGAN_S, RECENT_MAX)
    return {(row["pool_id"], row["merchant_id"], row["campaign_id"]): pick(FlowPace, row) for row in rows}


async def lead_estimate(conn: Connection) -> int | None:
    """None while there are no statistics: the table is new."""
    estimate = int(await conn.fetchval(_SQL.lead_estimate))
    return estimate if estimate >= 0 else None


async def processes(conn: Connection) -> list[PlatformProcess]:
    return [pick(PlatformProcess, row) for row in await conn.fetch(_SQL.processes, PROCESSES_MAX)]


async def holders(conn: Connection, tenant: Tenant, number_id: UUID) -> list[ChannelHolder]:
    rows = await conn.fetch(_SQL.holders, tenant.reseller_id, tenant.merchant_id, number_id)
    return [pick(ChannelHolder, row) for row in rows]


def _slice(row: asyncpg.Record) -> DialSlice:
    p50_s, p99_s = row["lateness_s"] or (None, None)
    return DialSlice(row["slice"], row["calls"], p50_s, p99_s)
