"""Tiers, pools, merchants and the fallback chain, each on one server and on a real cluster."""

from collections.abc import AsyncIterator

import pytest

from tests.support.bus.router_keys import RouterKeys
from tests.support.router.world import RouterWorld
from trunkline.bus.connection import connect
from trunkline.bus.keys import Keys
from trunkline.bus.router import WaitRule
from trunkline.routing import Allocation, Unallocated

GOLD_AND_MORE = (
    '{"gold": {"type": "exclusive", "target": 1}, "standard": {"type": "exclusive", "target": 1},'
    ' "overflow": {"type": "exclusive", "target": 1}, "basic": {"type": "shared", "target": 1, "max_concurrent": 3},'
    ' "merchant:9shines": {"type": "exclusive", "target": 1}}'
)
ONE_SHARED = '{"basic": {"type": "shared", "target": 9, "max_concurrent": 3}}'


@pytest.fixture(params=["one server", "cluster"])
async def world(
    request: pytest.FixtureRequest, key_prefix: str, redis_url: str
) -> AsyncIterator[RouterWorld]:
    if request.param == "cluster":
        urls: list[str] = request.getfixturevalue("valkey_cluster")
        bus, keys = (
            connect(urls[0], Keys(prefix=key_prefix), cluster=True),
            RouterKeys(f"{{{key_prefix}}}"),
        )
    else:
        bus, keys = connect(redis_url, Keys(prefix=key_prefix)), RouterKeys(key_prefix)
    yield RouterWorld(bus, keys)
    await bus.close()


async def test_new_pods_fill_the_tiers_in_the_documented_order(world: RouterWorld) -> None:
    await world.begin()
    pods = await world.pods(5)

    assert [await world.tier_of(pod) for pod in pods] == ["gold", "basic", "standard", "standard", "standard"]
    assert await world.available("gold") == {"agent-0": 0}
    assert await world.available("basic") == {"agent-1": 0}
    assert set(await world.available("standard")) == {"agent-2", "agent-3", "agent-4"}


async def test_merchants_pools_come_first_and_overflow_last(world: RouterWorld) -> None:
    await world.begin(GOLD_AND_MORE)
    pods = await world.pods(6)

    tiers = [await world.tier_of(pod) for pod in pods]

    assert tiers == ["merchant:9shines", "gold", "basic", "standard", "overflow", "standard"]
    assert await world.client.smembers(world.keys.available("merchant:9shines")) == {"agent-0"}
    assert world.keys.available("merchant:9shines") == f"{world.keys.prefix}:merchant:9shines:pods"


async def test_a_gold_merchant_falls_through_standard_and_overflow_to_basic(world: RouterWorld) -> None:
    await world.begin(GOLD_AND_MORE)
    await world.pods(5)
    await world.configure("acme", tier="gold")

    pods = [await world.allocate(f"call-{number}", "acme") for number in range(7)]

    assert pods == ["agent-1", "agent-3", "agent-4", "agent-2", "agent-2", "agent-2", "none"]


async def test_a_standard_merchant_never_reaches_gold(world: RouterWorld) -> None:
    await world.begin(GOLD_AND_MORE)
    await world.pods(5)
    await world.configure("small", tier="standard")

    pods = {await world.allocate(f"call-{number}", "small") for number in range(6)}

    assert pods == {"agent-3", "agent-4", "agent-2", "none"}
    assert await world.available("gold") == {"agent-1": 0}


async def test_a_dedicated_pool_is_its_merchants_alone_and_is_released_to(world: RouterWorld) -> None:
    await world.begin(GOLD_AND_MORE)
    await world.pods(5)
    await world.configure("9shines", tier="dedicated", pool="9shines")

    answer = await world.ask("call-1", "9shines")

    assert isinstance(answer, Allocation)
    assert (answer.pod, answer.slot.source_pool) == ("agent-0", "merchant:9shines")
    released = await world.release("call-1")
    assert released is not None
    assert released.source_pool == "merchant:9shines"
    assert await world.available("merchant:9shines") == {"agent-0": 0}
    others = {await world.allocate(f"other-{number}", "acme") for number in range(9)}
    assert "agent-0" not in others


@pytest.mark.parametrize(
    "config", ['{"tier": "platinum"}', "not json", '"gold"', '{"tier": 7}', '{"tier": "dedicated"}']
)
async def test_a_config_that_names_no_tier_is_standard_and_is_reported(
    world: RouterWorld, config: str
) -> None:
    await world.begin(GOLD_AND_MORE)
    await world.pods(5)
    await world.client.hset(world.keys.merchant_config, "acme", config)

    answer = await world.ask("call-1", "acme")

    assert isinstance(answer, Allocation)
    assert (answer.pod, answer.is_misconfigured) == ("agent-3", True)


