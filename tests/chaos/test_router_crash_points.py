"""A router ends itself between any two of its steps; after one reconcile of its successor nothing is leaked."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from trunkline.bus.router import BeatRule
from trunkline.crashpoint import EXIT_STATUS
from trunkline.router.journal import Begun, Over
from trunkline.router.journal_writer import JournalWriter
from trunkline.testing.crashpoints import CRASH_POINTS
from trunkline.testing.fork_server import ForkServer
from trunkline.testing.router_process import Routers, open_routers
from trunkline.testing.waiting import eventually

SERVING = {
    "router.after_allocate": 2,
    "router.after_release": 1,
    "router.after_drain": 1,
    "router.after_heartbeat": 3,
    "router.before_note": 1,
    "router.after_note": 1,
}
MANAGING = {
    "router.after_lead": 1,
    "router.after_tiers": 1,
    "router.after_merchants": 1,
    "router.after_remove": 1,
    "router.after_balance": 1,
    "router.after_recover": 2,
    "router.after_abandon": 1,
}
REBUILDING = {"router.after_lead": 1, "router.after_restore": 2, "router.after_tiers": 1}
# Where pods come from the cluster: in the suite of the pods' sources.
ELSEWHERE = {"router.after_sync"}

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
async def test_a_router_that_dies_serving_leaks_nothing_after_one_reconcile(
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
    # The platform hears of one end, the pod of the other; whoever comes second is told that it is done.
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
async def test_a_manager_that_dies_leaks_nothing_after_one_reconcile_of_its_successor(
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
async def test_a_manager_that_dies_rebuilding_is_followed_by_one_that_rebuilds_all(
    place: Routers, point: str
) -> None:
    world, journal = place.world, JournalWriter(place.database)
    await world.begin(NEW_TIERS)
    truth: dict[str, list[str]] = {pod: [] for pod in await world.pods(6)}
    tiers = {pod: await world.tier_of(pod) or "" for pod in truth}
    for call in ("call-1", "call-2"):
        pod = await world.allocate(call)
        truth[pod] = [call]
        journal.begun(Begun(f"allocation-of-{call}", call, pod, "pool:standard", "", int(time.time())))
    for pod, tier in tiers.items():
        journal.tier(pod, tier)
    await journal.write()
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
        await world.beat(pod, held, rule=BeatRule(settle_ms=0))
    await place.leaks_nothing(truth)


async def prepare(place: Routers) -> dict[str, list[str]]:
    """One of everything that a manager puts right, and what the pods know themselves."""
    world, journal = place.world, JournalWriter(place.database)
    client, keys = world.client, world.keys
    await world.begin(OLD_TIERS)
    await world.term.rebuilt()
    pods = await world.pods(9)
    for pod in pods:
        journal.tier(pod, "standard")
    calls = ["live", "unnoted", "released", "reset", "never-came", "orphan"]
    given = {call: await world.allocate(call) for call in calls}
    for call, pod in given.items():
        if call != "unnoted":
            journal.begun(Begun(f"allocation-of-{call}", call, pod, "pool:standard", "", int(time.time())))
        if call != "never-came":
            await world.beat(pod, [call])
    # Ended, and the note of it lost with its process.
    await world.release("released", by_pod=given["released"])
    await world.beat(given["released"])
    # Reset by hand, as the operations sheet says.
    await world.beat(given["reset"], boot="boot-2", sequence=1)
    reset = await world.allocate("reset")
    await client.delete(keys.lease(reset), keys.call("reset"))
    await client.hset(keys.pod(reset), "status", "available")
    # Given a pod an hour ago, and its pod never names it.
    await client.hset(keys.call("never-came"), "allocated_at", "1")
    await client.zadd(keys.unnamed, {"never-came": 1})
    # A pod that fell out of its pool, and one that a note of long ago still names.
    idle = next(pod for pod in pods if pod not in given.values())
    await client.srem(keys.available("standard"), idle)
    journal.tier("agent-of-old", "standard")
    journal.over(Over("allocation-of-old", "old", "agent-of-old"))
    await world.configure("acme", tier="gold")
    await journal.write()
    # Silent for an hour in which we listened.
    await client.zadd(keys.heartbeats, {given["orphan"]: 1})
    await listened(place)
    truth: dict[str, list[str]] = {pod: [] for pod in pods if pod != given["orphan"]}
    return truth | {given["live"]: ["live"], given["unnoted"]: ["unnoted"]}


async def listened(place: Routers) -> None:
    """As if somebody had listened to heartbeats all the time until now."""
    now_ms = int(time.time() * 1000)
    await place.world.client.hset(place.world.keys.hearing, mapping={"since": 1, "ran": now_ms})
