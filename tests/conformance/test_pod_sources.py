"""Every source of pods keeps the same promises: the pods themselves by heartbeat, and a real cluster's API server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

import psutil
import pytest

from tests.support.bus.router_keys import RouterKeys
from tests.support.faults.proxy import TcpProxy
from tests.support.router import kube
from tests.support.router.kube import Cluster
from tests.support.router.managed import Told
from tests.support.router.world import StoredWorld
from tests.support.waiting import eventually
from tests.support.world import ADMIN_KEY, ALL_STANDARD, SECRET_KEY
from trunkline.app import Platform
from trunkline.bus import router as bus_router
from trunkline.bus.connection import Bus
from trunkline.clock import SystemClock
from trunkline.loops.leader import LeaseTimes
from trunkline.router.config import RouterConfig
from trunkline.router.kubernetes.api import ClusterApi, ClusterUnavailable
from trunkline.router.kubernetes.lease import ClusterLeadership
from trunkline.router.kubernetes.protection import COST, EVICT, Protection
from trunkline.router.kubernetes.reflector import Reflector
from trunkline.router.pool_manager import PoolManager
from trunkline.router.sources import HeartbeatSource, KubernetesSource, PodSource
from trunkline.routing import Allocation
from trunkline.settings import load_settings
from trunkline.settings.tiers import parse_tiers
from trunkline.store.database import Database

NO_CLUSTER = pytest.mark.skipif(not kube.is_there(), reason="no kube-apiserver here: `make kube` builds one")


class Leading:
    """Somebody who leads until told otherwise."""

    def __init__(self) -> None:
        self.term: int | None = 1


class Land(Protocol):
    """Where pods live and die."""

    async def add(self, pod: str, version: str = "") -> None: ...

    async def vanish(self, *pods: str) -> None: ...

    async def come_back(self, *pods: str) -> None: ...

    async def be_of_no_use(self, pod: str) -> None: ...

    async def be_of_use(self, pod: str) -> None: ...

    async def succeed(self, pod: str) -> None:
        """Another pod of the same name in its place."""
        ...


class HeartbeatLand:
    def __init__(self, world: StoredWorld, source: PodSource):
        self.world = world
        self.source = source
        self._boots = 0

    async def add(self, pod: str, version: str = "") -> None:
        await self.world.beat(pod, version=version)

    async def vanish(self, *pods: str) -> None:
        """As if they had not been heard for an hour in which we listened."""
        await self.source.poll()
        for pod in pods:
            await self.world.fall_silent(pod)

    async def come_back(self, *pods: str) -> None:
        for pod in pods:
            await self.world.beat(pod)

    async def be_of_no_use(self, pod: str) -> None:
        calls = await self.world.client.smembers(self.world.keys.pod_calls(pod))
        await self.world.beat(pod, sorted(calls), leaving=True)

    async def be_of_use(self, pod: str) -> None:
        await self.world.beat(pod)

    async def succeed(self, pod: str) -> None:
        self._boots += 1
        await self.world.beat(pod, boot=f"boot-after-{self._boots}", sequence=1)


class ClusterLand:
    """What it does has reached the manager's copy when it returns: else some pods would vanish before the others."""

    def __init__(self, cluster: Cluster, reflector: Reflector):
        self.cluster = cluster
        self.reflector = reflector

    async def add(self, pod: str, version: str = "") -> None:
        await self.cluster.create(pod, version=version or "1")

    async def vanish(self, *pods: str) -> None:
        for pod in pods:
            await self.cluster.delete(pod)
        await eventually(lambda: not self.reflector.pods.keys() & set(pods))

    async def come_back(self, *pods: str) -> None:
        for pod in pods:
            await self.cluster.create(pod)
        await eventually(lambda: self.reflector.pods.keys() >= set(pods))

    async def be_of_no_use(self, pod: str) -> None:
        await self.cluster.set_ready(pod, False)

    async def be_of_use(self, pod: str) -> None:
        await self.cluster.set_ready(pod, True)

    async def succeed(self, pod: str) -> None:
        await self.cluster.delete(pod)
        await self.cluster.create(pod)


class Stage:
    """A manager at work on one source, driven step by step."""

    def __init__(
        self, world: StoredWorld, land: Land, manager: PoolManager, leading: Leading, alarms: list[int]
    ):
        self.world = world
        self.land = land
        self.manager = manager
        self.leading = leading
        self.alarms = alarms

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        async def step() -> bool:
            await self.manager.run_once()
            return bool(await condition())

        await eventually(step)

    async def handed_out(self) -> set[str]:
        """Those that are free, and those that have fallen silent, which are tried when nobody else is free."""
        silent = await self.world.client.smembers(self.world.keys.silent("standard"))
        return {*await self.world.available("standard"), *silent}

    async def until_available(self, *pods: str) -> None:
        async def are() -> bool:
            return set(await self.world.available("standard")) == set(pods)

        await self.until(are)

    async def add(self, *pods: str) -> None:
        for pod in pods:
            await self.land.add(pod)
        await self.until_available(*pods)


