"""The router's scripts against a plain model: whatever happens in whatever order to honest pods, they agree.

Exclusive and shared pools, tiers that change their size and their type, drains, releases that are lost or come twice,
pods that restart, and a memory that is lost and rebuilt from what Postgres has, and the pods.
"""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.support.bus.router_keys import RouterKeys
from tests.support.router.model import PodModel, RouterModel, is_balanced, places_of
from tests.support.router.world import ENDED_TTL_S, LEASE_TTL_S, SAMPLE, RouterWorld
from trunkline.bus import router, router_manager
from trunkline.bus.connection import Bus, connect
from trunkline.bus.keys import Keys
from trunkline.bus.router import BeatRule
from trunkline.bus.router_manager import ProjectedPod, Term
from trunkline.model import Slot
from trunkline.router.config import RouterConfig
from trunkline.router.pool_rules import changes
from trunkline.routing import Allocation, Pod, Unallocated
from trunkline.settings.tiers import assignment_order, parse_tiers

PODS = [f"agent-{number}" for number in range(5)]
RECENT = 6
CONFIGS = [
    '{"standard": {"target": 1}}',
    SAMPLE,
    '{"gold": {"target": 2}, "standard": {"target": 1}, "overflow": {"target": 1}}',
    '{"basic": {"type": "shared", "target": 3, "max_concurrent": 2}, "standard": {"target": 1}}',
    '{"basic": {"type": "exclusive", "target": 2}, "gold": {"type": "shared", "target": 1, "max_concurrent": 3}}',
]
pods = st.sampled_from(PODS)


