"""Leadership in Postgres: a lease with a term.

Two clocks are involved and neither is trusted for more than it knows. Postgres decides who holds the lease. The holder
trusts itself only up to `trust_s` after the moment in which it *asked* for it, on its own monotonic clock; trust is
shorter than the lease, so it ends here before anybody else can begin there.

A process that was stopped and continued may still believe for one statement. That is why writes that must not come
from two leaders name their term: `guard` holds the leader's row until the commit and refuses an older term.

Failure by failure: Postgres away: trust runs out, duties pause, nobody leads. Holder killed: the lease runs out within
`ttl_s`. Clean stop: it resigns, and the next one begins at its next try. Clocks of machines are never compared.
"""

from dataclasses import dataclass
from uuid import uuid4

from trunkline.clock import Clock
from trunkline.loops.base import Loop
from trunkline.store import leaders
from trunkline.store.database import Connection, Database
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    ttl_s: float = 15.0
    trust_s: float = 10.0
    retry_s: float = 2.0


class Leadership(Loop):
    """Seeks and keeps the lease of one name, for the loops that only one process may run."""

    name = "leadership"

    def __init__(self, database: Database, clock: Clock, role: str, identity: str, times: LeaseTimes):
        super().__init__(times.retry_s)
        self._database = database
        self._clock = clock
        self._role = role
        # A restarted process is another holder, also under the same pod name.
        self._holder = f"{identity}/{uuid4().hex[:8]}"
        self._times = times
        self._term: int | None = None
        self._trusted_until_s = float("-inf")

    async def run_once(self) -> int:
        asked_at_s = self._clock.monotonic_s()
        async with self._database.connection() as conn:
            term = await leaders.acquire(conn, self._role, self._holder, self._times.ttl_s)
        if term is not None and term != self._term:
            metrics.LEADER_ELECTIONS.labels(self._role).inc()
        if term != self._term:
            log.info("leader.elected" if term else "leader.lost", role=self._role, term=term)
        self._term = term
        self._trusted_until_s = asked_at_s + self._times.trust_s if term else float("-inf")
        metrics.LEADER.labels(self._role).set(1 if term else 0)
        return 1 if term else 0

    @property
    def trusted(self) -> bool:
        """May this process act as leader, as far as it can know by itself?"""
        return self._term is not None and self._clock.monotonic_s() < self._trusted_until_s

    @property
    def term(self) -> int | None:
        return self._term if self.trusted else None

    async def guard(self, tx: Connection) -> bool:
        """Is our term still the one, for the rest of this transaction?"""
        return self._term is not None and await leaders.guard(tx, self._role, self._holder, self._term)

    async def resign(self) -> None:
        if self._term is None:
            return
        term, self._term = self._term, None
        metrics.LEADER.labels(self._role).set(0)
        async with self._database.connection() as conn:
            await leaders.resign(conn, self._role, self._holder, term)


class LeaderLoop(Loop):
    """A loop that does its duty only while this process leads."""

    def __init__(self, leadership: Leadership, interval_s: float):
        super().__init__(interval_s)
        self.leadership = leadership

    async def run_once(self) -> int:
        return await self.lead_once() if self.leadership.trusted else 0

    async def lead_once(self) -> int:
        raise NotImplementedError
