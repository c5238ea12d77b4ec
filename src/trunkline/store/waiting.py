"""Flows with overdue leads, and what prevents their calls. Read without a lock, for people and alarms."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from trunkline.store.database import Connection
from trunkline.store.rows import pick
from trunkline.store.sql import Area

_SQL = Area("waiting")

# pool, merchant, campaign
FlowName = tuple[str, str, UUID | None]

OVERDUE_S = 10.0
FLOWS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class WaitingFlow:
    """`leads` are overdue, counted up to 100. `has_numbers`: some may dial, if they are not stopped;
    `has_usable_numbers`: some are not stopped; `is_taken_by_carrier`: the carrier of some of these accepts calls;
    `has_free_channel`: one of these has a free channel. `refused_for`: why an intent refused one of its first leads
    within the last two minutes."""

    pool_id: str
    reseller_id: str
    merchant_id: str
    campaign_id: UUID | None
    leads: float
    is_stopped: bool = False
    is_braked: bool = False
    needs_agents: bool = False
    has_numbers: bool = True
    has_usable_numbers: bool = True
    is_taken_by_carrier: bool = True
    has_free_channel: bool = True
    refused_for: str | None = None
    # When that ends, if known.
    stopped_until: datetime | None = None
    braked_until: datetime | None = None
    # When the first of its numbers is probed again; None where a probe is in flight.
    cooldown_until: datetime | None = None
    refused_until: datetime | None = None


async def flows(
    conn: Connection,
    streamless: Collection[str] = (),
    *,
    overdue_s: float = OVERDUE_S,
    named: Sequence[FlowName] | None = None,
) -> list[WaitingFlow]:
    """`streamless`: carriers that run the agent themselves. `named`: only these flows."""
    names: Iterable[object] = (None, None, None)
    if named is not None:
        names = zip(*named, strict=True) if named else ((), (), ())
    return [
        pick(WaitingFlow, row)
        for row in await conn.fetch(_SQL.flows, list(streamless), overdue_s, FLOWS_MAX, *names)
    ]