async def test_a_merchants_config_applies_to_its_next_call(world: RouterWorld) -> None:
    await world.begin(GOLD_AND_MORE)
    await world.pods(5)
    assert await world.allocate("call-1", "acme") == "agent-3"

    await world.configure("acme", tier="gold")

    assert await world.allocate("call-2", "acme") == "agent-1"
    await world.client.hdel(world.keys.merchant_config, "acme")
    assert await world.allocate("call-3", "acme") == "agent-4"


async def test_a_tier_of_any_name_serves_its_merchants(world: RouterWorld) -> None:
    await world.begin('{"silver": {"target": 1}, "standard": {"target": 1}}')
    await world.pods(2)
    await world.configure("acme", tier="silver")

    assert [await world.allocate(f"call-{n}", "acme") for n in range(3)] == ["agent-0", "agent-1", "none"]


async def test_a_shared_pod_takes_calls_up_to_its_maximum_and_the_least_loaded_is_taken(
    world: RouterWorld,
) -> None:
    await world.begin(ONE_SHARED)
    await world.pods(2)

    pods = [await world.allocate(f"call-{number}") for number in range(7)]

    assert sorted(pods[:2]) == sorted(pods[2:4]) == sorted(pods[4:6]) == ["agent-0", "agent-1"]
    assert pods[6] == "none"
    assert await world.available("basic") == {"agent-0": 3, "agent-1": 3}


async def test_a_double_release_of_a_shared_call_counts_once_and_the_lease_stays_for_the_others(
    world: RouterWorld,
) -> None:
    await world.begin(ONE_SHARED)
    await world.pods(1)
    for call in ("call-1", "call-2"):
        await world.allocate(call)

    assert await world.release("call-2") is not None
    assert await world.release("call-2") is None

    assert await world.available("basic") == {"agent-0": 1}
    assert await world.client.get(world.keys.lease("agent-0")) == "call-1"
    assert await world.client.smembers(world.keys.pod_calls("agent-0")) == {"call-1"}
    await world.release("call-1")
    assert await world.client.exists(world.keys.lease("agent-0")) == 0


async def test_a_shared_pod_that_still_names_a_released_call_keeps_its_place_taken(
    world: RouterWorld,
) -> None:
    await world.begin('{"basic": {"type": "shared", "target": 9, "max_concurrent": 1}}')
    await world.pods(1)
    await world.allocate("call-1")
    await world.beat("agent-0", ["call-1"])

    await world.release("call-1")

    assert await world.allocate("call-2") == "none"
    await world.beat("agent-0")
    assert await world.allocate("call-2") == "agent-0"


async def test_pods_of_the_newest_version_are_preferred(world: RouterWorld) -> None:
    await world.begin('{"standard": {"target": 9}}')
    await world.beat("old-0", version="1")
    await world.beat("old-1", version="1")
    await world.beat("new-0", version="2")
    await world.recover()

    assert await world.allocate("call-1") == "new-0"


async def test_a_shared_pod_of_the_newest_version_is_preferred_among_equals(world: RouterWorld) -> None:
    await world.begin(ONE_SHARED)
    await world.beat("a-old", version="1")
    await world.beat("b-new", version="2")

    assert [await world.allocate(f"call-{n}") for n in range(2)] == ["b-new", "a-old"]


async def test_calls_wait_in_order_and_a_freed_pod_is_the_oldest_waiters(world: RouterWorld) -> None:
    rule = WaitRule(most_ms=60_000, silence_ms=7000)
    await world.begin('{"standard": {"target": 9}}')
    await world.pods(1)
    await world.allocate("call-1")

    assert await world.allocate("call-2", wait=rule) == "hold 0"
    assert await world.allocate("call-3", wait=rule) == "hold 1"
    await world.release("call-1")

    # Neither somebody new nor the second in the queue may have it, whether or not they would wait.
    assert await world.allocate("call-4", wait=rule) == "hold 2"
    assert await world.allocate("call-5") == "none"
    assert await world.allocate("call-3", wait=rule) == "hold 1"
    assert await world.allocate("call-2", wait=rule) == "agent-0"
    await world.release("call-2")
    assert await world.allocate("call-3", wait=rule) == "agent-0"


