"""Slots kept for dials: proposals, what begins from them, what is given back; on one server and on a real cluster."""

from collections.abc import AsyncIterator

import pytest

from tests.support.bus.router_keys import RouterKeys
from tests.support.router.world import RouterWorld
from tests.support.world import ALL_STANDARD
from trunkline.bus import router
from trunkline.bus.connection import Bus, connect
from trunkline.bus.keys import Keys
from trunkline.bus.router import SlotProposals, WaitRule
from trunkline.model import Slot
from trunkline.routing import Allocation, Unallocated

HOLD = WaitRule(60_000, 7_000)
TWO_TIERS = '{"gold": {"type": "exclusive", "target": 2}, "standard": {"type": "exclusive", "target": 2}}'
ONE_SHARED = '{"basic": {"type": "shared", "target": 9, "max_concurrent": 3}}'


class Slots(RouterWorld):
    async def keep(self, *ids: str, merchant: str = "acme") -> list[str]:
        """The pods that are kept; '-' for none."""
        kept = await self.kept(*ids, merchant=merchant)
        slots = [kept.slots.get(self.allocation_of(one)) for one in ids]
        return [slot.pod if slot else "-" for slot in slots]

    async def kept(self, *ids: str, merchant: str = "acme") -> SlotProposals:
        wants = [(self.allocation_of(one), merchant) for one in ids]
        kept = await router.propose_slots(self.router_bus, wants)
        assert kept is not None
        return kept

    async def begin_call(
        self, allocation: str, call: str, pod: str, slot: int = 1, incarnation: int = 0
    ) -> None:
        incarnation = incarnation or int(await self.client.hget(self.keys.pod(pod), "incarnation"))
        place = Slot(pod, slot, incarnation, "pool:standard")
        await router.begin(self.router_bus, Allocation(self.allocation_of(allocation), call, place, "acme"))

    async def free(self, *ids: str, tombstone_s: int = 600) -> None:
        await router.free(self.router_bus, [*map(self.allocation_of, ids)], tombstone_s=tombstone_s)

    async def free_slots(self) -> dict[str, int]:
        free = await router.free_slots(self.router_bus)
        assert free is not None
        return dict(free)

    async def slots_of(self, pod: str) -> dict[str, str]:
        return dict(await self.client.hgetall(self.keys.pod_slots(pod)))

    async def rings(self) -> int:
        await _settled(self.bus)
        return int(await self.client.llen(self.bus.keys.dialer_wakeups))


async def _settled(bus: Bus) -> None:
    if bus._waking is not None:
        await bus._waking


@pytest.fixture(params=["one server", "cluster"])
async def world(request: pytest.FixtureRequest, key_prefix: str, redis_url: str) -> AsyncIterator[Slots]:
    if request.param == "cluster":
        urls: list[str] = request.getfixturevalue("valkey_cluster")
        bus = connect(urls[0], Keys(prefix=key_prefix), cluster=True)
        keys = RouterKeys(f"{{{key_prefix}}}")
    else:
        bus, keys = connect(redis_url, Keys(prefix=key_prefix)), RouterKeys(key_prefix)
    yield Slots(bus, keys)
    await bus.close()


async def test_each_dial_reserves_its_own_slot_and_the_reply_counts_free_ones(world: Slots) -> None:
    await world.begin(ALL_STANDARD)
    await world.pods(3)

    kept = await world.kept("a", "b")

    assert kept.slots == {
        world.allocation_of("a"): Slot("agent-0", 1, 1, "pool:standard"),
        world.allocation_of("b"): Slot("agent-1", 1, 2, "pool:standard"),
    }
    assert kept.free == {"standard": 1}
    assert await world.free_slots() == {"standard": 1}
    assert await world.keep("c", "d") == ["agent-2", "-"]
    assert await world.ask("somebody") == Unallocated("busy")
    assert await world.status_of("agent-0") == "kept"
    counts = await router.counts(world.router_bus)
    assert (counts.kept, counts.pools[0].kept, counts.calls) == (3, 3, 0)


async def test_the_same_dial_again_gets_the_slot_reserved_for_it(world: Slots) -> None:
    await world.begin(ALL_STANDARD)
    await world.pods(2)

    first = await world.kept("a")

    assert (await world.kept("a")).slots == first.slots
    assert await world.free_slots() == {"standard": 1}


async def test_a_reserved_pod_stays_reserved_through_its_heartbeats(world: Slots) -> None:
    await world.begin(ALL_STANDARD)
    (pod,) = await world.pods(1)
    await world.keep("a")

    await world.beat(pod)

    assert await world.keep("b") == ["-"]
    assert await world.slots_of(pod) == {"1": str(world.allocation_of("a"))}


