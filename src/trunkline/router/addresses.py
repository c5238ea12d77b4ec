"""Where pods are reached, known in this process: for answers and for proxies while nobody can ask an engine.

Answer URLs name the kept agent by its incarnation's number, proxies ask by the pod's name. Each second only those are
read that got a number or an address since the last look, in whatever order they were committed. A process that changes
the interval of its heartbeats and nothing else is read with all others, within a minute.
"""

from trunkline.loops.base import PROMPT_BACKOFF_MAX_S, Loop
from trunkline.store import allocations
from trunkline.store.allocations import Address
from trunkline.store.database import Database

INTERVAL_S = 1.0
# So often all are read: a replica that took over, or a restored database, may count transactions from an earlier one.
LOOKS_PER_FULL_READ = 60
# What so many others were read after is of a process that is long gone: 100 bytes each.
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
        self._seen = ""
        self._looks = 0

    async def run_once(self) -> int:
        """Returns how many addresses were news."""
        is_full = self._looks % LOOKS_PER_FULL_READ == 0
        async with self._database.connection() as conn:
            read = await allocations.addresses(conn, "" if is_full else self._seen)
        self._seen = read.seen
        self._looks += 1
        return sum([self.learn(address) for address in read.found])

    def learn(self, address: Address) -> bool:
        """False: it was known."""
        # Read again, it is the youngest: who lives is not forgotten before who is gone.
        before = self._known.pop(address.incarnation, None)
        self._known[address.incarnation] = address
        self._by_pod[address.pod] = address
        while len(self._known) > KEPT_MAX:
            oldest = self._known.pop(next(iter(self._known)))
            if self._by_pod.get(oldest.pod) is oldest:
                del self._by_pod[oldest.pod]
        return before != address

    def of_pod(self, pod: str) -> Address | None:
        """Where the newest process of this name is."""
        return self._by_pod.get(pod)

    def find(self, incarnation: int) -> Address | None:
        return self._known.get(incarnation)
