"""The manager with its source of pods and its election: on the cluster, or with Postgres alone."""

from dataclasses import dataclass

from trunkline.bus.router import Runner
from trunkline.bus.router_keys import RouterKeys
from trunkline.clock import Clock
from trunkline.control.pods import PodAlarms
from trunkline.loops.base import Loop
from trunkline.loops.leader import Leadership, LeaseTimes
from trunkline.router.assembly import cluster_address
from trunkline.router.config import RouterConfig
from trunkline.router.kubernetes.api import ClusterApi
from trunkline.router.kubernetes.lease import ClusterLeadership
from trunkline.router.kubernetes.protection import Protection
from trunkline.router.kubernetes.reflector import Reflector
from trunkline.router.kubernetes.source import KubernetesSource
from trunkline.router.manager import IsOver, PoolManager
from trunkline.router.pods import Pods
from trunkline.router.sources import HeartbeatSource, PodSource
from trunkline.settings import Settings
from trunkline.store.database import Database

# The name of the manager's lease in Postgres.
ROLE = "router"


class Alone:
    """Without an election this process leads. The term grows with every start, so an earlier process is shut out."""

    def __init__(self, clock: Clock):
        self.term: int | None = int(clock.now().timestamp() * 1000)

    async def resign(self) -> None:
        return


@dataclass(frozen=True, slots=True)
class Management:
    manager: PoolManager
    leadership: Leadership | ClusterLeadership | Alone
    loops: list[Loop]
    api: ClusterApi | None = None

    async def close(self) -> None:
        await self.leadership.resign()
        if self.api is not None:
            await self.api.close()


def manage(
    settings: Settings,
    config: RouterConfig,
    bus: Runner,
    keys: RouterKeys,
    database: Database,
    clock: Clock,
    pods: Pods,
    is_over: IsOver,
) -> Management:
    leader, router = settings.leader, settings.router
    times = LeaseTimes(leader.duration_s, leader.renew_deadline_s, leader.retry_period_s)
    heartbeats = HeartbeatSource(bus, keys, config)
    source: PodSource = heartbeats
    api: ClusterApi | None = None
    reflector: Reflector | None = None
    loops: list[Loop] = []
    leadership: Leadership | ClusterLeadership | Alone
    if router.pod_source == "kubernetes":
        api = ClusterApi(cluster_address(settings))
        reflector = Reflector(api, router.namespace, router.label_selector)
        source = KubernetesSource(reflector, heartbeats)
        where = router.lease_namespace or router.namespace
        leadership = ClusterLeadership(api, clock, where, router.lease_name, settings.identity, times)
        loops += [reflector]
    else:
        leadership = Leadership(database, clock, ROLE, settings.identity, times)
    if not leader.enabled:
        leadership = Alone(clock)
    else:
        assert isinstance(leadership, Loop)
        loops.append(leadership)
    manager = PoolManager(
        bus,
        keys,
        config,
        source,
        leadership,
        clock,
        database,
        is_over=is_over,
        alarms=PodAlarms(database),
    )
    if api is not None and reflector is not None:
        loops.append(Protection(api, reflector, pods, leadership, router.namespace))
    return Management(manager, leadership, [*loops, manager], api)
