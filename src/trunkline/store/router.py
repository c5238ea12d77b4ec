"""The router's memory in Postgres."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trunkline.store.database import Connection
from trunkline.store.rows import pick, pick_or_none
from trunkline.store.sql import query

_BEGIN = query("router/begin_allocations")
_END = query("router/end_allocations")
_DROP = query("router/drop_allocations")
_END_CALLS = query("router/end_calls")
_OPEN = query("router/open_allocations")
_ENDED = query("router/ended_lately")
_FORGET = query("router/forget_allocations")
_HAS_HISTORY = query("router/has_history")
_PODS = query("router/pods")
_POD_TIER = query("router/pod_tier")
_SET_TIERS = query("router/set_tiers")
_REMOVE_PODS = query("router/remove_pods")
_MERCHANTS = query("router/merchants")
_SET_MERCHANT = query("router/set_merchant")
_ADOPT_MERCHANT = query("router/adopt_merchant")
_LINE_OF_CALL = query("router/line_of_call")
_REMOVE_MERCHANT = query("router/remove_merchant")


@dataclass(frozen=True, slots=True)
class OpenAllocation:
    allocation_id: str
    call_sid: str
    pod: str
    source_pool: str
    merchant_id: str
    allocated_at_s: int


@dataclass(frozen=True, slots=True)
class Line:
    carrier: str
    account: str


async def begin(conn: Connection, begun: Sequence[OpenAllocation]) -> None:
    """Each allocation at most once in one call."""
    await conn.execute(
        _BEGIN,
        [a.allocation_id for a in begun],
        [a.call_sid for a in begun],
        [a.pod for a in begun],
        [a.source_pool for a in begun],
        [a.merchant_id for a in begun],
        [float(a.allocated_at_s) for a in begun],
    )


async def end(conn: Connection, over: Sequence[tuple[str, str, str]]) -> None:
    """Allocation id, call and pod; each allocation at most once in one call."""
    await conn.execute(_END, [a for a, _, _ in over], [c for _, c, _ in over], [p for _, _, p in over])


async def drop(conn: Connection, allocation_ids: Sequence[str]) -> None:
    """Their pods are lost, their calls perhaps not."""
    await conn.execute(_DROP, list(allocation_ids))


async def end_calls(conn: Connection, calls: Sequence[tuple[str, str]]) -> None:
    """Call and pod, where the allocation is not known."""
    await conn.execute(_END_CALLS, [call for call, _ in calls], [pod for _, pod in calls])


async def open_allocations(conn: Connection, lease_ttl_s: float) -> list[OpenAllocation]:
    return [pick(OpenAllocation, row) for row in await conn.fetch(_OPEN, lease_ttl_s)]


async def ended_lately(conn: Connection, within_s: float) -> dict[str, int]:
    """Call -> seconds left of its tombstone."""
    return {row["call_sid"]: row["left_s"] for row in await conn.fetch(_ENDED, within_s) if row["left_s"] > 0}


async def forget(conn: Connection, older_than_s: float) -> None:
    await conn.execute(_FORGET, older_than_s)


async def has_history(conn: Connection) -> bool:
    return bool(await conn.fetchval(_HAS_HISTORY))


async def tiers(conn: Connection) -> dict[str, str]:
    return {row["name"]: row["tier"] for row in await conn.fetch(_PODS)}


async def tier_of(conn: Connection, pod: str) -> str | None:
    tier: str | None = await conn.fetchval(_POD_TIER, pod)
    return tier


async def set_tiers(conn: Connection, tiers: Mapping[str, str]) -> None:
    await conn.execute(_SET_TIERS, list(tiers), list(tiers.values()))


async def remove_pods(conn: Connection, names: Sequence[str]) -> None:
    await conn.execute(_REMOVE_PODS, list(names))


async def merchants(conn: Connection) -> dict[str, str]:
    """Merchant -> its config as JSON."""
    return {row["merchant_id"]: row["config"] for row in await conn.fetch(_MERCHANTS)}


async def set_merchant(conn: Connection, merchant_id: str, config: str) -> None:
    await conn.execute(_SET_MERCHANT, merchant_id, config)


async def adopt_merchant(conn: Connection, merchant_id: str, config: str, before: str) -> None:
    """Only if it is still as it was `before`; '' stands for none."""
    await conn.execute(_ADOPT_MERCHANT, merchant_id, config, before)


async def remove_merchant(conn: Connection, merchant_id: str) -> bool:
    """False: it had none."""
    return bool(await conn.execute(_REMOVE_MERCHANT, merchant_id) != "DELETE 0")


async def line_of_call(conn: Connection, carriers: Sequence[str], call_sid: str) -> Line | None:
    """Which carrier's and account's call this is, if it is one of ours."""
    return pick_or_none(Line, await conn.fetchrow(_LINE_OF_CALL, list(carriers), call_sid))
