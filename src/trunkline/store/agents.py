"""Which agents there are for dials. For people and alarms: nothing is locked, and nothing is decided by it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trunkline.store import allocations
from trunkline.store.database import Connection
from trunkline.store.sql import Area

_SQL = Area("agents")


@dataclass(frozen=True, slots=True)
class SlotRule:
    """`callers_of`: the inbound reserve of a tier in slots, -1 for 10 %. A waiting call without a request for
    `silence_s` has hung up, and no dial yields to it any more."""

    callers_of: Callable[[str], int] = lambda tier: -1
    silence_s: float = 3.0


@dataclass(frozen=True, slots=True)
class AgentCapacity:
    """`known`: pods of any tier. `serving`: pods of the requested tiers; `able`: those of them that take calls;
    `is_free`: a dial could reserve one of them now."""

    known: int
    serving: int
    able: int
    is_free: bool


async def capacity(conn: Connection, rule: SlotRule, tiers: Sequence[str] | None = None) -> AgentCapacity:
    """`tiers`: those that a merchant's calls reach. None: all there are."""
    tiers_found = await by_tier(conn)
    serving = {
        tier: tiers_found[tier] for tier in (tiers_found if tiers is None else tiers) if tier in tiers_found
    }
    able = {tier: each for tier, (_, each) in serving.items() if each}
    free = await allocations.free_slots(
        conn, {tier: rule.callers_of(tier) for tier in able}, 1, rule.silence_s
    )
    return AgentCapacity(
        known=sum(pods for pods, _ in tiers_found.values()),
        serving=sum(pods for pods, _ in serving.values()),
        able=sum(able.values()),
        is_free=any(free.values()),
    )


async def by_tier(conn: Connection) -> Mapping[str, tuple[int, int]]:
    """How many pods a tier has, and how many of them take calls."""
    return {row["tier"]: (row["pods"], row["able"]) for row in await conn.fetch(_SQL.by_tier)}


async def are_known(conn: Connection) -> bool:
    return bool(await conn.fetchval(_SQL.are_known))
