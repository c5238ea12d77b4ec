"""Everything that the manager writes, on one server and on a real cluster: no script reaches beyond its own slot."""

from collections.abc import AsyncIterator

import pytest

from tests.support.bus.router_keys import RouterKeys
from tests.support.router.world import RouterWorld
from trunkline.bus import router, router_manager
from trunkline.bus.connection import connect
from trunkline.bus.keys import Keys
from trunkline.bus.router import BeatRule
from trunkline.bus.router_manager import ProjectedPod
from trunkline.model import Slot
from trunkline.routing import Allocation, Pod
from trunkline.value import replace

SHARED = '{"basic": {"type": "shared", "target": 9, "max_concurrent": 3}}'


@pytest.fixture(params=["one server", "cluster"])
async def world(
    request: pytest.FixtureRequest, key_prefix: str, redis_url: str
) -> AsyncIterator[RouterWorld]:
    is_cluster = request.param == "cluster"
    url = request.getfixturevalue("valkey_cluster")[0] if is_cluster else redis_url
    bus = connect(url, Keys(prefix=key_prefix), cluster=is_cluster)
    yield RouterWorld(bus, RouterKeys(f"{{{key_prefix}}}" if is_cluster else key_prefix))
    await bus.close()


def pod_of_postgres(
    name: str, tier: str, *rows: Allocation, leaving: bool = False, number: int = 9
) -> ProjectedPod:
    pod = Pod(name, number, tier, boot_id="boot-9", sequence=9, is_leaving=leaving)
    return ProjectedPod(pod, rows)


async def test_every_script_of_the_manager_runs(world: RouterWorld) -> None:
    await world.begin()
    term = world.term
    nine = world.allocation_of("a-9")
    row = Allocation(nine, "call-9", Slot("agent-9", 1, 9, "pool:gold"), "acme", at_s=1)
    await term.put([pod_of_postgres("agent-9", "gold", row)], lease_ttl_s=60)
    await term.bury({"call-8": 60})
    await term.set_version("1.0")
    await term.rebuilt()
    assert await world.allocate("call-8") == "ended"
    assert await world.allocate("call-9") == "agent-9"
    await world.pods(3)
    assert await term.merchants({"acme": '{"tier": "gold"}'}, "0") == {}
    assert await world.recover() == 0
    await world.client.zincrby(world.keys.unproven, -9000, str(nine))
    assert (await term.unproven()).ids == [str(nine)]
    assert await term.prove([row], ["a-7"], ["a-6"], lease_ttl_s=60) == 0
    assert await router.mark_receiving(world.router_bus, gap_max_s=15) == 0
    assert await router.count_superseded(world.router_bus, "agent-9") == 1
    total, silent = await router_manager.silent(world.router_bus, ttl_s=90, gap_max_s=15)
    assert (total, silent) == (4, [])
    assert (await router_manager.census(world.router_bus))["gold"] == ["agent-9"]
    assert await router.reset(world.router_bus, "agent-9", 60) == "available"
    assert await term.remove("agent-9")
    assert await router.drain(world.router_bus, "agent-0", 360) is not None
    assert len(await router.pods(world.router_bus, 0, 10)) == 3
    assert await router.calls(world.router_bus, 0, 10) == []


async def test_a_leaving_pod_takes_only_calls_reserved_before(world: RouterWorld) -> None:
    await world.begin('{"standard": {"target": 1}}')
    await world.term.put([pod_of_postgres("agent-0", "standard")], lease_ttl_s=60)
    row = Allocation(world.allocation_of("a-1"), "", Slot("agent-0", 1, 9, "pool:standard"), "acme", at_s=1)
    assert await router.propose_slots(world.router_bus, [(row.id, "acme")]) is not None

    await world.term.put([pod_of_postgres("agent-0", "standard", row, leaving=True)], lease_ttl_s=60)
    await router.begin(world.router_bus, replace(row, call="call-1"))

    assert await world.allocate("call-1") == "agent-0"
    undrained = await router.drain(world.router_bus, "agent-0", 0)
    assert undrained is not None
    assert undrained.is_draining, "what leaves is not undrained by hand"
    await world.release("call-1")
    assert await world.allocate("call-2") == "none"


async def test_all_calls_of_a_removed_shared_pod_get_another_pod(
    world: RouterWorld,
) -> None:
    await world.begin(SHARED)
    await world.pods(1)
    calls = ["call-1", "call-2", "call-3"]
    for call in calls:
        assert await world.allocate(call) == "agent-0"

    assert await world.term.remove("agent-0")

    assert await world.client.exists(*[world.keys.call(call) for call in calls[:1]]) == 0
    assert (await router.counts(world.router_bus)).calls == 0
    await world.beat("agent-1", rule=BeatRule(settle_ms=0))
    assert [await world.allocate(call) for call in calls] == ["agent-1"] * 3
