"""Whether there will be a pod for whoever answers: how many our calls may have, and how many are usually answered.

Looked at once a second. That is often enough: those that are free and those that our calls have are counted together,
so a call that takes or leaves a pod changes nothing, and the calls themselves are counted by the intent. Only while
pods may run short is the gate there, because counting against them makes all intents wait for each other. Unknown room
is no reason not to call: Valkey may be away, or no pod has been heard of at all, because somebody else's agents take
the calls.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from trunkline.errors import BusUnavailable
from trunkline.leads.limits import PodRoom
from trunkline.loops.base import Loop
from trunkline.store import limits
from trunkline.store.database import Database

# Calls that could be started before the next look: a batch a few times over from each of several dialers.
BURST = 200
STALE_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class PodCount:
    """Calls that pods could take now, and all that they could ever take at once."""

    free: int
    total: int


CountPods = Callable[[], Awaitable[PodCount]]


class PodRoomWatch(Loop):
    name = "pod_room"

    def __init__(
        self, database: Database, count: CountPods, podless: frozenset[str], interval_s: float = 1.0
    ):
        super().__init__(interval_s)
        self._database = database
        self._count = count
        self._podless = podless
        self._room: PodRoom | None = None
        self._seen_at_s = float("-inf")

    async def run_once(self) -> int:
        """1 while the gate is there."""
        self._room = await self._look()
        self._seen_at_s = time.monotonic()
        return int(self._room is not None)

    def room(self) -> PodRoom | None:
        """None: proceed."""
        return self._room if time.monotonic() - self._seen_at_s < STALE_AFTER_S else None

    async def _look(self) -> PodRoom | None:
        try:
            pods = await self._count()
        except BusUnavailable:
            return None
        if pods.total == 0:
            return None
        async with self._database.connection() as conn:
            answering = await limits.answering(conn, self._podless)
        ours = pods.free + answering.with_pod
        is_scarce = ours < answering.answered + (answering.unanswered + BURST) * answering.rate
        return PodRoom(ours, answering.rate, self._podless) if is_scarce else None