@pytest.fixture(params=["heartbeat", pytest.param("kubernetes", marks=NO_CLUSTER)])
async def stage(
    request: pytest.FixtureRequest, bus: Bus, database: Database, key_prefix: str
) -> AsyncIterator[Stage]:
    is_cluster = request.param == "kubernetes"
    config = RouterConfig(
        tiers=parse_tiers(ALL_STANDARD), settle_s=0, expire_interval_s=0.01, by_heartbeat=not is_cluster
    )
    keys = RouterKeys(key_prefix)
    world = StoredWorld(bus, keys, database, config)
    heartbeats = HeartbeatSource(world.router_bus, RouterConfig())
    source: PodSource = heartbeats
    land: Land = HeartbeatLand(world, heartbeats)
    watching: asyncio.Task[None] | None = None
    api: ClusterApi | None = None
    opened: list[Cluster] = []
    if is_cluster:
        cluster = Cluster(request.getfixturevalue("kube_server"), key_prefix)
        await cluster.open()
        api = ClusterApi(cluster.server.address)
        reflector = Reflector(api, cluster.namespace, "app=voice-agent", watch_s=5)
        source, land = KubernetesSource(reflector, heartbeats), ClusterLand(cluster, reflector)
        opened.append(cluster)
        watching = asyncio.create_task(reflector.run())
    told = Told()
    leading = Leading()
    manager = PoolManager(
        world.router_bus, config, source, leading, SystemClock(), database, is_over=_nobody_knows,
        alarm=told.alarm,
    )  # fmt: skip
    await manager.run_once()
    yield Stage(world, land, manager, leading, told.vanished_counts)
    if watching is not None and api is not None:
        watching.cancel()
        await asyncio.wait([watching])
        await api.close()
    for cluster in opened:
        await cluster.close()


async def _nobody_knows(_call: str) -> bool | None:
    return None


async def test_a_new_pod_is_allocated(stage: Stage) -> None:
    await stage.add("agent-0")
    assert await stage.world.allocate("call-1") == "agent-0"


async def test_a_vanished_pod_leaves_no_keys_and_its_call_gets_another_pod(stage: Stage) -> None:
    await stage.add("agent-0")
    assert await stage.world.allocate("call-1") == "agent-0"
    await stage.land.vanish("agent-0")

    async def is_gone() -> bool:
        return await stage.world.tier_of("agent-0") is None

    await stage.until(is_gone)
    world = stage.world
    assert await world.client.exists(world.keys.pod("agent-0"), world.keys.lease("agent-0")) == 0
    assert await world.client.exists(world.keys.call("call-1"), world.keys.pod_calls("agent-0")) == 0
    assert await world.client.smembers(world.keys.assigned("standard")) == set()
    await stage.land.add("agent-1")
    await stage.until_available("agent-1")
    assert await world.allocate("call-1") == "agent-1"


async def test_an_unusable_pod_gets_no_new_call_and_keeps_its_live_one(stage: Stage) -> None:
    await stage.add("agent-0", "agent-1")
    busy = await stage.world.allocate("call-1")
    idle = "agent-1" if busy == "agent-0" else "agent-0"

    await stage.land.be_of_no_use(busy)
    await stage.land.be_of_no_use(idle)
    await stage.until_available()

    assert await stage.world.allocate("call-2") == "none"
    assert await stage.world.allocate("call-1") == busy
    await stage.land.be_of_use(idle)
    await stage.until_available(idle)


async def test_a_successor_of_the_same_name_inherits_neither_calls_nor_a_drain(stage: Stage) -> None:
    await stage.add("agent-0")
    await stage.world.allocate("call-1")

    await stage.land.succeed("agent-0")

    await stage.until_available("agent-0")
    assert await stage.world.client.exists(stage.world.keys.call("call-1")) == 0
    assert await stage.world.allocate("call-2") == "agent-0"


async def test_a_mass_vanishing_of_pods_removes_none_and_raises_an_alarm(stage: Stage) -> None:
    pods = [f"agent-{number}" for number in range(6)]
    await stage.add(*pods)
    busy = await stage.world.allocate("call-1")
    idle = set(pods) - {busy}

    await stage.land.vanish(*pods[:4])

    async def is_told() -> bool:
        return bool(stage.alarms)

    await stage.until(is_told)
    for _ in range(3):
        await stage.manager.run_once()
    assert await stage.handed_out() == idle
    assert await stage.world.allocate("call-1") == busy
    assert await stage.world.allocate("call-2") in idle


