"""The router's scripts, each on one server and on a real cluster."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

import pytest

from tests.support.bus.router_keys import RouterKeys
from tests.support.router.world import Numbers
from tests.support.world import ALL_STANDARD
from trunkline.bus import router, router_manager
from trunkline.bus.connection import Bus, connect
from trunkline.bus.keys import Keys
from trunkline.bus.router import BeatRule, RouterBus, Unregistered
from trunkline.bus.router_manager import Term
from trunkline.model import Slot
from trunkline.routing import (
    Allocation,
    EndedAllocation,
    PodHeartbeat,
    PodSuperseded,
    RegisteredPod,
    Unallocated,
)
from trunkline.schema.router import RouterPod
from trunkline.settings.tiers import assignment_order, parse_tiers

LEASE_TTL_S = 86_400
ENDED_TTL_S = 600
RULE = BeatRule(lease_ttl_s=LEASE_TTL_S)


def named(text: str) -> UUID:
    return uuid5(NAMESPACE_OID, text)


class Router:
    """The scripts under the keys of one test, with a pod's sequence numbers counted for it."""

    def __init__(self, bus: Bus, keys: RouterKeys):
        self.bus = bus
        self.keys = keys
        self.router_bus = RouterBus(bus, keys)
        self.client: Any = bus.client
        self._sequence = 0
        self._numbers = Numbers()
        self.term = Term(self.router_bus, "", 1)

    async def begin(self, tier_config: str = ALL_STANDARD) -> None:
        """A new installation, managed under the first term."""
        lead = await router_manager.lead(self.router_bus, 1)
        self.term = Term(self.router_bus, lead.epoch, 1)
        await self.term.rebuilt()
        tiers = parse_tiers(tier_config)
        await self.term.publish_tiers(
            assignment_order(tiers), {name: tier.text for name, tier in tiers.items()}
        )

    async def beat(
        self,
        pod: str,
        calls: Sequence[str] = (),
        *,
        boot_id: str = "boot-1",
        sequence: int | None = None,
        leaving: bool = False,
    ) -> Any:
        self._sequence += 1
        sequence = self._sequence if sequence is None else sequence
        url = f"ws://{pod}"
        beat = PodHeartbeat(
            pod, boot_id, sequence, "10.0.0.1", base_url=url, calls=tuple(calls), leaving=leaving
        )
        known = await router.heartbeat(self.router_bus, beat, RULE)
        if isinstance(known, Unregistered):
            told = self._numbers.of(pod, boot_id)
            known = await router.heartbeat(self.router_bus, beat, RULE, told)
        assert not isinstance(known, Unregistered)
        return known

    async def allocate(self, call: str, allocation_id: str = "") -> Allocation | str:
        answer = await router.allocate(
            self.router_bus,
            call,
            merchant_id="acme",
            allocation_id=named(allocation_id or f"allocation-of-{call}"),
            lease_ttl_s=LEASE_TTL_S,
            is_alone=True,
        )
        match answer:
            case Allocation():
                return answer
            case Unallocated(why="busy"):
                return "none"
            case Unallocated(why="ended"):
                return "ended"
            case _:
                return "hold"

    async def release(self, call: str, by_pod: str = "") -> EndedAllocation | None:
        return await router.release(self.router_bus, call, by_pod=by_pod, ended_ttl_s=ENDED_TTL_S)

    async def expire(self, ttl_s: float = 90) -> list[str]:
        """As the manager does it, with no freeze."""
        _, silent = await router_manager.silent(self.router_bus, ttl_s=ttl_s, gap_max_s=15)
        return [s.name for s in silent if await self.term.remove(s.name, heard_ms=s.heard_ms)]

    async def count(self) -> tuple[int, list[tuple[str, int, int]]]:
        counts = await router.counts(self.router_bus)
        return counts.calls, [(pool.tier, pool.available, pool.assigned) for pool in counts.pools]

    async def pod_of(self, call: str) -> str:
        allocation = await self.allocate(call)
        assert isinstance(allocation, Allocation)
        return allocation.pod

    async def available(self) -> set[str]:
        return set(await self.client.smembers(self.keys.available("standard")))

    async def status_of(self, pod: str) -> str | None:
        view = await router.pod_view(self.router_bus, pod)
        return view.pod.status if view else None

    async def fall_silent(self, *pods: str) -> None:
        """As if these had not been heard for an hour in which we listened."""
        for pod in pods:
            await self.client.zadd(self.keys.heartbeats, {pod: 1})
        await self.expire()
        await self.client.hset(self.keys.hearing, "since", "1")


