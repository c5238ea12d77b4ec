"""Live figures for people who watch. Every query reads a bounded number of rows, whatever the tables hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from trunkline.store.database import Connection
from trunkline.store.rows import pick
from trunkline.store.sql import Area
from trunkline.store.tenants import Tenant
from trunkline.store.waiting import FlowName

_SQL = Area("live")

# Read in about 20 ms. At 30 dials per second that is the whole window.
RECENT_MAX = 10_000
QUEUES_MAX = 20
# A queue is counted up to here, and searched among this many.
COUNT_MAX = 1_000
FLOWS_MAX = 2_000
PROCESSES_MAX = 200
# The pace of a queue is that of the last ten minutes, by calls that may have begun up to an hour before.
PACE_S = 600
PACE_BEGAN_S = 4200


@dataclass(frozen=True, slots=True)
class Channels:
    capacity: int
    held: int


@dataclass(frozen=True, slots=True)
class Slice:
    """The dials of a slice of time, and their lateness."""

    at: datetime
    dials: int
    p50_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True)
class Recent:
    # None: nothing was dialled in the window.
    since: datetime | None
    slices: Sequence[Slice]
    endings: dict[str, int]


@dataclass(frozen=True, slots=True)
class Queue:
    merchant_id: str
    campaign_id: UUID | None
    pool_id: str
    first_due_at: datetime
    due: int
    waiting: int


@dataclass(frozen=True, slots=True)
class FlowPace:
    """Calls of a flow that have ended recently, and the period."""

    ended: int
    over_s: float

    @property
    def per_s(self) -> float:
        return self.ended / self.over_s


@dataclass(frozen=True, slots=True)
class Process:
    id: str
    roles: list[str]
    started_at: datetime
    silent_s: float
    is_leader: bool


@dataclass(frozen=True, slots=True)
class ChannelHolder:
    channel_no: int
    attempt_id: UUID
    lead_id: UUID | None
    direction: str
    merchant_id: str
    to_phone: str
    from_phone: str
    state: str
    carrier_call_id: str | None
    held_since: datetime
    answered_at: datetime | None
    pod: str | None


async def calls(conn: Connection, tenant: Tenant) -> dict[str, int]:
    rows = await conn.fetch(_SQL.calls, tenant.reseller_id, tenant.merchant_id)
    return {row["state"]: row["calls"] for row in rows}


async def channels(conn: Connection, tenant: Tenant) -> Channels:
    row = await conn.fetchrow(_SQL.channels, tenant.reseller_id, tenant.merchant_id)
    assert row is not None, "an aggregate has one row"
    return pick(Channels, row)


async def recent(conn: Connection, tenant: Tenant, *, window_s: int, slice_s: int) -> Recent:
    rows = await conn.fetch(
        _SQL.recent, tenant.reseller_id, tenant.merchant_id, window_s, slice_s, RECENT_MAX
    )
    return Recent(
        since=rows[0]["since"] if rows else None,
        slices=[_slice(row) for row in rows if row["is_slice"]],
        endings={row["ending"]: row["calls"] for row in rows if not row["is_slice"] and row["ending"]},
    )


async def queues(conn: Connection, tenant: Tenant) -> list[Queue]:
    rows = await conn.fetch(
        _SQL.queues, tenant.reseller_id, tenant.merchant_id, QUEUES_MAX, COUNT_MAX, FLOWS_MAX
    )
    return [pick(Queue, row) for row in rows]


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


async def processes(conn: Connection) -> list[Process]:
    return [pick(Process, row) for row in await conn.fetch(_SQL.processes, PROCESSES_MAX)]


async def holders(conn: Connection, tenant: Tenant, number_id: UUID) -> list[ChannelHolder]:
    rows = await conn.fetch(_SQL.holders, tenant.reseller_id, tenant.merchant_id, number_id)
    return [pick(ChannelHolder, row) for row in rows]


def _slice(row: asyncpg.Record) -> Slice:
    p50_s, p99_s = row["lateness_s"] or (None, None)
    return Slice(row["slice"], row["calls"], p50_s, p99_s)