async def test_pods_that_return_after_a_mass_vanishing_are_available_again(stage: Stage) -> None:
    pods = [f"agent-{number}" for number in range(6)]
    await stage.add(*pods)
    await stage.land.vanish(*pods[:4])

    async def is_told() -> bool:
        return bool(stage.alarms)

    await stage.until(is_told)
    await stage.land.come_back(*pods[:4])
    await stage.until_available(*pods)
    told = len(stage.alarms)
    await stage.manager.run_once()
    assert len(stage.alarms) == told


async def test_a_single_dead_pod_is_removed_without_an_alarm(stage: Stage) -> None:
    await stage.add("agent-0", "agent-1")
    await stage.land.vanish("agent-0")
    await stage.until_available("agent-1")
    assert stage.alarms == []


async def test_a_manager_that_does_not_lead_removes_no_pod(stage: Stage) -> None:
    await stage.add("agent-0", "agent-1")
    stage.leading.term = None
    await stage.land.vanish("agent-0")
    for _ in range(3):
        await stage.manager.run_once()
    assert set(await stage.world.available("standard")) == {"agent-0", "agent-1"}


async def test_a_manager_with_an_older_term_removes_no_pod_and_loses_the_lead(stage: Stage) -> None:
    await stage.add("agent-0", "agent-1")
    await stage.world.begin(ALL_STANDARD, term=2)
    await stage.land.vanish("agent-0")
    for _ in range(3):
        await stage.manager.run_once()
    assert set(await stage.world.available("standard")) == {"agent-0", "agent-1"}
    assert not stage.manager.is_leader


class Watch:
    """A reflector behind a proxy that breaks."""

    def __init__(self, cluster: Cluster, proxy: TcpProxy):
        self.cluster = cluster
        self.proxy = proxy
        self.api = ClusterApi(cluster.server.at(proxy.port), timeout_s=1)
        self.reflector = Reflector(self.api, cluster.namespace, "app=voice-agent", watch_s=2)
        self._task = asyncio.create_task(self.reflector.run())

    async def until(self, *pods: str) -> None:
        async def seen() -> bool:
            return set(self.reflector.pods) == set(pods)

        await eventually(seen, timeout_s=30)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        await self.api.close()


@pytest.fixture
async def watch(cluster: Cluster) -> AsyncIterator[Watch]:
    async with TcpProxy("127.0.0.1", cluster.server.port) as proxy:
        watch = Watch(cluster, proxy)
        yield watch
        await watch.close()


@NO_CLUSTER
async def test_a_watch_whose_connection_was_reset_resumes_without_a_new_list(watch: Watch) -> None:
    await watch.cluster.create("agent-0")
    await watch.until("agent-0")
    lists = watch.reflector.lists

    watch.proxy.cut()
    await watch.cluster.create("agent-1")

    await watch.until("agent-0", "agent-1")
    assert watch.reflector.lists == lists


@NO_CLUSTER
async def test_a_half_open_watch_catches_up_after_it_is_cut(watch: Watch) -> None:
    await watch.cluster.create("agent-0")
    await watch.until("agent-0")

    watch.proxy.black_hole(to_server=False)
    await watch.cluster.delete("agent-0")
    await watch.cluster.create("agent-1")
    await watch.proxy.heal()
    watch.proxy.cut()

    await watch.until("agent-1")


@NO_CLUSTER
async def test_a_watch_that_is_cancelled_leaves_no_connection_to_a_silent_server(watch: Watch) -> None:
    def connections() -> list[object]:
        every = psutil.Process().net_connections("tcp")
        return [one for one in every if one.raddr[1:] == (watch.proxy.port,)]

    await watch.cluster.create("agent-0")
    await watch.until("agent-0")
    before = len(connections())
    assert before

    watch.proxy.black_hole()
    await watch.close()

    # An idle connection beside it may still say goodbye.
    await eventually(lambda: len(connections()) < before, what="the connection of the watch is closed")


@NO_CLUSTER
async def test_a_list_into_a_black_hole_fails_and_forgets_no_pod(watch: Watch) -> None:
    await watch.cluster.create("agent-0")
    await watch.until("agent-0")

    watch.proxy.black_hole()
    with pytest.raises(ClusterUnavailable):
        await watch.reflector.list_all()
    assert set(watch.reflector.pods) == {"agent-0"}
    await watch.proxy.heal()
    await watch.cluster.create("agent-1")

    await watch.until("agent-0", "agent-1")