@pytest.fixture(params=["one server", "cluster"])
async def routing(request: pytest.FixtureRequest, key_prefix: str, redis_url: str) -> AsyncIterator[Router]:
    if request.param == "cluster":
        urls: list[str] = request.getfixturevalue("valkey_cluster")
        bus = connect(urls[0], Keys(prefix=key_prefix), cluster=True)
        keys = RouterKeys(f"{{{key_prefix}}}")
    else:
        bus = connect(redis_url, Keys(prefix=key_prefix))
        keys = RouterKeys(key_prefix)
    routing = Router(bus, keys)
    await routing.begin()
    yield routing
    await bus.close()


async def test_a_new_pod_is_registered_and_free(routing: Router) -> None:
    answer = await routing.beat("agent-0")

    assert (answer.is_news, answer.tier, answer.draining, answer.calls) == (True, "standard", False, ())
    assert await routing.available() == {"agent-0"}
    assert await routing.client.smembers(routing.keys.assigned("standard")) == {"agent-0"}
    assert await routing.client.get(routing.keys.pod_tier("agent-0")) == "standard"
    metadata = await routing.client.hget(routing.keys.metadata, "agent-0")
    assert json.loads(metadata) == {"tier": "standard", "name": "agent-0"}


async def test_an_allocation_leaves_the_documented_keys(routing: Router) -> None:
    await routing.beat("agent-0")

    allocation = await routing.allocate("call-1")

    assert isinstance(allocation, Allocation)
    client, keys, at = routing.client, routing.keys, str(allocation.at_s)
    assert allocation == Allocation(
        named("allocation-of-call-1"), "call-1", Slot("agent-0", 1, 1, "pool:standard"), "acme",
        base_url="ws://agent-0", is_existing=False, at_s=int(at),
    )  # fmt: skip
    assert await client.hgetall(keys.call("call-1")) == {
        "pod_name": "agent-0",
        "source_pool": "pool:standard",
        "merchant_id": "acme",
        "allocated_at": at,
        "allocation_id": str(named("allocation-of-call-1")),
        "slot": "1",
        "incarnation": "1",
    }
    pod = await client.hgetall(keys.pod("agent-0"))
    assert pod["status"] == "allocated"
    assert pod["allocated_call_sid"] == "call-1"
    assert pod["allocated_at"] == at
    assert pod["source_pool"] == "pool:standard"
    assert await client.get(keys.lease("agent-0")) == "call-1"
    assert LEASE_TTL_S - 60 < await client.ttl(keys.lease("agent-0")) <= LEASE_TTL_S
    assert LEASE_TTL_S - 60 < await client.ttl(keys.call("call-1")) <= LEASE_TTL_S
    assert await routing.available() == set()


