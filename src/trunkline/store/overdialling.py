"""What rings without an agent kept for it, and which agents are free for that: counted by groups of tiers."""

from collections.abc import Mapping, Sequence

from trunkline.store.database import Connection
from trunkline.store.sql import Area
from trunkline.value import Private, Value

_SQL = Area("dispatch")


class GroupCount(Value, frozen=True):
    """`free`: slots that nobody has, less those for callers and for whoever waits. Of the calls that ring for them
    unkept: how many, the sum of their answer rates, and the least share that any was admitted under."""

    free: int
    calls: int
    answers_expected: float
    abandon_max: float


class OverdialCount(Value, frozen=True):
    """`abandoned`: those of the persons asked about, by merchant and phone, whom that merchant abandoned before."""

    groups: Mapping[str, GroupCount]
    abandoned: Private[frozenset[tuple[str, str]]]


async def count(
    tx: Connection,
    callers: Mapping[str, Mapping[str, int]],
    silence_s: float,
    persons: Sequence[tuple[str, str]],
) -> OverdialCount:
    """`callers`: by group, its tiers and how many slots each leaves to callers, -1 for a tenth."""
    tiers = [(group, tier, left) for group, of in callers.items() for tier, left in of.items()]
    rows = await tx.fetch(
        _SQL.count_overdialled,
        [group for group, _, _ in tiers],
        [tier for _, tier, _ in tiers],
        [left for _, _, left in tiers],
        silence_s,
        [merchant for merchant, _ in persons],
        [phone for _, phone in persons],
    )
    return OverdialCount(
        {
            row["name"]: GroupCount(row["free"], row["calls"], row["answers_expected"], row["abandon_max"])
            for row in rows
            if row["phone"] is None
        },
        frozenset((row["name"], row["phone"]) for row in rows if row["phone"] is not None),
    )


async def groups_ringing(conn: Connection) -> frozenset[str]:
    return frozenset(row["overdial_group"] for row in await conn.fetch(_SQL.groups_ringing))
