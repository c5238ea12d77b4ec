"""Calls that ring without a reserved agent, and the agents that are free for them: counted by groups of tiers."""

from collections.abc import Mapping, Sequence

from trunkline.store.database import Connection
from trunkline.store.sql import Area
from trunkline.value import Private, Value

_SQL = Area("dispatch")


class GroupCount(Value, frozen=True):
    """`free`: free slots, less the inbound reserve and those for waiting calls. Of the calls that ring for them without
    a reservation: how many, the sum of their answer rates, and the least share that any was admitted under."""

    free: int
    calls: int
    answers_expected: float
    abandon_max: float


class OverdialCount(Value, frozen=True):
    """`abandoned`: those of the given persons, by merchant and phone, whom that merchant abandoned before."""

    groups: Mapping[str, GroupCount]
    abandoned: Private[frozenset[tuple[str, str]]]


async def count(
    tx: Connection,
    callers: Mapping[str, Mapping[str, int]],
    silence_s: float,
    persons: Sequence[tuple[str, str]],
) -> OverdialCount:
    """`callers`: by group, its tiers and the inbound reserve of each, -1 for 10 %."""
    tiers = [
        (group, tier, left)
        for group, tiers_of_group in callers.items()
        for tier, left in tiers_of_group.items()
    ]
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