@NO_CLUSTER
async def test_a_resource_version_that_a_restarted_server_forgot_is_listed_anew_once(
    watch: Watch,
) -> None:
    await watch.cluster.create("agent-0")
    await watch.until("agent-0")
    lists = watch.reflector.lists

    await watch.cluster.server.stop_server()
    # Older than anything that a server just started can tell: it answers 410.
    watch.reflector.watch_from("1")
    await watch.cluster.server.start_server()
    await watch.cluster.create("agent-1")

    await watch.until("agent-0", "agent-1")
    assert watch.reflector.lists == lists + 1


# Nobody stops trusting their own lease here.
TIMES = LeaseTimes(ttl_s=1.0, trust_s=30.0, retry_s=0.1)


def seeker(cluster: Cluster, name: str) -> ClusterLeadership:
    return ClusterLeadership(cluster.api, SystemClock(), cluster.namespace, "leader", name, TIMES)


def term_of(seeker: ClusterLeadership) -> int:
    return seeker.term or 0


@NO_CLUSTER
async def test_one_of_two_candidates_leads_and_its_successor_has_a_greater_term(cluster: Cluster) -> None:
    first, second = seeker(cluster, "a"), seeker(cluster, "b")
    await first.run_once()
    await second.run_once()
    term = first.term
    assert term is not None
    assert second.term is None

    async def has_followed() -> bool:
        await second.run_once()
        return second.term is not None

    await eventually(has_followed)
    terms = [term, term_of(second)]
    await first.run_once()
    assert first.term is None
    assert terms == sorted(set(terms))


@NO_CLUSTER
async def test_a_resigned_leader_is_succeeded_at_once_and_a_deleted_lease_never_lowers_the_term(
    cluster: Cluster,
) -> None:
    first, second = seeker(cluster, "a"), seeker(cluster, "b")
    await first.run_once()
    before = first.term or 0
    await first.resign()
    await second.run_once()
    between = second.term or 0
    path = f"/apis/coordination.k8s.io/v1/namespaces/{cluster.namespace}/leases/leader"
    await cluster.api.request("DELETE", path)
    await first.run_once()
    assert before < between < (first.term or 0)


@NO_CLUSTER
async def test_a_pod_with_a_live_call_is_annotated_against_eviction_and_scale_down(
    cluster: Cluster, bus: Bus, database: Database, key_prefix: str
) -> None:
    world = StoredWorld(bus, RouterKeys(key_prefix), database, RouterConfig())
    await world.begin(ALL_STANDARD)
    await cluster.create("agent-0")
    await world.beat("agent-0")
    await world.allocate("call-1")
    reflector = Reflector(cluster.api, cluster.namespace, "app=voice-agent")
    await reflector.list_all()
    protection = Protection(cluster.api, reflector, world.router_bus, Leading(), cluster.namespace)

    assert await protection.run_once() == 1
    assert await cluster.annotations("agent-0") == {COST: "1000", EVICT: "false"}
    await reflector.list_all()
    assert await protection.run_once() == 0

    await world.release("call-1")
    assert await protection.run_once() == 1
    assert await cluster.annotations("agent-0") == {COST: "0", EVICT: "true"}


@NO_CLUSTER
async def test_the_platform_reads_pods_from_the_cluster_and_leads_by_its_lease(
    cluster: Cluster, database_url: str, redis_url: str, key_prefix: str
) -> None:
    settings = load_settings(
        {},
        DATABASE_URL=database_url,
        REDIS_URL=redis_url,
        ROUTER_KEY_PREFIX=key_prefix,
        TIER_CONFIG=ALL_STANDARD,
        TRUNKLINE_SECRET_KEY=SECRET_KEY,
        TRUNKLINE_ADMIN_KEY=ADMIN_KEY,
        TRUNKLINE_ROLES="router",
        HTTP_PORT=0,
        METRICS_PORT=0,
        **cluster.environment(),
    )
    await cluster.create("agent-0")
    async with Platform.open(settings) as platform:

        async def has_pod() -> bool:
            counts = await bus_router.counts(platform.router.bus)
            return [(pool.tier, pool.room) for pool in counts.pools] == [("standard", 1)]

        await eventually(has_pod, timeout_s=30)
        assert platform.router.manager.is_leader
        answer = await platform.router.allocator.allocate("call-1")
        assert isinstance(answer, Allocation)
        assert answer.pod == "agent-0"

        async def is_protected() -> bool:
            return (await cluster.annotations("agent-0")).get(EVICT) == "false"

        await eventually(is_protected, timeout_s=30)
    path = f"/apis/coordination.k8s.io/v1/namespaces/{cluster.namespace}/leases/smart-router-leader"
    lease = await cluster.api.request("GET", path)
    assert not lease.body["spec"].get("holderIdentity"), "a clean stop lets the next one begin"
