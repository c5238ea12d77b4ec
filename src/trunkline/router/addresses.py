"""Caches pods' addresses in this process, for answers and proxies while neither Postgres nor Valkey answers.

Answer URLs name the reserved pod by its incarnation, proxies by its name. Each second the loop reads only the pods that
got an incarnation or an address since the last read, in whatever order they were committed. A process that changes the
interval of its heartbeats and nothing else is read with all others, within a minute.
"""

from trunkline.loops.base import PROMPT_BACKOFF_MAX_S, Loop
from trunkline.store import allocations
from trunkline.store.allocations import Address
from trunkline.store.database import Database

INTERVAL_S = 1.0
# Every how many reads all pods are read: a promoted replica or a restored database may count transactions anew.
READS_PER_FULL_READ = 60
# The cache evicts the addresses that it read longest ago; those are of processes long gone. 100 bytes each.
CACHED_MAX = 50_000


class PodAddresses(Loop):
    name = "pod_addresses"
    backoff_max_s = PROMPT_BACKOFF_MAX_S

    def __init__(self, database: Database, interval_s: float = INTERVAL_S):
        super().__init__(interval_s)
        self._database = database
        self.by_incarnation: dict[int, Address] = {}
        # The newest of each name.
        self.by_pod: dict[str, Address] = {}
        self._seen = ""
        self._reads = 0

    async def run_once(self) -> int:
        """Returns how many addresses were new or changed."""
        is_full = self._reads % READS_PER_FULL_READ == 0
        async with self._database.connection() as conn:
            read = await allocations.addresses(conn, "" if is_full else self._seen)
        self._seen = read.seen
        self._reads += 1
        return sum([self.learn(address) for address in read.found])

    def learn(self, address: Address) -> bool:
        """False: the cache had it."""
        # Moved to the end, so that eviction takes pods that are gone before those that are alive.
        before = self.by_incarnation.pop(address.incarnation, None)
        self.by_incarnation[address.incarnation] = address
        self.by_pod[address.pod] = address
        while len(self.by_incarnation) > CACHED_MAX:
            oldest = self.by_incarnation.pop(next(iter(self.by_incarnation)))
            if self.by_pod.get(oldest.pod) is oldest:
                del self.by_pod[oldest.pod]
        return before != address
