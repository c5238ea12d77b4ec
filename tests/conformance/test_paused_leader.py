"""A leader on the cluster's Lease is stopped between two of its steps for longer than it trusts itself, another process
takes over, and then the first goes on: nothing of what it had in hand is written."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.fork_server import ForkServer
from tests.support.router import kube
from tests.support.router.kube import Cluster
from tests.support.router.process import Routers, open_routers
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(not kube.is_there(), reason="no kube-apiserver here: `make kube` builds one")

OF_THE_OLD = '{"gold": {"target": 1}, "standard": {"target": 1}}'
OF_THE_NEW = '{"standard": {"target": 1}}'
# The first writes under its term, and those after it: tiers, pods that it restores, moves, allocations.
STOPS = ["router.after_lead", "router.after_tiers", "router.after_sync", "router.after_balance"]


@pytest.fixture
async def place(
    fork_server: ForkServer,
    cluster: Cluster,
    database_url: str,
    redis_url: str,
    key_prefix: str,
    tmp_path: Path,
) -> AsyncIterator[Routers]:
    async with open_routers(
        fork_server,
        database_url,
        redis_url,
        key_prefix,
        tmp_path,
        **cluster.environment(),
    ) as place:
        yield place


@pytest.mark.parametrize("point", STOPS)
async def test_a_leader_resumed_after_losing_the_clusters_lease_changes_nothing(
    place: Routers, cluster: Cluster, point: str
) -> None:
    await cluster.create("agent-0")
    old = place.start("old", stop_at=point, HTTP_PORT="0", TIER_CONFIG=OF_THE_OLD)
    await eventually(lambda: old.is_stopped_at(point), timeout_s=30, what=f"stopped at {point}")
    # It takes over 5 s after the old one's last word, and is not lightly overtaken itself.
    place.start(
        "new",
        TIER_CONFIG=OF_THE_NEW,
        LEADER_ELECTION_DURATION="5s",
        LEADER_ELECTION_RENEW_DEADLINE="4s",
    )
    await eventually(lambda: has_settled(place), timeout_s=30, what="the new leader has put its own in order")
    before = await picture(place)

    old.thaw()

    await eventually(lambda: "router.term_lost" in place.log_of("old"), timeout_s=30, what="it was refused")
    old.signal(signal.SIGTERM)
    assert await old.ended() == 0
    assert await picture(place) == before
    _, answer = await place.insist("GET", "/status")
    assert answer["is_leader"]


async def has_settled(place: Routers) -> bool:
    """It leads, its tiers are published, the pod is free in the one there is, and that is noted."""
    _, answer = await place.ask("GET", "/status")
    seen = await picture(place)
    return (
        bool(answer and answer["is_leader"])
        and seen["tiers in order"] == "standard"
        and seen["free"] == ["agent-0"]
        and seen["noted"] == [("agent-0", "standard")]
    )


async def picture(place: Routers) -> dict[str, object]:
    world = place.world
    async with place.database.connection() as conn:
        noted = await conn.fetch("SELECT name, tier FROM pods ORDER BY 1")
    return {
        "tiers": await world.client.hgetall(world.keys.tiers),
        "tiers in order": await world.client.hget(world.keys.tiers, "#order"),
        "epoch": await world.client.hgetall(world.keys.epoch),
        "free": sorted(await world.available("standard")),
        "of gold": await world.client.smembers(world.keys.assigned("gold")),
        "noted": [tuple(row) for row in noted],
    }
