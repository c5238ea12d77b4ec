"""Random lives of honest pods, checked against what the pods themselves know. A failure names its seed."""

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from trunkline.bus import router, router_views
from trunkline.bus.connection import Bus, connect
from trunkline.bus.keys import Keys
from trunkline.bus.router import Allocation, Beat, BeatRule, CallOver
from trunkline.bus.router_keys import RouterKeys

STEPS = 150
PODS = 4
RECENT = 8
TIERS = "#order=standard standard=e|1|1"


@dataclass
class Pod:
    """A pod's own truth: the call whose stream it has."""

    name: str
    boot: int = 1
    sequence: int = 0
    call: str = ""


@dataclass
class World:
    """Pods tell the router at once what changes; releases of theirs may be lost, the platform's come at any time."""

    bus: Bus
    keys: RouterKeys
    dice: random.Random
    pods: dict[str, Pod] = field(default_factory=dict)
    # Calls that were given a pod and have not connected yet.
    connecting: dict[str, str] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    calls: int = 0

    def some_call(self) -> str:
        """A new call, or one of the last few."""
        number = self.dice.randrange(max(0, self.calls - RECENT), self.calls + 1)
        self.calls = max(self.calls, number + 1)
        return f"call-{number}"

    async def beat(self, pod: Pod) -> None:
        pod.sequence += 1
        calls = [pod.call] if pod.call else []
        beat = Beat(pod.name, f"boot-{pod.boot}", pod.sequence, calls, False, {})
        await router.heartbeat(self.bus, self.keys, beat, BeatRule(tiers=TIERS, settle_ms=0))

    async def allocate(self) -> None:
        call = self.some_call()
        answer = await router.allocate(
            self.bus,
            self.keys,
            call,
            merchant_id="",
            allocation_id=f"{call}-{self.dice.random()}",
            lease_ttl_s=3600,
        )
        if not isinstance(answer, Allocation):
            assert isinstance(answer, CallOver) == (call in self.ended)
            return
        pod = self.pods[answer.pod]
        if answer.was_existing:
            assert pod.call == call or self.connecting[call] == answer.pod
            return
        assert call not in self.ended
        assert pod.call == "", "a pod in conversation was handed out"
        assert answer.pod not in self.connecting.values(), "a pod was handed out twice"
        self.connecting[call] = answer.pod

    async def connect(self) -> None:
        if not self.connecting:
            return
        call = self.dice.choice(sorted(self.connecting))
        pod = self.pods[self.connecting.pop(call)]
        assert pod.call == ""
        pod.call = call
        await self.beat(pod)

    async def hang_up(self) -> None:
        pod = self.dice.choice([*self.pods.values()])
        if not pod.call:
            return
        call, pod.call = pod.call, ""
        release_first = self.dice.random() < 0.5
        if release_first:
            await router.release(self.bus, self.keys, call, by_pod=pod.name, ended_ttl_s=600)
        await self.beat(pod)
        self.ended.add(call)

    async def platform_releases(self) -> None:
        call = self.some_call()
        await router.release(self.bus, self.keys, call, by_pod="", ended_ttl_s=600)
        self.ended.add(call)
        self.connecting.pop(call, None)

    async def restart(self) -> None:
        pod = self.dice.choice([*self.pods.values()])
        pod.boot, pod.sequence, pod.call = pod.boot + 1, 0, ""
        self.connecting = {call: name for call, name in self.connecting.items() if name != pod.name}
        await self.beat(pod)

    async def idle_beat(self) -> None:
        await self.beat(self.dice.choice([*self.pods.values()]))

    async def check(self) -> None:
        """Leases, records and the free pods never contradict each other or the pods."""
        client: Any = self.bus.client
        free = await client.smembers(self.keys.available("standard"))
        for pod in self.pods.values():
            call = await client.get(self.keys.lease(pod.name))
            if call:
                assert await client.hget(self.keys.call(call), "pod_name") == pod.name
                assert pod.name not in free
            if pod.call:
                assert pod.name not in free
            elif not call:
                assert pod.name in free, f"{pod.name} is idle and lost"


@pytest.fixture
async def bus(redis_url: str, key_prefix: str) -> AsyncIterator[Bus]:
    bus = connect(redis_url, Keys(prefix=key_prefix))
    yield bus
    await bus.close()


@pytest.mark.parametrize("seed", range(12))
async def test_no_pod_is_shared_and_none_is_lost(bus: Bus, key_prefix: str, seed: int) -> None:
    world = World(bus, RouterKeys(key_prefix), random.Random(seed))
    for number in range(PODS):
        pod = world.pods[f"agent-{number}"] = Pod(f"agent-{number}")
        await world.beat(pod)
    steps = [world.allocate] * 4 + [world.connect] * 3 + [world.hang_up, world.hang_up]
    steps += [world.platform_releases, world.restart, world.idle_beat]

    for _ in range(STEPS):
        await world.dice.choice(steps)()
        await world.check()

    for call in [f"call-{number}" for number in range(world.calls)]:
        await router.release(bus, world.keys, call, by_pod="", ended_ttl_s=600)
    for pod in world.pods.values():
        pod.call = ""
        await world.beat(pod)
    counts = await router_views.counts(bus, world.keys)
    assert counts.calls == 0
    assert [(pool.tier, pool.available, pool.assigned) for pool in counts.pools] == [("standard", PODS, PODS)]
