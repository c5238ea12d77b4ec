"""A router ends itself between any two of its steps; after one reconcile of its successor nothing is leaked."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.crashpoints import CRASH_POINTS
from tests.support.fork_server import ForkServer
from tests.support.router.process import Routers, open_routers
from tests.support.router.world import RouterWorld
from tests.support.waiting import eventually
from trunkline.crashpoint import EXIT_STATUS

SERVING = {
    "router.after_allocate": 2,
    "router.after_release": 1,
    "router.after_drain": 1,
    "router.after_heartbeat": 3,
    "router.after_register": 2,
    "router.after_beats": 2,
}
MANAGING = {
    "router.after_lead": 1,
    "router.after_tiers": 1,
    "router.after_merchants": 1,
    "router.after_remove": 1,
    "router.after_balance": 1,
    "router.after_recover": 1,
    "router.after_abandon": 1,
    "router.after_reset": 1,
}
REBUILDING = {"router.after_lead": 1, "router.after_restore": 1, "router.after_tiers": 1}
# Where pods come from the cluster: in the suite of the pods' sources. Notes are written after Postgres was silent only.
ELSEWHERE = {"router.after_sync", "router.before_note", "router.after_note"}

OLD_TIERS = '{"standard": {"target": 9}}'
NEW_TIERS = '{"gold": {"target": 1}, "standard": {"target": 1}, "basic": {"type": "shared", "target": 1}}'


def test_every_crash_point_of_the_router_is_swept() -> None:
    named = {point for point in CRASH_POINTS if point.startswith("router.")}
    assert named == SERVING.keys() | MANAGING.keys() | REBUILDING.keys() | ELSEWHERE


@pytest.fixture
async def place(
    fork_server: ForkServer, database_url: str, redis_url: str, key_prefix: str, tmp_path: Path
) -> AsyncIterator[Routers]:
    async with open_routers(fork_server, database_url, redis_url, key_prefix, tmp_path) as place:
        yield place


@pytest.mark.parametrize("point", sorted(SERVING))
async def test_a_router_that_crashes_serving_leaks_no_slot_after_one_reconcile(
    place: Routers, point: str
) -> None:
    doomed = place.start("doomed", crash_at=point, nth=SERVING[point])
    sequences = dict.fromkeys(["agent-0", "agent-1", "agent-2", "agent-3"], 0)
    truth: dict[str, list[str]] = {pod: [] for pod in sequences}

    async def insist(method: str, path: str, body: dict[str, object] | None = None) -> dict[str, object]:
        """Until it is answered, by the one that dies or by its successor."""

        async def answer() -> dict[str, object] | None:
            if not doomed.is_running and "heir" not in place.processes:
                place.start("heir")
            answered: dict[str, object] | None
            _, answered = await place.ask(method, path, body)
            return answered

        return await eventually(answer, timeout_s=30, what=f"{method} {path} answered")

    async def beat(pod: str) -> None:
        sequences[pod] += 1
        body = {"boot_id": "b", "sequence": sequences[pod], "calls": truth[pod], "ip": "10.0.0.1", "port": 80}
        await insist("POST", f"/pods/{pod}/heartbeat", body)

    async def allocate(call: str) -> str:
        answer = await insist("POST", "/allocate", {"call_sid": call})
        allocation = answer["allocation"]
        assert isinstance(allocation, dict)
        return str(allocation["pod_name"])

    for pod in sequences:
        await beat(pod)
    pods = {call: await allocate(call) for call in ("call-0", "call-1", "call-2")}
    assert len(set(pods.values())) == 3
    for call, pod in pods.items():
        truth[pod] = [call]
        await beat(pod)
    # The platform releases one call, the pod the other; the second release of a call changes nothing.
    await insist("POST", "/release", {"call_sid": "call-0"})
    truth[pods["call-0"]] = []
    await beat(pods["call-0"])
    truth[pods["call-1"]] = []
    await insist("POST", "/release", {"call_sid": "call-1", "pod_name": pods["call-1"]})
    await beat(pods["call-1"])
    await insist("POST", "/drain", {"pod_name": pods["call-1"]})
    await insist("DELETE", f"/drain/{pods['call-1']}")

    assert await doomed.ended() == EXIT_STATUS
    if "heir" not in place.processes:
        place.start("heir")
    await place.leaks_nothing(truth)


@pytest.mark.parametrize("point", sorted(MANAGING))
async def test_a_pool_manager_that_crashes_leaks_no_slot_after_its_successors_reconcile(
    place: Routers, point: str
) -> None:
    truth = await prepare(place)
    doomed = place.start("doomed", crash_at=point, nth=MANAGING[point], TIER_CONFIG=NEW_TIERS)
    assert await doomed.ended() == EXIT_STATUS

    await listened(place)
    place.start("heir", TIER_CONFIG=NEW_TIERS)

    await place.leaks_nothing(truth)
    sizes = await place.world.sizes()
    assert {tier: sizes[tier] for tier in ("gold", "basic")} == {"gold": 1, "basic": 1}
    config = await place.world.client.hget(place.world.keys.merchant_config, "acme")
    assert config == '{"tier": "gold"}'


@pytest.mark.parametrize("point", sorted(REBUILDING))
async def test_a_pool_manager_that_crashes_rebuilding_is_followed_by_a_full_rebuild(
    place: Routers, point: str
) -> None:
    world = place.world
    await world.begin(NEW_TIERS)
    truth: dict[str, list[str]] = {pod: [] for pod in await world.pods(6)}
    tiers = {pod: await world.tier_of(pod) or "" for pod in truth}
    for call in ("call-1", "call-2"):
        truth[await world.allocate(call)] = [call]
    await world.flush()

    doomed = place.start("doomed", crash_at=point, nth=REBUILDING[point], TIER_CONFIG=NEW_TIERS)
    assert await doomed.ended() == EXIT_STATUS
    place.start("heir", TIER_CONFIG=NEW_TIERS)
    await eventually(lambda: world.client.hget(world.keys.epoch, "rebuilt"), timeout_s=20)

    assert {pod: await world.tier_of(pod) for pod in truth} == tiers
    assert {await world.allocate(call) for call in ("call-1", "call-2")} == {
        p for p, held in truth.items() if held
    }
    for pod, held in truth.items():
        await world.beat(pod, held)
    await place.leaks_nothing(truth)


async def prepare(place: Routers) -> dict[str, list[str]]:
    """One of everything that a manager puts right, and what the pods know themselves."""
    world = place.world
    client, keys = world.client, world.keys
    await world.begin(OLD_TIERS)
    pods = await world.pods(9)
    calls = ["live", "released", "reset", "never-came", "orphan"]
    given = {call: await world.allocate(call) for call in calls}
    for call, pod in given.items():
        if call != "never-came":
            await world.beat(pod, [call])
    # Its row was committed when its process died, before Valkey was written.
    spare = [pod for pod in pods if pod not in given.values()]
    untold = await RouterWorld(world.bus, keys).ask("untold")
    await world.note("untold", untold)
    await RouterWorld(world.bus, keys).release("untold")
    await client.delete(keys.ended("untold"))
    # Ended in Postgres, and not in Valkey.
    await world.beat(given["released"])
    await world.end("released")
    await client.zrem(keys.unproven, str(world.allocation_of("released")))
    # Proposed, and its row lost with its process.
    await RouterWorld(world.bus, keys).ask("proposed")
    await client.zincrby(keys.unproven, -9000, str(world.allocation_of("proposed")))
    # Reset by hand, as the operations sheet says.
    await world.beat(given["reset"])
    await client.delete(keys.lease(given["reset"]), keys.call("reset"))
    await client.hset(keys.pod(given["reset"]), "status", "available")
    # Given a pod minutes ago, and its pod never names it.
    async with place.database.connection() as conn:
        await conn.execute(
            "UPDATE allocations SET begun_at = begun_at - interval '5 minutes' WHERE call = 'never-came'"
        )
    await world.beat(given["never-came"])
    # A pod that fell out of its pool, and one that Valkey has and Postgres has not.
    await client.srem(keys.available("standard"), spare[-1])
    async with place.database.connection() as conn:
        await conn.execute("DELETE FROM pods WHERE name = $1", spare[-2])
    await world.configure("acme", tier="gold")
    # Silent for an hour in which we listened.
    await world.fall_silent(given["orphan"])
    await listened(place)
    truth: dict[str, list[str]] = {pod: [] for pod in pods if pod not in (given["orphan"], spare[-2])}
    return truth | {given["live"]: ["live"], untold.pod: ["untold"]}


async def listened(place: Routers) -> None:
    """As if somebody had listened to heartbeats all the time until now."""
    now_ms = int(time.time() * 1000)
    await place.world.client.hset(place.world.keys.hearing, mapping={"since": 1, "ran": now_ms})
