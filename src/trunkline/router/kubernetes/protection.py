"""Annotates pods that have calls, so that neither a scale-down nor an autoscaler takes them first.

`pod-deletion-cost` makes a ReplicaSet remove idle pods before busy ones, `safe-to-evict` keeps the cluster's autoscaler
from moving them. Only the leader writes, and only annotations that differ.
"""

from trunkline.bus import router as bus_router
from trunkline.bus.router import RouterBus
from trunkline.loops.leader import Elected, LeaderLoop
from trunkline.router.kubernetes.api import ClusterApi, ClusterUnavailable
from trunkline.router.kubernetes.reflector import Reflector
from trunkline.telemetry import get_logger

log = get_logger(__name__)

COST = "controller.kubernetes.io/pod-deletion-cost"
EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
BUSY_COST = "1000"
MERGE_PATCH = "application/merge-patch+json"
PAGE = 500


def wanted(is_busy: bool) -> dict[str, str]:
    return {COST: BUSY_COST if is_busy else "0", EVICT: "false" if is_busy else "true"}


class Protection(LeaderLoop):
    name = "pod_protection"

    def __init__(
        self,
        api: ClusterApi,
        reflector: Reflector,
        bus: RouterBus,
        leadership: Elected,
        namespace: str,
        interval_s: float = 5.0,
    ):
        super().__init__(leadership, interval_s)
        self._api = api
        self._reflector = reflector
        self._bus = bus
        self._path = f"/api/v1/namespaces/{namespace}/pods"

    async def run_as_leader(self, term: int) -> int:
        count = 0
        for name, is_busy in (await self._busy()).items():
            seen = self._reflector.pods.get(name)
            if seen is None:
                continue
            marks = wanted(is_busy)
            if any(seen.annotations.get(key) != value for key, value in marks.items()):
                count += await self._mark(name, seen.pod.uid, marks)
        return count

    async def _busy(self) -> dict[str, bool]:
        busy: dict[str, bool] = {}
        while True:
            page = await bus_router.pods(self._bus, len(busy), PAGE)
            busy |= {
                view.pod_name: bool(view.calls) or view.status in ("kept", "allocated", "ending")
                for view in page
            }
            if len(page) < PAGE:
                return busy

    async def _mark(self, name: str, uid: str, marks: dict[str, str]) -> int:
        """The request carries the uid, so that it never marks a successor of the same name."""
        body = {"metadata": {"uid": uid, "annotations": marks}}
        answer = await self._api.request("PATCH", f"{self._path}/{name}", body=body, content_type=MERGE_PATCH)
        if answer.status in (404, 409, 422):
            return 0
        if answer.status != 200:
            raise ClusterUnavailable(f"pod {name} cannot be marked: {answer.status}")
        return 1
