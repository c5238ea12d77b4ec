"""Reads waiting leads and free channels while Valkey is unavailable. The caller bounds every result, and nothing is
locked."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from trunkline.model import Flow
from trunkline.store.cooldowns import AccountName
from trunkline.store.database import Connection
from trunkline.store.schedule import NO_CAMPAIGN, campaign_of
from trunkline.store.sql import Area
from trunkline.value import Value

_SQL = Area("fallback")

FIRST_NUMBER = UUID(int=0)


class FreeChannels(Value, frozen=True):
    """A number, and some of its free channels."""

    pool_id: str
    number_id: UUID
    free: tuple[int, ...]


class DueLead(Value, frozen=True):
    lead_id: UUID
    version: int
    due_ms: int
    read_ms: int


class FlowHead(Value, frozen=True):
    """A flow, and the oldest of its due leads that may be called; None if there is none, or the flow is stopped."""

    flow: Flow
    lead: DueLead | None


async def set_bounds(tx: Connection, *, timeout_ms: int) -> None:
    """First in a transaction: the time limit and the planner settings of its statements."""
    await tx.execute(_SQL.bounds, str(timeout_ms))


async def waiting_pools(tx: Connection, *, after: str, limit: int) -> list[str]:
    """Pools with waiting leads, from the one after `after` and round to it again."""
    return [row["pool_id"] for row in await tx.fetch(_SQL.pools, after, limit)]


async def free_channels(
    tx: Connection,
    after: Mapping[str, UUID],
    *,
    numbers_max: int,
    channels_max: int,
    not_numbers: Sequence[UUID] = (),
    not_accounts_of: Sequence[UUID] = (),
    not_accounts: Sequence[AccountName] = (),
) -> dict[str, list[FreeChannels]]:
    """Of each pool the next numbers after the given one, round to it again. Accounts are given by one of their numbers,
    or by name."""
    rows = await tx.fetch(
        _SQL.channels,
        list(after),
        list(after.values()),
        numbers_max,
        channels_max,
        not_numbers,
        not_accounts_of,
        [f"{carrier}/{account}" for carrier, account in not_accounts],
    )
    by_pool: dict[str, list[FreeChannels]] = {pool_id: [] for pool_id in after}
    for row in rows:
        by_pool[row["pool_id"]].append(FreeChannels(row["pool_id"], row["number_id"], tuple(row["free"])))
    return by_pool


async def flow_heads(
    tx: Connection,
    after: Mapping[str, Flow | None],
    *,
    flows_max: int,
    not_leads: Sequence[UUID] = (),
) -> dict[str, list[FlowHead]]:
    """Of each pool the next flows after the given one, up to the last."""
    keys = [
        (flow.merchant_id, flow.campaign_id or NO_CAMPAIGN) if flow else ("", NO_CAMPAIGN)
        for flow in after.values()
    ]
    rows = await tx.fetch(
        _SQL.flows,
        list(after),
        [merchant_id for merchant_id, _ in keys],
        [campaign_id for _, campaign_id in keys],
        flows_max,
        not_leads,
    )
    by_pool: dict[str, list[FlowHead]] = {pool_id: [] for pool_id in after}
    for row in rows:
        flow = Flow(row["pool_id"], row["reseller_id"], row["merchant_id"], campaign_of(row["campaign"]))
        by_pool[row["pool_id"]].append(FlowHead(flow, _lead(row)))
    return by_pool


def _lead(row: Any) -> DueLead | None:
    if row["id"] is None:
        return None
    return DueLead(row["id"], row["version"], int(row["due_at"].timestamp() * 1000), row["granted_ms"])
