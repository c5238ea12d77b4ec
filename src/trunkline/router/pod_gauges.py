"""Shows pools, free capacity and the wait queue as metrics, for people and for an autoscaler."""

from trunkline.loops.base import Loop
from trunkline.router.pods import Pods
from trunkline.telemetry import metrics

INTERVAL_S = 5.0


class PodGauges(Loop):
    name = "pod_gauges"

    def __init__(self, pods: Pods, interval_s: float = INTERVAL_S):
        super().__init__(interval_s)
        self._pods = pods

    async def run_once(self) -> int:
        counts = await self._pods.counts()
        metrics.ROUTER_CALLS.set(counts.calls)
        metrics.set_exactly(metrics.ROUTER_PODS, {pool.tier: pool.assigned for pool in counts.pools})
        metrics.set_exactly(metrics.ROUTER_FREE, {pool.tier: pool.room for pool in counts.pools})
        metrics.set_exactly(metrics.ROUTER_KEPT, {pool.tier: pool.kept for pool in counts.pools})
        metrics.set_exactly(metrics.ROUTER_WAITING, {pool.tier: pool.waiting for pool in counts.pools})
        return len(counts.pools)