async def test_an_answered_call_begins_on_its_slot_and_leaves_the_documented_keys(world: Slots) -> None:
    await world.begin(ALL_STANDARD)
    (pod,) = await world.pods(1)
    await world.keep("a")

    for _ in range(2):
        await world.begin_call("a", "call-1", pod)

    record = await world.client.hgetall(world.keys.call("call-1"))
    assert (record["pod_name"], record["source_pool"], record["merchant_id"], record["allocation_id"]) == (
        pod, "pool:standard", "acme", str(world.allocation_of("a")),
    )  # fmt: skip
    assert await world.client.get(world.keys.lease(pod)) == "call-1"
    assert await world.status_of(pod) == "allocated"
    assert await world.client.zcard(world.keys.kept) == 0
    assert await world.allocate("call-1") == pod
    counts = await router.counts(world.router_bus)
    assert (counts.kept, counts.calls) == (0, 1)


async def test_a_call_that_begins_at_another_pod_frees_its_reservation(world: Slots) -> None:
    await world.begin(ALL_STANDARD)
    await world.pods(2)
    assert await world.keep("a") == ["agent-0"]

    await world.begin_call("a", "call-1", "agent-1")

    assert await world.available("standard") == {"agent-0": 0}
    begun = {"1": str(world.allocation_of("a"))}
    assert (await world.slots_of("agent-0"), await world.slots_of("agent-1")) == ({}, begun)


async def test_a_call_that_begins_at_another_pod_frees_the_first(world: Slots) -> None:
    await world.begin(ALL_STANDARD)
    await world.pods(2)
    await world.begin_call("a", "call-1", "agent-0")

    await world.begin_call("a", "call-1", "agent-1")

    assert await world.available("standard") == {"agent-0": 0}
    assert await world.allocate("call-1") == "agent-1"


async def test_freeing_a_slot_twice_frees_it_once(world: Slots) -> None:
    await world.begin(ALL_STANDARD)
    await world.pods(2)
    await world.keep("a", "b")
    await world.begin_call("a", "call-1", "agent-0")

    await world.free("a", "b", "unknown")
    assert await world.keep("c", "d") == ["agent-0", "agent-1"]
    await world.free("a", "b")

    assert await world.keep("e") == ["-"]
    assert await world.allocate("call-1") == "ended"


async def test_a_begin_that_comes_after_the_end_changes_nothing(world: Slots) -> None:
    await world.begin(ALL_STANDARD)
    (pod,) = await world.pods(1)
    await world.keep("a")
    await world.begin_call("a", "call-1", pod)
    await world.free("a")

    await world.begin_call("a", "call-1", pod)

    assert await world.available("standard") == {pod: 0}


async def test_a_begin_of_an_older_incarnation_changes_nothing(world: Slots) -> None:
    await world.begin(ALL_STANDARD)
    (pod,) = await world.pods(1)
    await world.client.hset(world.keys.pod(pod), "incarnation", 9)

    await world.begin_call("a", "call-1", pod, incarnation=8)

    assert await world.available("standard") == {pod: 0}


async def test_a_slot_occupied_by_another_attempt_is_not_proposed_again(world: Slots) -> None:
    await world.begin(ALL_STANDARD)
    await world.pods(2)
    assert await world.keep("a") == ["agent-0"]

    await router.occupy(world.router_bus, "agent-0", 1, world.allocation_of("other"))
    await world.free("a")

    assert await world.slots_of("agent-0") == {"1": str(world.allocation_of("other"))}
    assert await world.keep("a", "b") == ["agent-1", "-"]
    await world.free("other")
    assert await world.keep("b") == ["agent-0"]


async def test_a_proven_slot_is_not_taken_by_a_conflict(world: Slots) -> None:
    await world.begin(ALL_STANDARD)
    await world.pods(1)
    await world.keep("a")
    await world.client.zrem(world.keys.unproven, str(world.allocation_of("a")))

    await router.occupy(world.router_bus, "agent-0", 1, world.allocation_of("other"))

    assert await world.slots_of("agent-0") == {"1": str(world.allocation_of("a"))}


async def test_a_dial_reserves_in_its_own_tier_and_then_in_the_common_ones(world: Slots) -> None:
    await world.begin(TWO_TIERS)
    await world.pods(4)
    await world.configure("rich", tier="gold")

    assert await world.keep("a", "b", "c", merchant="rich") == ["agent-0", "agent-1", "agent-2"]
    assert await world.keep("d", "e", merchant="poor") == ["agent-3", "-"]


async def test_slots_of_a_shared_pod_have_numbers_and_the_lowest_free_is_taken(world: Slots) -> None:
    await world.begin(ONE_SHARED)
    (pod,) = await world.pods(1)

    kept = await world.kept("a", "b", "c", "d")
    slots = [kept.slots.get(world.allocation_of(dial)) for dial in "abcd"]
    assert [slot and slot.no for slot in slots] == [1, 2, 3, None]
    await world.free("b")

    assert (await world.kept("e")).slots == {world.allocation_of("e"): Slot(pod, 2, 1, "pool:basic")}
    assert await world.available("basic") == {pod: 3}


async def test_ten_percent_of_a_tier_are_left_to_inbound_calls(world: Slots) -> None:
    await world.begin(ALL_STANDARD)
    await world.pods(20)

    kept = await world.keep(*(f"dial-{n}" for n in range(20)))

    assert kept.count("-") == 2
    assert {await world.allocate("caller-1"), await world.allocate("caller-2")} == {"agent-18", "agent-19"}


