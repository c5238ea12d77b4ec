"""A leader is stopped between two of its steps for longer than its lease, another process takes over, and then the
first goes on: nothing of what it had in hand is written, neither in Valkey nor in Postgres."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.fork_server import ForkServer
from tests.support.router.process import Routers, open_routers
from tests.support.waiting import eventually

# Where it stops, and what it would write next: all the kinds of a manager's writes.
STOPS = [
    "router.after_lead",  # tiers
    "router.after_tiers",  # merchants
    "router.after_merchants",  # removals
    "router.after_remove",  # moves between tiers
    "router.after_balance",  # recovery
]
OF_THE_OLD = '{"gold": {"target": 4}, "standard": {"target": 1}}'
OF_THE_NEW = '{"standard": {"target": 1}}'
# Whoever follows stays the leader, however slow the machine is. The take-over waits for the old one's lease only.
HELD, TRUSTED = "30s", "20s"


@pytest.fixture
async def place(
    fork_server: ForkServer, database_url: str, redis_url: str, key_prefix: str, tmp_path: Path
) -> AsyncIterator[Routers]:
    async with open_routers(fork_server, database_url, redis_url, key_prefix, tmp_path) as place:
        yield place


@pytest.mark.parametrize("point", STOPS)
async def test_a_leader_resumed_after_its_successor_took_over_changes_nothing(
    place: Routers, point: str
) -> None:
    world = place.world
    await world.begin(OF_THE_NEW)
    await world.pods(6)
    await world.configure("acme", tier="gold")
    await world.fall_silent("agent-5")

    old = place.start("old", stop_at=point, HTTP_PORT="0", TIER_CONFIG=OF_THE_OLD)
    await eventually(lambda: old.is_stopped_at(point), timeout_s=20, what=f"stopped at {point}")
    if await world.tier_of("agent-5"):
        await world.fall_silent("agent-5")
    place.start(
        "new", TIER_CONFIG=OF_THE_NEW, LEADER_ELECTION_DURATION=HELD, LEADER_ELECTION_RENEW_DEADLINE=TRUSTED
    )
    await eventually(
        lambda: "router.took_over" in place.log_of("new"), timeout_s=20, what="another one leads"
    )
    assert await world.tier_of("agent-5") is None, "the silent pod is gone"
    # What changed while the old one stood still: it still believes the opposite.
    await place.insist("POST", "/pods/agent-5/heartbeat", {"boot_id": "boot-2", "sequence": 1})
    await world.configure("acme", tier="standard")
    await eventually(lambda: has_settled(place), timeout_s=20, what="the new leader has put its own in order")
    calls = {call: await world.allocate(call) for call in ("call-1", "call-2")}
    before = await picture(place)

    old.thaw()

    await eventually(lambda: "router.term_lost" in place.log_of("old"), timeout_s=20, what="it was refused")
    # It has written whatever waited there once it ended in good order.
    old.signal(signal.SIGTERM)
    assert await old.ended() == 0
    assert await picture(place) == before
    assert {call: await world.allocate(call) for call in calls} == calls
    assert await leads(place)


async def test_an_idle_leader_stopped_past_its_lease_no_longer_leads(place: Routers) -> None:
    await place.world.begin(OF_THE_NEW)
    await place.world.pods(3)
    old = place.start("old")
    await eventually(lambda: leads(place), timeout_s=20, what="the first one leads")
    term = await place.world.client.hget(place.world.keys.epoch, "term")

    old.freeze()
    place.start("new", HTTP_PORT="0", LEADER_ELECTION_DURATION=HELD, LEADER_ELECTION_RENEW_DEADLINE=TRUSTED)
    await eventually(lambda: "router.took_over" in place.log_of("new"), timeout_s=20, what="a newer term")
    before = await picture(place)
    old.thaw()

    status, answer = await place.insist("GET", "/status")
    assert (status, answer["is_leader"]) == (200, False), "it answers, and leads no more"
    assert (await place.insist("POST", "/allocate", {"call_sid": "call-1"}))[0] == 200
    await place.insist("POST", "/release", {"call_sid": "call-1"})
    after = await picture(place)
    assert after["tiers"] == before["tiers"]
    assert await place.world.client.hget(place.world.keys.epoch, "term") != term


async def leads(place: Routers) -> bool:
    _, answer = await place.ask("GET", "/status")
    return bool(answer and answer["is_leader"])


async def has_settled(place: Routers) -> bool:
    """Its tiers are published, everybody is in them, and every pod is noted."""
    tiers = await place.world.client.hgetall(place.world.keys.tiers)
    sizes = await place.world.sizes()
    noted = await place.world.tiers()
    is_published = tiers.get("standard") == "e|1|1" and sum(sizes.values()) == sizes.get("standard") == 6
    return is_published and list(noted.values()) == ["standard"] * 6


async def picture(place: Routers) -> dict[str, object]:
    """Everything that the manager writes, in Valkey and in Postgres."""
    world = place.world
    seen: dict[str, object] = {}
    for tier in ("standard", "gold"):
        seen[f"free in {tier}"] = await world.available(tier)
        seen[f"in {tier}"] = await world.client.smembers(world.keys.assigned(tier))
    for key in (world.keys.tiers, world.keys.merchant_config, world.keys.metadata, world.keys.epoch):
        seen[key.rpartition(":")[2]] = await world.client.hgetall(key)
    async with place.database.connection() as conn:
        for table in ("pods", "router_merchants", "allocations"):
            # Heartbeats go on meanwhile.
            rows = await conn.fetch(
                f"SELECT to_jsonb(t) - 'heard_at' - 'sequence' FROM {table} AS t ORDER BY 1"
            )
            seen[table] = [tuple(row) for row in rows]
    return seen