async def test_a_waiting_call_that_is_released_or_stops_polling_loses_its_place(world: RouterWorld) -> None:
    rule = WaitRule(most_ms=60_000, silence_ms=7000)
    await world.begin('{"standard": {"target": 9}}')
    await world.pods(1)
    await world.allocate("call-1")
    for call in ("call-2", "call-3", "call-4"):
        await world.allocate(call, wait=rule)
    await world.release("call-1")

    await world.release("call-2")
    await world.client.zadd(world.keys.waiting, {"call-3": 1})

    assert await world.allocate("call-4", wait=rule) == "agent-0"
    assert await world.client.exists(world.keys.waiting, world.keys.waiters) == 0


async def test_a_waiting_call_is_refused_after_the_maximum_wait(world: RouterWorld) -> None:
    rule = WaitRule(most_ms=60_000, silence_ms=7000)
    await world.begin('{"standard": {"target": 9}}')
    assert await world.allocate("call-1", wait=rule) == "hold 0"
    await world.client.zadd(world.keys.waiting_for("standard"), {"call-1": 1})

    assert await world.allocate("call-1", wait=rule) == "none"
    assert await world.client.exists(world.keys.waiting, world.keys.waiters) == 0


async def test_the_wait_queue_is_bounded(world: RouterWorld) -> None:
    rule = WaitRule(most_ms=60_000, silence_ms=7000, waiters_max=2)
    await world.begin('{"standard": {"target": 9}}')

    answers = [await world.allocate(f"call-{number}", wait=rule) for number in range(3)]

    assert answers == ["hold 0", "hold 1", "none"]


async def test_a_tier_that_changes_its_type_while_calls_are_live_loses_nothing(world: RouterWorld) -> None:
    await world.begin('{"basic": {"type": "shared", "target": 9, "max_concurrent": 3}}')
    await world.pods(2)
    for number in range(4):
        await world.allocate(f"call-{number}")

    assert await world.publish('{"basic": {"type": "exclusive", "target": 9}}')

    assert await world.available("basic") == {}
    assert await world.allocate("call-9") == "none"
    for number in range(4):
        assert await world.release(f"call-{number}") is not None
    assert set(await world.available("basic")) == {"agent-0", "agent-1"}

    await world.allocate("call-5")
    assert await world.publish('{"basic": {"type": "shared", "target": 9, "max_concurrent": 2}}')
    assert sorted((await world.available("basic")).values()) == [0, 1]
    assert [await world.allocate(f"more-{n}") != "none" for n in range(4)] == [True, True, True, False]


async def test_a_tier_of_busy_pods_that_becomes_a_shared_one_takes_more_calls_at_once(
    world: RouterWorld,
) -> None:
    await world.begin('{"basic": {"type": "exclusive", "target": 9}}')
    await world.pods(1)
    await world.allocate("call-1")

    await world.publish('{"basic": {"type": "shared", "target": 9, "max_concurrent": 2}}')

    assert [await world.allocate(f"more-{n}") for n in range(2)] == ["agent-0", "none"]


async def test_while_a_pool_key_has_the_old_type_allocation_and_heartbeat_do_not_fail(
    world: RouterWorld,
) -> None:
    await world.begin(ONE_SHARED)
    await world.pods(1)
    await world.client.hset(world.keys.tiers, "basic", "e|9|1")

    refused = await world.ask("call-1")
    assert isinstance(refused, Unallocated)
    assert refused.why == "busy"
    await world.beat("agent-0")
    assert await world.available("basic") == {"agent-0": 0}


async def test_a_pod_that_moves_leaves_its_tier_and_is_free_in_the_other(world: RouterWorld) -> None:
    await world.begin()
    await world.pods(3)
    await world.publish('{"standard": {"target": 1}}')
    assert await world.client.hget(world.keys.tiers, "gold") == "e|0|1", "until its pods have moved"

    for pod in ("agent-0", "agent-1"):
        await world.move(pod, "standard")
    await world.publish('{"standard": {"target": 1}}')

    assert await world.sizes() == {"standard": 3}
    assert set(await world.available("standard")) == {"agent-0", "agent-1", "agent-2"}
    assert await world.client.hexists(world.keys.tiers, "gold") == 0


async def test_a_heartbeat_uses_the_leaders_tiers_not_those_of_its_process(world: RouterWorld) -> None:
    await world.begin('{"standard": {"target": 9}}')

    from trunkline.bus.router import BeatRule

    await world.beat("agent-0", rule=BeatRule(tiers="#order=gold,standard gold=e|9|1 standard=e|9|1"))

    assert await world.tier_of("agent-0") == "standard"


async def test_a_pods_stored_tier_is_restored_above_the_target(world: RouterWorld) -> None:
    await world.begin()

    for pod in ("agent-0", "agent-1"):
        await world.beat(pod, tier="gold")

    assert [await world.tier_of(pod) for pod in ("agent-0", "agent-1")] == ["gold", "gold"]
