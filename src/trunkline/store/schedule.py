"""The source of Valkey's projection: flows and their next leads, numbers, limits, and the holders of channels."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from trunkline.model import Entry, Flow, Holder, NumberLimit
from trunkline.store.database import Connection
from trunkline.store.sql import Area

_SQL = Area("schedule")
_ROUTER_SQL = Area("router")

# The index's value for "no campaign".
NO_CAMPAIGN = UUID(int=0)
BEFORE_ALL = Flow("", "", "", None)


async def flows(conn: Connection, *, after: Flow, limit: int) -> list[Flow]:
    """A page of the flows with leads to call, in their own order."""
    start = (after.pool_id, after.merchant_id, after.campaign_id or NO_CAMPAIGN)
    rows = await conn.fetch(_SQL.flows, *start, limit)
    return [
        Flow(row["pool_id"], row["reseller_id"], row["merchant_id"], campaign_of(row["campaign"]))
        for row in rows
    ]


async def heads(conn: Connection, flow: Flow, *, horizon_s: float, limit: int) -> list[Entry]:
    """The next leads of a flow, in the order in which they are called."""
    key = (flow.pool_id, flow.merchant_id, flow.campaign_id or NO_CAMPAIGN)
    return [entry_of(row, flow) for row in await conn.fetch(_SQL.heads, *key, horizon_s, limit)]


async def entries(conn: Connection, lead_ids: Sequence[UUID]) -> list[Entry]:
    """Those of the leads that are still to be called."""
    return list(map(entry_of, await conn.fetch(_SQL.entries, lead_ids)))


def entry_of(row: Any, flow: Flow | None = None) -> Entry:
    """From a row with its own flow, or with that of all rows."""
    return Entry(
        row["id"],
        row["version"],
        flow or Flow(row["pool_id"], row["reseller_id"], row["merchant_id"], row["campaign_id"]),
        row["due_at"],
        priority=row["priority"],
        closes_at=row["closes_at"],
        next_pool_id=row["overflow_pool_id"],
        moves_after_s=row["overflow_after_s"],
        region=row["region"],
    )


def campaign_of(value: UUID) -> UUID | None:
    """From the index's value to the usual one."""
    return None if value == NO_CAMPAIGN else value


async def numbers(conn: Connection) -> list[tuple[NumberLimit, str]]:
    """Every number's limit, and its carrier."""
    rows = await conn.fetch(_SQL.numbers)
    return [
        (
            NumberLimit(
                row["id"],
                row["pool_id"],
                row["max_channels"],
                row["region"],
                f"{row['carrier']}/{row['account']}",
            ),
            row["carrier"],
        )
        for row in rows
    ]


async def weights(conn: Connection) -> dict[str, int]:
    return {row["id"]: row["weight"] for row in await conn.fetch(_SQL.weights)}


async def ungated(conn: Connection) -> list[str]:
    """The subjects whose calls need no agent of ours, as the scripts name them."""
    return [row["subject"] for row in await conn.fetch(_SQL.ungated)]


async def overdialled(conn: Connection) -> list[str]:
    """The subjects whose calls may be dialled without a reserved agent, as the scripts name them."""
    return [row["subject"] for row in await conn.fetch(_SQL.overdialled)]


async def merchant_tiers(conn: Connection) -> dict[str, str]:
    """Merchant -> the config of its agents' tier, as JSON."""
    return {row["merchant_id"]: row["config"] for row in await conn.fetch(_ROUTER_SQL.merchants)}


async def caps(conn: Connection) -> dict[str, int]:
    """By subject: `m/<merchant>`, `c/<merchant>/<campaign>`."""
    return {row["subject"]: row["cap"] for row in await conn.fetch(_SQL.caps)}


async def waiting_merchants(conn: Connection) -> list[tuple[str, str]]:
    """Resellers and merchants that have leads to call."""
    return [(row["reseller_id"], row["id"]) for row in await conn.fetch(_SQL.waiting_merchants)]


async def holders(conn: Connection) -> list[Holder]:
    return [
        Holder(
            row["id"],
            row["number_id"],
            row["channel_no"],
            row["lead_id"],
            Flow(row["pool_id"], row["reseller_id"], row["merchant_id"], row["campaign_id"])
            if row["lead_id"] is not None
            else None,
        )
        for row in await conn.fetch(_SQL.holders)
    ]


async def known_attempts(conn: Connection, attempt_ids: Sequence[UUID]) -> set[UUID]:
    """Those of the holders that are attempts; a grant without an intent is none."""
    return {row["id"] for row in await conn.fetch(_SQL.known_attempts, attempt_ids)}


async def backlog_counts(conn: Connection) -> tuple[int, int]:
    """An estimate of the waiting leads, and the number that are being called."""
    row = await conn.fetchrow(_SQL.backlog_counts)
    assert row is not None, "two counts are one row"
    return row["backlog"], row["processing"]


async def next_epoch(conn: Connection) -> int:
    return int(await conn.fetchval(_SQL.next_epoch))


async def clock_s(conn: Connection) -> float:
    """Postgres's time, in seconds since the epoch."""
    return float(await conn.fetchval(_SQL.clock))
