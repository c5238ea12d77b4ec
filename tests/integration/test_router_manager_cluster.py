"""Everything that the manager writes, on one server and on a real cluster: no script reaches beyond its own slot."""

from collections.abc import AsyncIterator

import pytest

from trunkline.bus import router_manager, router_views
from trunkline.bus.connection import connect
from trunkline.bus.keys import Keys
from trunkline.bus.router import BeatRule
from trunkline.bus.router_keys import RouterKeys
from trunkline.bus.router_manager import ClusterPod, OpenCall, Unnamed
from trunkline.testing.router_world import RouterWorld

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


async def test_every_script_of_the_manager_runs(world: RouterWorld) -> None:
    await world.begin("{}")
    term = world.term
    await term.restore(
        "agent-9", "gold", [OpenCall("call-9", "a-9", "", 1, "pool:gold")], lease_ttl_s=60, by_heartbeat=True
    )
    await term.bury({"call-8": 60})
    await term.rebuilt()
    assert await world.allocate("call-8") == "ended"
    pods = await world.pods(3)
    assert await term.merchants({"acme": '{"tier": "gold"}'}, "0") == {}
    assert await term.recover("gold", ["agent-9"]) == (0, [])
    assert await term.balance() == []
    assert await term.missing([*pods, "agent-8"]) == ["agent-8"]
    assert await term.over([("call-9", "agent-9", "a-9"), ("call-7", "agent-9", "a-7")]) == {"a-7": False}
    assert not await term.abandon(Unnamed("call-9", "agent-9", "a-9"), tombstone_s=0)
    total, silent = await router_manager.silent(world.bus, world.keys, ttl_s=90, gap_max_s=15)
    assert (total, silent) == (4, [])
    census = await router_manager.census(world.bus, world.keys, unnamed_s=60)
    assert census.pods["gold"] == ["agent-9"]
    orphans = await term.remove("agent-9")
    assert [orphan.call_sid for orphan in orphans or []] == ["call-9"]
    assert await router_views.drain(world.bus, world.keys, "agent-0", 360) is not None
    assert len(await router_views.pods(world.bus, world.keys, 0, 10)) == 3
    assert await router_views.calls(world.bus, world.keys, 0, 10) == []


async def test_a_pod_that_the_cluster_is_deleting_takes_no_calls_and_keeps_its_own(
    world: RouterWorld,
) -> None:
    await world.begin('{"standard": {"target": 1}}')
    pod = ClusterPod("agent-0", "uid-1", is_ready=True, is_deleting=False)
    await world.term.sync(pod, durable_tier="", may_be_idle=True)
    assert await world.allocate("call-1") == "agent-0"

    leaving = ClusterPod("agent-0", "uid-1", is_ready=True, is_deleting=True)
    assert (await world.term.sync(leaving, durable_tier="", may_be_idle=True)).orphans == []

    assert await world.allocate("call-1") == "agent-0"
    undrained = await router_views.drain(world.bus, world.keys, "agent-0", 0)
    assert undrained is not None
    assert undrained.is_draining, "what the cluster deletes is not undrained by hand"
    await world.release("call-1")
    assert await world.allocate("call-2") == "none"
    # Another one of its name is another pod.
    successor = ClusterPod("agent-0", "uid-2", is_ready=True, is_deleting=False)
    await world.term.sync(successor, durable_tier="", may_be_idle=True)
    assert await world.allocate("call-2") == "agent-0"


async def test_all_calls_of_a_shared_pod_that_died_are_cleaned_and_may_have_another(
    world: RouterWorld,
) -> None:
    await world.begin(SHARED)
    await world.pods(1)
    calls = ["call-1", "call-2", "call-3"]
    for call in calls:
        assert await world.allocate(call) == "agent-0"

    orphans = await world.term.remove("agent-0")

    assert sorted(orphan.call_sid for orphan in orphans or []) == calls
    assert await world.client.exists(*[world.keys.call(call) for call in calls[:1]]) == 0
    assert (await router_views.counts(world.bus, world.keys)).calls == 0
    await world.beat("agent-1", rule=BeatRule(settle_ms=0))
    assert [await world.allocate(call) for call in calls] == ["agent-1"] * 3
