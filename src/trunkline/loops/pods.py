"""Forgets pods that fell silent."""

from trunkline.loops.base import Loop
from trunkline.router.pods import Pods
from trunkline.telemetry import get_logger

log = get_logger(__name__)


class PodExpiry(Loop):
    name = "pod_expiry"

    def __init__(self, pods: Pods, interval_s: float):
        super().__init__(interval_s)
        self._pods = pods

    async def run_once(self) -> int:
        gone = await self._pods.expire()
        for pod in gone:
            log.warning("pod.silent", pod=pod)
        return len(gone)
