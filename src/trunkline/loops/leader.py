"""Leadership in Postgres: a lease with a term.

Two clocks are involved. Postgres decides which process holds the lease. The holder trusts its lease only until
`trust_s` after it *sent* the request, by its own monotonic clock; trust is shorter than the lease, so it ends before
another process can take the lease.

A process that was paused and continued may still act as leader for one statement. That is why writes that must not come
from two leaders carry their term: `guard` locks the leader's row until the commit and refuses an older term.

Failures: Postgres away: trust ends, duties pause, there is no leader. Holder killed: the lease expires within `ttl_s`.
Clean stop: it resigns, and the next leader begins at its next try. Clocks of machines are never compared.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol, final
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


class Election(Loop):
    """Acquires and renews the lease of one role, for the loops that only one process may run."""

    def __init__(self, clock: Clock, role: str, holder: str, times: LeaseTimes):
        super().__init__(times.retry_s)
        self._clock = clock
        self._role = role
        # A restarted process is another holder, also under the same pod name.
        self._holder = f"{holder}{uuid4().hex[:8]}"
        self._times = times
        self._term: int | None = None
        self._trusted_until_s = float("-inf")

    @abstractmethod
    async def _acquire(self) -> int | None:
        """Take or renew the lease. Returns the term, None if another process holds it."""

    @abstractmethod
    async def _release(self, term: int) -> None:
        """Free the lease, so that the next leader begins at once."""

    async def run_once(self) -> int:
        requested_at_s = self._clock.monotonic_s()
        term = await self._acquire()
        if term is not None and term != self._term:
            metrics.LEADER_ELECTIONS.labels(self._role).inc()
        if term != self._term:
            log.info("leader.elected" if term else "leader.lost", role=self._role, term=term)
        self._term = term
        self._trusted_until_s = requested_at_s + self._times.trust_s if term else float("-inf")
        metrics.LEADER.labels(self._role).set(1 if term else 0)
        return 1 if term else 0

    @property
    def trusted(self) -> bool:
        """Whether this process may act as leader, by its own clock."""
        return self._term is not None and self._clock.monotonic_s() < self._trusted_until_s

    @property
    def term(self) -> int | None:
        return self._term if self.trusted else None

    async def resign(self) -> None:
        if self._term is None:
            return
        term, self._term = self._term, None
        metrics.LEADER.labels(self._role).set(0)
        await self._release(term)


class Leadership(Election):
    """By a lease in Postgres."""

    name = "leadership"

    def __init__(self, database: Database, clock: Clock, role: str, identity: str, times: LeaseTimes):
        super().__init__(clock, role, f"{identity}/", times)
        self._database = database

    async def guard(self, tx: Connection) -> bool:
        """Whether this process's term is the present one, until the end of the transaction."""
        return self._term is not None and await leaders.guard(tx, self._role, self._holder, self._term)

    async def _acquire(self) -> int | None:
        async with self._database.connection() as conn:
            return await leaders.acquire(conn, self._role, self._holder, self._times.ttl_s)

    async def _release(self, term: int) -> None:
        async with self._database.connection() as conn:
            await leaders.resign(conn, self._role, self._holder, term)


class Elected(Protocol):
    """The outcome of an election, in Postgres, on a cluster's Lease or without any."""

    @property
    def term(self) -> int | None:
        """The term in which this process leads; None while it may not act as leader."""


class Unelected:
    """Without an election this process leads. The term grows with every start, so an earlier process is fenced off."""

    def __init__(self, clock: Clock):
        self.term: int | None = int(clock.now().timestamp() * 1000)

    async def resign(self) -> None:
        return


class LeaderLoop(Loop):
    """A loop that does its duty only while this process leads: subclasses implement `run_as_leader`, nothing else.

    A subclass cannot replace the check: with a `run_once` of its own it would run in every process, so mypy refuses it,
    and so does Python when the class is created.
    """

    def __init__(self, leadership: Elected, interval_s: float):
        super().__init__(interval_s)
        self._leadership = leadership

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.run_once is not LeaderLoop.run_once:
            raise TypeError(
                f"{cls.__name__}.run_once would run without the check for leadership: write run_as_leader instead"
            )

    @final
    async def run_once(self) -> int:
        term = self._leadership.term
        return await self.run_as_follower() if term is None else await self.run_as_leader(term)

    @abstractmethod
    async def run_as_leader(self, term: int) -> int:
        """Do the duty once. Writes that must not come from two leaders carry `term`, or use `guard`."""

    async def run_as_follower(self) -> int:
        """While another process leads, or none. Most loops have nothing to do then."""
        return 0
