"""Where pods are reached, known in this process: for answers and for proxies while nobody can ask an engine.

Answer URLs name the kept agent by its incarnation's number, proxies ask by the pod's name. Pods keep their address for
as long as a process lives, so only those that registered since the last look are read.
"""

from trunkline.loops.base import PROMPT_BACKOFF_MAX_S, Loop
from trunkline.store import allocations
from trunkline.store.allocations import Address
from trunkline.store.database import Database

INTERVAL_S = 1.0
# A number below the newest by this many is of a process that is long gone: 100 bytes each.
KEPT_MAX = 50_000


class PodAddresses(Loop):
    name = "pod_addresses"
    backoff_max_s = PROMPT_BACKOFF_MAX_S

    def __init__(self, database: Database, interval_s: float = INTERVAL_S):
        super().__init__(interval_s)
        self._database = database
        self._known: dict[int, Address] = {}
        # The newest of each name.
        self._by_pod: dict[str, Address] = {}
        self._newest = 0

    async def run_once(self) -> int:
        async with self._database.connection() as conn:
            found = await allocations.addresses(conn, self._newest)
        for address in found:
            self.learn(address)
        return len(found)

    def learn(self, address: Address) -> None:
        self._known[address.incarnation] = address
        self._by_pod[address.pod] = address
        self._newest = max(self._newest, address.incarnation)
        while len(self._known) > KEPT_MAX:
            oldest = self._known.pop(next(iter(self._known)))
            if self._by_pod.get(oldest.pod) is oldest:
                del self._by_pod[oldest.pod]

    def of_pod(self, pod: str) -> Address | None:
        """Where the newest process of this name is."""
        return self._by_pod.get(pod)

    def find(self, incarnation: int) -> Address | None:
        return self._known.get(incarnation)