class Routing(RuleBasedStateMachine):
    """One Valkey, one model, and everything that can happen to both."""

    # One connection for all examples, and other keys for each.
    loop: asyncio.AbstractEventLoop
    bus: Bus

    def __init__(self) -> None:
        super().__init__()
        self.world = RouterWorld(self.bus, RouterKeys(f"model-{uuid4().hex[:12]}"))
        self.model = RouterModel()
        self.config = CONFIGS[0]
        self.calls = 0
        # What Postgres has of tiers.
        self.noted: dict[str, str] = {}

    def do(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    # What happens

    @initialize(config=st.sampled_from(CONFIGS))
    def begin(self, config: str) -> None:
        self.config = config
        self.do(self.world.begin(config))
        self.do(self.world.configure("acme", tier="gold"))
        self.look()
        for pod in PODS:
            self.model.pods[pod] = PodModel()
            self.beat(pod)

    @rule(back=st.integers(0, RECENT), merchant=st.sampled_from(["", "acme"]))
    def allocate(self, back: int, merchant: str) -> None:
        call = self.some_call(back)
        wanted = self.model.candidates("gold" if merchant else "standard")
        answer = self.do(self.world.ask(call, merchant))
        match answer:
            case Unallocated(why="ended"):
                assert call in self.model.tombstones
            case Unallocated(why="busy"):
                assert call not in self.model.held | dict.fromkeys(self.model.tombstones)
                assert not wanted, "refused though a pod was free"
            case Allocation(is_existing=True, pod=pod):
                assert self.model.held[call] == pod
            case Allocation(pod=pod):
                assert call not in self.model.held.keys() | self.model.tombstones
                assert pod in wanted
                self.model.held[call] = self.model.connecting[call] = pod

    @rule(data=st.data())
    def connect(self, data: st.DataObject) -> None:
        if not self.model.connecting:
            return
        call = data.draw(st.sampled_from(sorted(self.model.connecting)))
        pod = self.model.connecting.pop(call)
        self.model.pods[pod].calls.add(call)
        self.beat(pod)

    @rule(data=st.data(), releases=st.booleans(), beats=st.booleans())
    def hang_up(self, data: st.DataObject, releases: bool, beats: bool) -> None:
        """The pod lets go: it says so, or only its next heartbeat does."""
        live = sorted((call, pod) for pod, model in self.model.pods.items() for call in model.calls)
        if not live:
            return
        call, pod = data.draw(st.sampled_from(live))
        self.model.pods[pod].calls.remove(call)
        if releases:
            self.do(self.world.release(call, by_pod=pod))
            self.model.end(call)
            self.model.tombstones.add(call)
            self.model.pods[pod].named.discard(call)
            self.look()
        if beats or not releases:
            self.beat(pod)

    @rule(back=st.integers(0, RECENT))
    def platform_releases(self, back: int) -> None:
        call = self.some_call(back)
        released = self.do(self.world.release(call))
        assert (released is not None) == (call in self.model.held)
        self.model.end(call)
        self.model.tombstones.add(call)
        self.model.connecting.pop(call, None)
        self.look()

    @rule(pod=pods)
    def idle_beat(self, pod: str) -> None:
        self.beat(pod)

    @rule(pod=pods)
    def late_beat(self, pod: str) -> None:
        """One that was overtaken says nothing."""
        if self.model.pods[pod].is_heard:
            self.do(self.world.beat(pod, ["never"], boot=f"boot-{self.model.pods[pod].boot}", sequence=1))

    @rule(pod=pods)
    def restart(self, pod: str) -> None:
        model = self.model.pods[pod]
        model.boot, model.sequence = model.boot + 1, 0
        self.model.lose(pod)
        model.named = set()
        self.beat(pod)

    @rule(pod=pods)
    def drain(self, pod: str) -> None:
        assert self.do(router.drain(self.world.router_bus, pod, 360)) is not None
        self.model.pods[pod].is_draining = True

    @rule(pod=pods)
    def undrain(self, pod: str) -> None:
        self.do(router.drain(self.world.router_bus, pod, 0))
        self.model.pods[pod].is_draining = False

    @rule(config=st.sampled_from(CONFIGS))
    def change_tiers(self, config: str) -> None:
        before = {pod: (tier, self.model.load(pod)) for pod, tier in self.model.tiers.items()}
        self.config = config
        self.do(self.world.publish(config))
        self.balance()
        self.look()
        for pod, (tier, load) in before.items():
            assert not load or self.model.tiers[pod] == tier, "a pod with calls was moved"

    @rule()
    def recover(self) -> None:
        """Nothing is where it does not belong, so there is nothing to put right."""
        assert self.do(self.world.recover()) == 0

    @rule(early=st.sets(pods, max_size=2), late=st.sets(pods))
    def lose_memory(self, early: set[str], late: set[str]) -> None:
        """Some pods speak before the leader has rebuilt, some after it, some later."""
        open_calls, tiers = dict(self.model.held), dict(self.noted)
        self.do(self.world.flush())
        self.model.forget()
        # Nobody who leads is there yet: the first heartbeat publishes what its own process was told.
        self.model.places = places_of({name: t.text for name, t in parse_tiers(self.config).items()})
        self.model.tiers = {p: t if t in self.model.places else "standard" for p, t in tiers.items()}
        for pod in sorted(early):
            self.beat(pod)
        self.rebuild(open_calls, tiers)
        self.look()
        kept = {pod: tier for pod, tier in tiers.items() if tier in parse_tiers(self.config)}
        assert {pod: self.model.tiers[pod] for pod in kept} == kept, "a pod lost its tier"
        for pod in sorted(late):
            self.beat(pod)

    # How

    def some_call(self, back: int) -> str:
        """A new one, or one of the last few."""
        number = max(0, self.calls - back)
        self.calls = max(self.calls, number + 1)
        return f"call-{number}"

    def beat(self, pod: str) -> None:
        model = self.model.pods[pod]
        model.sequence += 1
        rule = BeatRule(settle_ms=0, tiers=RouterConfig(tiers=parse_tiers(self.config)).tiers_text)
        dropped = [call for call in model.named - model.calls if self.model.held.get(call) == pod]
        # 2 and more: the first heartbeat of a boot is another rule's.
        self.do(
            self.world.beat(
                pod,
                sorted(model.calls),
                boot=f"boot-{model.boot}",
                sequence=model.sequence + 1,
                rule=rule,
                tier=self.noted.get(pod, ""),
            )
        )
        # As the registry does when the heartbeat is in Postgres.
        ids = [self.world.allocation_of(call) for call in dropped]
        self.do(router.free(self.world.router_bus, ids, tombstone_s=ENDED_TTL_S))
        self.look()
        self.model.heard(pod)

    def balance(self) -> None:
        """Idle pods that have to move do so, as when Postgres has them in another tier."""
        known = [_pod(pod, tier) for pod, tier in sorted(self.model.tiers.items())]
        busy = frozenset(pod for pod in self.model.pods if self.model.load(pod))
        tiers = parse_tiers(self.config)
        for pod, target in changes(known, busy, tiers).changing.items():
            if pod not in busy and target.tier != self.model.tiers[pod]:
                self.do(self.world.move(pod, target.tier))

    def rebuild(self, open_calls: dict[str, str], tiers: dict[str, str]) -> None:
        """As the manager does it, from what Postgres has."""
        world, number = self.world, self.world.term.number + 1
        lead = self.do(router_manager.lead(world.router_bus, number))
        assert lead.must_rebuild
        world.term = Term(world.router_bus, lead.epoch, number)
        self.do(world.publish(self.config))
        buried = self.model.ended - open_calls.keys()
        self.do(world.term.bury(dict.fromkeys(sorted(buried), ENDED_TTL_S)))
        self.model.tombstones |= buried
        for pod in PODS:
            incarnation = world._numbers.of(pod, f"boot-{self.model.pods[pod].boot}").incarnation
            its = [call for call, holder in sorted(open_calls.items()) if holder == pod]
            rows = [
                Allocation(
                    world.allocation_of(call), call, Slot(pod, no, incarnation, "pool:standard"), at_s=1
                )
                for no, call in enumerate(its, 1)
            ]
            model = self.model.pods[pod]
            boot, sequence = f"boot-{model.boot}", model.sequence + 1
            true = Pod(pod, incarnation, tiers[pod], boot_id=boot, sequence=sequence)
            self.do(world.term.put([ProjectedPod(true, rows)], lease_ttl_s=LEASE_TTL_S))
            self.model.pods[pod].is_heard = True
        self.model.held = {c: pod for c, pod in open_calls.items() if c not in self.model.tombstones}
        self.model.is_rebuilt = True
        self.do(world.term.rebuilt())
        self.do(world.term.merchants({"acme": '{"tier": "gold"}'}, "0"))

    def look(self) -> None:
        """Where pods move to is the router's affair; that each is in one tier is checked."""
        client, keys = self.world.client, self.world.keys
        self.model.places = places_of(self.do(client.hgetall(keys.tiers)))
        found = {tier: self.do(client.smembers(keys.assigned(tier))) for tier in self.model.places}
        self.model.tiers = {pod: tier for tier, its in found.items() for pod in its}
        assert sum(map(len, found.values())) == len(self.model.tiers), "a pod in two tiers"
        self.noted |= self.model.tiers

    # What always holds

    @invariant()
    def the_calls_are_where_the_model_says(self) -> None:
        calls = self.do(router.calls(self.world.router_bus, 0, 1000))
        assert {view.call_sid: view.pod_name for view in calls} == self.model.held

    @invariant()
    def who_is_free_is_free(self) -> None:
        for tier, place in self.model.places.items():
            its = [pod for pod, its_tier in self.model.tiers.items() if its_tier == tier]
            may = {pod: self.model.load(pod) for pod in its if self.model.may_serve(pod)}
            free = {pod: load for pod, load in may.items() if place.is_shared or not load}
            assert self.do(self.world.available(tier)) == free

    @invariant()
    def a_pod_has_a_lease_while_it_has_calls(self) -> None:
        for pod in self.model.pods:
            lease = self.do(self.world.client.get(self.world.keys.lease(pod)))
            assert (self.model.held.get(lease) == pod) if lease else pod not in self.model.held.values()

    def teardown(self) -> None:
        """When every call is over, every pod is free, in the tiers that were asked for."""
        if not self.model.pods:
            return
        for call in [*self.model.held]:
            self.do(self.world.release(call))
        for pod in PODS:
            self.model.pods[pod].calls.clear()
            self.beat(pod)
            self.do(router.drain(self.world.router_bus, pod, 0))
        self.do(self.world.publish(self.config))
        self.look()
        self.balance()
        counts = self.do(router.counts(self.world.router_bus))
        assert counts.calls == 0
        assert sum(pool.available for pool in counts.pools) == len(PODS)
        tiers = parse_tiers(self.config)
        sizes = {pool.tier: pool.assigned for pool in counts.pools}
        assert is_balanced(tiers, sizes, assignment_order(tiers))


def _pod(name: str, tier: str) -> Pod:
    most = 1000
    return Pod(
        name, 1, tier, most, "", "", 0, "", "b", (), "", 1, (), (), (), 5.0, True, False, False, 0.0, 0.0
    )


@pytest.mark.timeout(300)
def test_the_router_agrees_with_a_plain_model(redis_url: str) -> None:
    Routing.loop = asyncio.new_event_loop()
    Routing.bus = connect(redis_url, Keys())
    try:
        run_state_machine_as_test(
            Routing,
            settings=settings(
                max_examples=40,
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                print_blob=True,
            ),
        )
    finally:
        Routing.loop.run_until_complete(Routing.bus.close())
        Routing.loop.close()