async def test_a_tiers_config_sets_its_inbound_reserve(world: Slots) -> None:
    await world.begin('{"standard": {"type": "exclusive", "target": 3, "callers": 2}}')
    await world.pods(3)

    assert await world.keep("a", "b") == ["agent-0", "-"]


async def test_a_freed_slot_is_not_reserved_for_a_dial_while_a_caller_waits(world: Slots) -> None:
    await world.begin(ALL_STANDARD)
    await world.pods(8)
    await world.keep(*(f"dial-{n}" for n in range(8)), merchant="other")
    assert await world.allocate("caller", "acme", HOLD) == "hold 0"

    await world.free("dial-0")
    assert await world.keep("next", merchant="acme") == ["-"]
    assert await world.keep("next", merchant="other") == ["-"]

    assert await world.allocate("caller", "acme", HOLD) == "agent-0"
    await world.free("dial-1")
    assert await world.keep("next", merchant="acme") == ["agent-1"], "nobody waits any more"


async def test_other_merchants_dials_yield_at_most_a_quarter_of_the_tier(world: Slots) -> None:
    await world.begin(ALL_STANDARD)
    await world.pods(8)
    await world.keep(*(f"dial-{n}" for n in range(8)), merchant="other")
    for n in range(5):
        await world.allocate(f"caller-{n}", "acme", HOLD)
    await world.free("dial-0", "dial-1", "dial-2")

    assert await world.keep("own", merchant="acme") == ["-"], (
        "their own merchant's dials give way to all of them"
    )
    assert await world.keep("next", "more", merchant="other") == ["agent-0", "-"]
    assert {await world.allocate(f"caller-{n}", "acme", HOLD) for n in range(2)} == {"agent-1", "agent-2"}
    await world.free("dial-3")
    assert await world.keep("last", merchant="other") == ["agent-3"], "a quarter has been yielded"


async def test_a_silent_pod_is_not_reserved_and_takes_answered_calls(world: Slots) -> None:
    await world.begin(ALL_STANDARD)
    await world.pods(2)
    await world.fall_silent("agent-0")

    assert await world.keep("a", "b") == ["agent-1", "-"]
    assert await world.free_slots() == {"standard": 0}
    assert await world.recover() == 0
    assert await world.free_slots() == {"standard": 0}, "a round of the leader does not bring it back"
    assert await world.allocate("answered") == "agent-0"
    await world.release("answered")
    await world.beat("agent-0")
    assert await world.keep("b") == ["agent-0"]


async def test_a_pod_that_beats_slowly_is_silent_after_three_of_its_intervals(world: Slots) -> None:
    await world.begin(ALL_STANDARD)
    await world.pods(1)
    await world.client.hset(world.keys.pod("agent-0"), "interval_s", 30)
    now_s, _ = await world.client.time()
    await world.client.hset(world.keys.hearing, mapping={"since": 1, "ran": now_s * 1000})
    await world.client.hset(world.keys.pod("agent-0"), "heard_ms", (now_s - 60) * 1000)
    await world.client.zadd(world.keys.heartbeats, {"agent-0": (now_s - 60) * 1000})

    assert await world.keep("a") == ["agent-0"]
    await world.free("a")
    await world.client.zadd(world.keys.heartbeats, {"agent-0": (now_s - 95) * 1000})
    assert await world.keep("a") == ["-"]


async def test_leaving_draining_and_unready_pods_are_not_reserved(world: Slots) -> None:
    await world.begin(ALL_STANDARD)
    await world.pods(4)
    await world.beat("agent-0", leaving=True)
    await router.drain(world.router_bus, "agent-1", 360)
    await world.client.hset(world.keys.pod("agent-2"), "ready", "0")

    assert await world.keep("a", "b") == ["agent-3", "-"]


async def test_a_pod_without_an_incarnation_is_not_reserved(world: Slots) -> None:
    await world.begin(ALL_STANDARD)
    await world.pods(1)
    await world.client.hdel(world.keys.pod("agent-0"), "incarnation")

    assert await world.keep("a") == ["-"]
    assert await world.allocate("answered") == "agent-0"


async def test_a_lost_projection_is_stale_until_it_is_rebuilt(world: Slots) -> None:
    await world.begin(ALL_STANDARD)
    await world.pods(1)
    await world.flush()

    assert await router.propose_slots(world.router_bus, [(world.allocation_of("a"), "acme")]) is None
    assert await router.free_slots(world.router_bus) is None
    assert await world.ask("call-1", is_alone=False) is None
    assert await world.ask("call-1", is_alone=True) == Unallocated("busy", is_misconfigured=True)


async def test_dialers_are_woken_by_a_freed_slot_only_while_they_wait_for_one(world: Slots) -> None:
    await world.begin(ALL_STANDARD)
    await world.pods(1)
    await world.keep("a")
    await world.free("a")
    assert await world.rings() == 0, "nobody waits"

    await world.keep("a", "b")
    await world.free("a")
    assert await world.rings() == 1

    await world.allocate("call-1")
    await world.release("call-1")
    assert await world.rings() == 2