async def test_a_release_leaves_the_documented_keys_and_a_tombstone(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.allocate("call-1")

    released = await routing.release("call-1")

    assert released == EndedAllocation(
        named("allocation-of-call-1"), "agent-0", "pool:standard", False, "available"
    )
    client, keys = routing.client, routing.keys
    assert await client.exists(keys.call("call-1")) == 0
    assert await client.exists(keys.lease("agent-0")) == 0
    pod = await client.hgetall(keys.pod("agent-0"))
    assert pod["status"] == "available"
    assert "released_at" in pod
    assert "allocated_call_sid" not in pod
    assert ENDED_TTL_S - 60 < await client.ttl(keys.ended("call-1")) <= ENDED_TTL_S
    assert await routing.available() == {"agent-0"}


async def test_the_same_call_gets_the_same_pod_and_the_same_allocation(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.beat("agent-1")

    first = await routing.allocate("call-1", "one")
    again = await routing.allocate("call-1", "two")

    assert isinstance(first, Allocation)
    assert isinstance(again, Allocation)
    assert (again.pod, again.id, again.is_existing) == (first.pod, named("one"), True)
    assert len(await routing.available()) == 1


async def test_an_allocation_without_a_free_pod_writes_no_call(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.allocate("call-1")

    assert await routing.allocate("call-2") == "none"
    assert await routing.client.exists(routing.keys.call("call-2")) == 0


async def test_a_call_that_has_ended_gets_no_pod(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.allocate("call-1")
    await routing.release("call-1")

    assert await routing.allocate("call-1") == "ended"
    assert await routing.available() == {"agent-0"}


async def test_a_release_that_comes_before_the_allocation_wins(routing: Router) -> None:
    await routing.beat("agent-0")

    assert await routing.release("call-1") is None
    assert await routing.allocate("call-1") == "ended"


async def test_a_release_of_an_earlier_allocation_changes_nothing(routing: Router) -> None:
    """A call that lost its pod and has another by now keeps it: whoever asked meant the one before."""
    await routing.beat("agent-0")
    await routing.allocate("call-1")

    async def end(allocation_id: str) -> EndedAllocation | None:
        return await router.release(
            routing.router_bus, "call-1", by_pod="", ended_ttl_s=ENDED_TTL_S, only=allocation_id
        )

    assert await end("an earlier allocation") is None
    again = await routing.allocate("call-1")
    assert isinstance(again, Allocation), "it has its pod, and no tombstone"
    ended = await end(str(named("allocation-of-call-1")))
    assert ended is not None
    assert ended.pod == "agent-0"


async def test_release_twice_frees_one_pod_once(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.allocate("call-1")
    await routing.release("call-1")
    assert await routing.pod_of("call-2") == "agent-0"

    assert await routing.release("call-1") is None

    assert await routing.available() == set()
    assert await routing.client.get(routing.keys.lease("agent-0")) == "call-2"


async def test_two_hundred_requests_for_a_hundred_calls_share_fifty_pods(routing: Router) -> None:
    for number in range(50):
        await routing.beat(f"agent-{number}")

    calls = [f"call-{number}" for number in range(100)] * 2
    random.Random(7).shuffle(calls)
    answers = await asyncio.gather(*(routing.allocate(call) for call in calls))

    pods: dict[str, set[str]] = {}
    for call, answer in zip(calls, answers, strict=True):
        pods.setdefault(call, set()).add(answer.pod if isinstance(answer, Allocation) else answer)
    served = [next(iter(pod)) for pod in pods.values() if pod != {"none"}]
    assert all(len(pod) == 1 for pod in pods.values())
    assert len(served) == len(set(served)) == 50
    assert sum(answer == "none" for answer in answers) == 100


async def test_the_pod_that_was_free_longest_is_allocated(routing: Router) -> None:
    order = routing.keys.order("standard")
    for pod in ("agent-0", "agent-1", "agent-2"):
        await routing.beat(pod)
    await routing.client.zadd(order, {"agent-0": 30, "agent-1": 10, "agent-2": 20})

    assert [await routing.pod_of(f"call-{n}") for n in range(3)] == ["agent-1", "agent-2", "agent-0"]


async def test_a_pod_in_the_available_set_without_an_order_entry_is_allocated(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.client.delete(routing.keys.order("standard"))
    assert await routing.pod_of("call-1") == "agent-0"


async def test_a_pod_that_was_taken_out_of_the_set_by_hand_is_not_taken(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.client.srem(routing.keys.available("standard"), "agent-0")
    assert await routing.allocate("call-1") == "none"


async def test_a_leased_pod_in_the_set_is_never_handed_out(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.allocate("call-1")
    await routing.client.sadd(routing.keys.available("standard"), "agent-0")

    assert await routing.allocate("call-2") == "none"
    assert await routing.available() == set()


async def test_a_draining_pod_is_skipped_and_keeps_its_place(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.client.set(routing.keys.draining("agent-0"), "true", ex=360)

    assert await routing.allocate("call-1") == "none"

    await routing.client.delete(routing.keys.draining("agent-0"))
    assert await routing.pod_of("call-1") == "agent-0"


async def test_a_draining_pod_is_not_free_after_its_release(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.allocate("call-1")
    await routing.client.set(routing.keys.draining("agent-0"), "true", ex=360)

    released = await routing.release("call-1")

    assert released == EndedAllocation(
        named("allocation-of-call-1"), "agent-0", "pool:standard", True, "draining"
    )
    assert await routing.available() == set()


async def test_a_leaving_pod_is_not_free_and_its_next_boot_is(routing: Router) -> None:
    await routing.beat("agent-0")
    answer = await routing.beat("agent-0", leaving=True)

    assert answer.draining
    assert await routing.allocate("call-1") == "none"

    await routing.beat("agent-0", boot_id="boot-2", sequence=1)
    assert await routing.pod_of("call-1") == "agent-0"


async def test_a_pod_is_not_allocated_while_its_heartbeats_name_a_released_call(
    routing: Router,
) -> None:
    await routing.beat("agent-0")
    await routing.allocate("call-1")
    await routing.beat("agent-0", ["call-1"])

    released = await routing.release("call-1")

    assert released is not None
    assert released.pod_status == "ending"
    assert await routing.allocate("call-2") == "none"
    await routing.beat("agent-0", ["call-1"])
    assert await routing.allocate("call-2") == "none"
    await routing.beat("agent-0")
    assert await routing.pod_of("call-2") == "agent-0"


async def test_a_release_by_the_pod_after_the_platforms_frees_it(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.allocate("call-1")
    await routing.beat("agent-0", ["call-1"])
    await routing.release("call-1")

    assert await routing.release("call-1", by_pod="agent-0") is None

    assert await routing.status_of("agent-0") == "available"
    assert await routing.pod_of("call-2") == "agent-0"


async def test_a_release_by_the_pod_frees_it_at_once(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.allocate("call-1")
    await routing.beat("agent-0", ["call-1"])

    released = await routing.release("call-1", by_pod="agent-0")

    assert released is not None
    assert released.pod_status == "available"


async def test_a_pod_cannot_release_a_call_that_has_moved_to_another_pod(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.allocate("call-1")
    await routing.beat("agent-0", ["call-1"])
    await routing.fall_silent("agent-0")
    assert await routing.expire() == ["agent-0"]
    await routing.beat("agent-1")
    assert await routing.pod_of("call-1") == "agent-1"

    assert await routing.release("call-1", by_pod="agent-0") is None

    assert await routing.pod_of("call-1") == "agent-1"


async def test_a_heartbeat_without_a_call_that_it_named_before_frees_nothing_by_itself(
    routing: Router,
) -> None:
    """Postgres decides whether that is the call's end: its agent may only have lost the stream."""
    await routing.beat("agent-0")
    await routing.allocate("call-1")
    await routing.beat("agent-0", ["call-1"])

    await routing.beat("agent-0")

    assert await routing.pod_of("call-1") == "agent-0"
    assert await routing.available() == set()


async def test_a_late_heartbeat_of_a_dead_process_changes_nothing(routing: Router) -> None:
    await routing.beat("agent-0", boot_id="boot-1", sequence=5)
    await routing.beat("agent-0", boot_id="boot-2", sequence=1)
    await routing.allocate("call-2")
    await routing.beat("agent-0", ["call-2"], boot_id="boot-2", sequence=2)
    before = await routing.client.hgetall(routing.keys.pod("agent-0"))

    for times in (1, 2, 3):
        assert await routing.beat("agent-0", boot_id="boot-1", sequence=6) == PodSuperseded(times)

    assert await routing.client.hgetall(routing.keys.pod("agent-0")) == before
    assert await routing.pod_of("call-2") == "agent-0"
    assert await routing.available() == set()


async def test_without_postgres_a_heartbeat_of_an_earlier_boot_is_superseded(routing: Router) -> None:
    async def beat(boot: str, sequence: int, *calls: str) -> object:
        said = PodHeartbeat("agent-0", boot, sequence, calls=calls)
        return await router.heartbeat(routing.router_bus, said, RULE, RegisteredPod())

    await beat("boot-1", 5)
    await beat("boot-2", 1)
    await routing.allocate("call-2")
    await beat("boot-2", 2, "call-2")

    assert await beat("boot-1", 6) == PodSuperseded(1)
    assert await routing.pod_of("call-2") == "agent-0"


async def test_a_new_process_keeps_the_calls_that_it_names(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.allocate("call-1")

    await routing.beat("agent-0", ["call-1"], boot_id="boot-2", sequence=1)

    assert await routing.pod_of("call-1") == "agent-0"
    assert await routing.client.hget(routing.keys.call("call-1"), "incarnation") == "2"


async def test_a_heartbeat_with_an_older_incarnation_changes_nothing(routing: Router) -> None:
    """Two registrations of a pod reach Valkey in the wrong order."""
    await routing.beat("agent-0", boot_id="boot-1")
    await routing.beat("agent-0", boot_id="boot-2", sequence=1)
    await routing.client.hdel(routing.keys.pod("agent-0"), "past_boots")
    late = PodHeartbeat("agent-0", "boot-1", 99)

    answer = await router.heartbeat(routing.router_bus, late, RULE, RegisteredPod(1, "standard"))

    assert answer == PodSuperseded(1)
    assert await routing.client.hget(routing.keys.pod("agent-0"), "boot_id") == "boot-2"


async def test_a_pod_that_beat_after_it_was_found_silent_is_not_removed(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.allocate("call-1")
    await routing.fall_silent("agent-0")
    _, silent = await router_manager.silent(routing.router_bus, ttl_s=90, gap_max_s=15)
    await routing.beat("agent-0", ["call-1"])

    assert [s.name for s in silent] == ["agent-0"]
    assert not await routing.term.remove("agent-0", heard_ms=silent[0].heard_ms)
    assert await routing.pod_of("call-1") == "agent-0"


async def test_a_removal_of_an_older_incarnation_changes_nothing(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.beat("agent-0", boot_id="boot-2", sequence=1)

    assert not await routing.term.remove("agent-0", newest=1)
    assert await routing.available() == {"agent-0"}


async def test_a_heartbeat_without_the_call_does_not_free_a_newly_allocated_pod(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.allocate("call-1")

    answer = await routing.beat("agent-0")

    assert answer.calls == ("call-1",)
    assert await routing.available() == set()


async def test_an_overtaken_heartbeat_is_ignored(routing: Router) -> None:
    await routing.beat("agent-0", sequence=1)
    await routing.allocate("call-1")
    await routing.beat("agent-0", ["call-1"], sequence=3)

    answer = await routing.beat("agent-0", sequence=2)

    assert not answer.is_news
    assert await routing.pod_of("call-1") == "agent-0"


async def test_a_new_boot_ends_the_allocation_but_not_the_call(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.allocate("call-1")
    await routing.beat("agent-0", ["call-1"])

    await routing.beat("agent-0", boot_id="boot-2", sequence=1)

    again = await routing.allocate("call-1", "second allocation")
    assert isinstance(again, Allocation)
    assert (again.id, again.is_existing) == (named("second allocation"), False)


async def test_a_busy_pods_heartbeat_restores_its_call_after_the_projection_was_lost(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.allocate("call-1")
    keys = await routing.client.keys(f"{routing.keys.prefix}:*")
    await routing.client.delete(*keys)

    await routing.beat("agent-0", ["call-1"])

    assert await routing.allocate("call-2") == "none"
    assert await routing.pod_of("call-1") == "agent-0"
    assert await routing.release("call-1") is not None


async def test_a_force_reset_frees_the_pod_with_its_next_heartbeat(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.allocate("call-1")
    client, keys = routing.client, routing.keys
    await client.delete(keys.lease("agent-0"))
    await client.delete(keys.call("call-1"))
    await client.hset(keys.pod("agent-0"), "status", "available")
    await client.hdel(keys.pod("agent-0"), "allocated_call_sid", "allocated_at")

    await routing.beat("agent-0")
    await routing.expire()

    assert await routing.available() == {"agent-0"}
    assert await routing.count() == (0, [("standard", 1, 1)])


async def test_a_silent_pod_is_removed_and_its_call_gets_another(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.allocate("call-1")
    await routing.beat("agent-1")
    await routing.fall_silent("agent-0")

    assert await routing.expire() == ["agent-0"]

    assert await router.pod_view(routing.router_bus, "agent-0") is None
    assert await routing.pod_of("call-1") == "agent-1"
    assert await routing.count() == (1, [("standard", 0, 1)])


async def test_a_removed_pod_whose_heartbeat_names_its_call_is_not_allocated(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.allocate("call-1")
    await routing.fall_silent("agent-0")
    await routing.expire()

    await routing.beat("agent-0", ["call-1"])

    assert await routing.available() == set()
    assert await routing.status_of("agent-0") == "ending"


async def test_silence_does_not_count_while_no_router_received_heartbeats(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.fall_silent("agent-0")
    long_ago = await routing.client.hget(routing.keys.hearing, "since")
    await routing.client.hset(routing.keys.hearing, "ran", long_ago)

    assert await routing.expire() == []
    assert await routing.expire() == []
    assert await routing.available() == {"agent-0"}


async def test_a_release_of_a_removed_pod_does_not_make_it_available(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.allocate("call-1")
    await routing.client.srem(routing.keys.assigned("standard"), "agent-0")

    released = await routing.release("call-1")

    assert released is not None
    assert released.pod_status == "gone"
    assert await routing.available() == set()


async def test_a_pod_is_shown_with_its_call(routing: Router) -> None:
    await routing.beat("agent-0")
    await routing.allocate("call-1")

    view = await router.pod_view(routing.router_bus, "agent-0")

    assert view is not None
    shown = RouterPod(
        "agent-0", "standard", False, True, "call-1", "allocated", ["call-1"], "10.0.0.1", 0, "", [], []
    )
    assert view.pod == shown
