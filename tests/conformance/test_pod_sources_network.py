"""The way to the cluster's API server breaks while the pool manager runs on top of it: calls keep their pods, pods that
are there stay, and what changed meanwhile is caught up with. Bookmarks say from where a watch is taken up again."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.bus.router_keys import RouterKeys
from tests.support.faults.proxy import TcpProxy
from tests.support.fork_server import ForkServer
from tests.support.router import kube
from tests.support.router.kube import Cluster
from tests.support.router.managed import Told
from tests.support.router.process import open_routers
from tests.support.router.world import StoredWorld
from tests.support.waiting import eventually
from tests.support.world import ALL_STANDARD
from trunkline.bus.connection import Bus
from trunkline.clock import SystemClock
from trunkline.crashpoint import EXIT_STATUS
from trunkline.router.config import RouterConfig
from trunkline.router.kubernetes.api import ApiResponse, ClusterApi, ClusterUnavailable
from trunkline.router.kubernetes.reflector import Reflector
from trunkline.router.pool_manager import PoolManager
from trunkline.router.sources import HeartbeatSource, KubernetesSource
from trunkline.settings.tiers import parse_tiers
from trunkline.store.database import Database

pytestmark = pytest.mark.skipif(not kube.is_there(), reason="no kube-apiserver here: `make kube` builds one")


class Observed(ClusterApi):
    """Remembers from where watches began, which bookmarks came, and how many requests failed."""

    def __init__(self, cluster: Cluster, port: int):
        super().__init__(cluster.server.at(port), timeout_s=0.7)
        self.places: list[str] = []
        self.bookmarks: list[str] = []
        self.failures = 0

    async def request(self, *args: Any, **more: Any) -> ApiResponse:
        try:
            return await super().request(*args, **more)
        except ClusterUnavailable:
            self.failures += 1
            raise

    async def watch(
        self, path: str, query: Mapping[str, str], *, lasts_s: float
    ) -> AsyncIterator[dict[str, Any]]:
        self.places.append(query["resourceVersion"])
        async for event in super().watch(path, query, lasts_s=lasts_s):
            if event["type"] == "BOOKMARK":
                self.bookmarks.append(event["object"]["metadata"]["resourceVersion"])
            yield event


class NeverEnds:
    term: int | None = 1


@dataclass
class Managed:
    """A manager that runs, reconciles all the time, and reaches its cluster through a proxy."""

    cluster: Cluster
    proxy: TcpProxy
    api: Observed
    reflector: Reflector
    world: StoredWorld
    alarms: list[int]

    async def until_available(self, *pods: str) -> None:
        async def are() -> bool:
            return set(await self.world.available("standard")) == set(pods)

        await eventually(are, timeout_s=30, what=f"{pods} are free")

    async def several_fail(self) -> None:
        """Until the manager has asked in vain more than once, and the watch has run into its deadline."""
        before, watches = self.api.failures, len(self.api.places)
        await eventually(lambda: self.api.failures >= before + 2, timeout_s=30, what="lists fail")
        await eventually(lambda: len(self.api.places) > watches, timeout_s=30, what="the watch began anew")


@pytest.fixture
async def managed(cluster: Cluster, bus: Bus, database: Database, key_prefix: str) -> AsyncIterator[Managed]:
    config = RouterConfig(
        tiers=parse_tiers(ALL_STANDARD),
        settle_s=0,
        reconcile_interval_s=0.2,
        cleanup_interval_s=0.2,
        by_heartbeat=False,
    )
    world, told = StoredWorld(bus, RouterKeys(key_prefix), database, config), Told()

    async def nobody_knows(_call: str) -> bool | None:
        return None

    async with TcpProxy("127.0.0.1", cluster.server.port) as proxy:
        api = Observed(cluster, proxy.port)
        reflector = Reflector(api, cluster.namespace, "app=voice-agent", watch_s=1)
        source = KubernetesSource(reflector, HeartbeatSource(world.router_bus, config))
        manager = PoolManager(
            world.router_bus, config, source, NeverEnds(), SystemClock(), database,
            is_over=nobody_knows, alarm=told.alarm, interval_s=0.05,
        )  # fmt: skip
        loops = [asyncio.create_task(loop.run()) for loop in (reflector, manager)]
        yield Managed(cluster, proxy, api, reflector, world, told.vanished_counts)
        for loop in loops:
            loop.cancel()
        await asyncio.wait(loops)
        await api.close()


async def reset(managed: Managed) -> None:
    """Every connection, again and again, as it is made."""
    managed.proxy.refuse()
    managed.proxy.cut()


async def half_open(managed: Managed) -> None:
    """Requests arrive; nothing comes back, and nobody says that the connection is dead."""
    managed.proxy.black_hole(to_server=False)


async def black_hole(managed: Managed) -> None:
    managed.proxy.black_hole()


@pytest.mark.parametrize("fault", [reset, half_open, black_hole])
async def test_a_broken_connection_to_the_cluster_removes_no_pod_and_moves_no_call(
    managed: Managed, fault: Callable[[Managed], Awaitable[None]]
) -> None:
    pods = [f"agent-{number}" for number in range(6)]
    for pod in pods:
        await managed.cluster.create(pod)
    await managed.until_available(*pods)
    calls = {call: await managed.world.allocate(call) for call in ("call-1", "call-2")}
    idle = [pod for pod in pods if pod not in calls.values()]

    await fault(managed)
    # Meanwhile one that nobody needs goes, and one comes.
    await managed.cluster.delete(idle[0])
    await managed.cluster.create("agent-9")
    await managed.several_fail()

    assert {call: await managed.world.allocate(call) for call in calls} == calls
    assert set(await managed.world.available("standard")) == set(idle)
    assert await managed.world.allocate("call-3") in idle
    await managed.world.release("call-3")
    assert managed.alarms == []

    await managed.proxy.heal()
    await managed.until_available(*idle[1:], "agent-9")
    assert {call: await managed.world.allocate(call) for call in calls} == calls
    assert managed.alarms == []


async def test_repeated_connection_resets_lose_no_pod_and_no_call(managed: Managed) -> None:
    pods = [f"agent-{number}" for number in range(6)]
    for pod in pods:
        managed.proxy.cut()
        await managed.cluster.create(pod)
    await managed.until_available(*pods)
    call = await managed.world.allocate("call-1")
    for pod in pods:
        managed.proxy.cut()
        await managed.cluster.set_ready(pod, True)
    await managed.cluster.create("agent-9")
    managed.proxy.cut()
    await managed.until_available(*(pod for pod in [*pods, "agent-9"] if pod != call))
    assert await managed.world.allocate("call-1") == call
    assert managed.alarms == []


async def test_a_watch_resumes_from_the_last_bookmark(cluster: Cluster) -> None:
    """Other pods come and go: nothing of it is sent to us, but a bookmark tells how far we have seen. Without it the
    place of our last event grows old until the server has forgotten it, and everything has to be listed anew."""
    await cluster.create("agent-0")
    async with TcpProxy("127.0.0.1", cluster.server.port) as proxy:
        api = Observed(cluster, proxy.port)
        # The server sends a bookmark 2 s before the end of a watch.
        reflector = Reflector(api, cluster.namespace, "app=voice-agent", watch_s=4)
        watching = asyncio.create_task(reflector.run())
        await eventually(lambda: "agent-0" in reflector.pods)
        began_at = api.places[0]
        await cluster.create("stranger", app="something-else")

        await eventually(
            lambda: any(int(place) > int(began_at) for place in api.bookmarks),
            timeout_s=30,
            what="a bookmark beyond the stranger",
        )
        bookmark, watches, lists = api.bookmarks[-1], len(api.places), reflector.lists
        proxy.cut()
        await eventually(lambda: len(api.places) > watches, timeout_s=30, what="another watch")

        assert int(bookmark) > int(began_at)
        assert api.places[watches] in api.bookmarks
        await cluster.create("agent-1")
        await eventually(lambda: set(reflector.pods) == {"agent-0", "agent-1"}, timeout_s=30)
        assert reflector.lists == lists
        watching.cancel()
        await asyncio.wait([watching])
        await api.close()


async def test_a_router_that_crashes_syncing_the_clusters_pods_leaks_nothing(
    cluster: Cluster,
    fork_server: ForkServer,
    database_url: str,
    redis_url: str,
    key_prefix: str,
    tmp_path: Path,
) -> None:
    pods = ["agent-0", "agent-1", "agent-2"]
    for pod in pods:
        await cluster.create(pod)
    async with open_routers(
        fork_server,
        database_url,
        redis_url,
        key_prefix,
        tmp_path,
        **cluster.environment(),
    ) as place:
        doomed = place.start("doomed", crash_at="router.after_sync", nth=2)
        assert await doomed.ended() == EXIT_STATUS
        place.start("heir")
        await place.leaks_nothing(dict.fromkeys(pods, ()), timeout_s=40)
