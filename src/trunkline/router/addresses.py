"""Where the process with a number is reached: for answers while nobody can ask Postgres.

Answer URLs name the kept agent by its incarnation's number. Pods keep their address for as long as a process lives, so
only those that registered since the last look are read.
"""

from trunkline.loops.base import Loop
from trunkline.store import allocations
from trunkline.store.allocations import Address
from trunkline.store.database import Database

INTERVAL_S = 1.0
# A number below the newest by this many is of a process that is long gone: 100 bytes each.
KEPT_MAX = 50_000


class PodAddresses(Loop):
    name = "pod_addresses"

    def __init__(self, database: Database, interval_s: float = INTERVAL_S):
        super().__init__(interval_s)
        self._database = database
        self._known: dict[int, Address] = {}
        self._newest = 0

    async def run_once(self) -> int:
        async with self._database.connection() as conn:
            found = await allocations.addresses(conn, self._newest)
        for address in found:
            self.learn(address)
        return len(found)

    def learn(self, address: Address) -> None:
        self._known[address.incarnation] = address
        self._newest = max(self._newest, address.incarnation)
        while len(self._known) > KEPT_MAX:
            del self._known[next(iter(self._known))]

    def find(self, incarnation: int) -> Address | None:
        return self._known.get(incarnation)
