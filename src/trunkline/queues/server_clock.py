"""Postgres' clock, which decides what is due and when a lease ends, beside the worker's own monotonic clock."""

import asyncio
from datetime import datetime

from trunkline.store.database import Database, now

WINDOW_S = 30.0
# Clocks that are corrected gradually stay within this between two readings.
TOLERANCE_S = 1.0
# How long statements may run that began before the clock was set, and still write times of the old one.
SETTLE_S = 10.0


class ServerClock:
    """Converts times of Postgres to local ones, so that a job claimed early begins when it is due.

    A reply carries the server's time at which it was made, which is before it arrives. So its arrival is never earlier
    than that time, and a job begun by this offset is never early. The fastest reply of the last minute gives the best
    offset. Local times are seconds of the monotonic clock."""

    def __init__(self) -> None:
        self._offset_s: float | None = None
        self._before_s: float | None = None
        self._window_ends_s = 0.0

    @property
    def is_known(self) -> bool:
        return self._offset_s is not None

    def note(self, seen_at: datetime, came_s: float) -> None:
        """A reply made at `seen_at` arrived at `came_s`."""
        offset_s = came_s - seen_at.timestamp()
        if came_s >= self._window_ends_s:
            # The clock may be set, or the server replaced: offsets older than two windows do not count.
            self._before_s, self._offset_s = self._offset_s, None
            self._window_ends_s = came_s + WINDOW_S
        self._offset_s = offset_s if self._offset_s is None else min(self._offset_s, offset_s)

    def local_s(self, moment: datetime) -> float:
        """The local time of this time at the server; rather a little late than early."""
        assert self._offset_s is not None, "called only when known"
        before_s = self._offset_s if self._before_s is None else self._before_s
        return moment.timestamp() + min(self._offset_s, before_s)


class ClockJumps:
    """Detects that Postgres' clock was set, by comparing its steps with those of the local clock.

    If it was set forward, all leases end at once: their owners renew them first. If it was set back, leases and waiting
    work would last longer by the jump, and are corrected for `settle_s`."""

    def __init__(self, settle_s: float = SETTLE_S):
        self._settle_s = settle_s
        # Bounds of the server's offset to the local clock, at the last reading.
        self._ahead_s: tuple[float, float] | None = None
        # The upper bound of its last jump forward.
        self._forward_most_s = 0.0
        self._renewed_at_s = self._settled_at_s = float("-inf")
        # By how much the last jump set it back.
        self.went_back_s = 0.0

    async def check(self, database: Database, *, every_s: float) -> float:
        """Read the clock, as every worker does this often. Returns its jump since the last reading, or 0."""
        loop = asyncio.get_running_loop()
        requested_s = loop.time()
        async with database.connection() as conn:
            seen_at = await now(conn)
        jump_s = self._note(seen_at, requested_s, loop.time())
        if jump_s:
            self._settled_at_s = loop.time() + self._settle_s
            self.went_back_s = max(0.0, -jump_s)
        if jump_s > 0:
            # By then every worker has detected the jump, and has renewed its leases.
            self._renewed_at_s = loop.time() + 1.5 * every_s
        return jump_s

    def forward_s(self, now_s: float) -> float:
        """By how much it was just set forward, at most; 0 once the owners of leases have renewed them."""
        return self._forward_most_s if now_s < self._renewed_at_s else 0.0

    @property
    def is_settling(self) -> bool:
        return asyncio.get_running_loop().time() < self._settled_at_s

    def _note(self, seen_at: datetime, requested_s: float, received_s: float) -> float:
        """The clock read `seen_at` between these two local times. 0 if the duration of the requests can explain the
        difference."""
        least_s, most_s = seen_at.timestamp() - received_s, seen_at.timestamp() - requested_s
        before, self._ahead_s = self._ahead_s, (least_s, most_s)
        if before is None:
            return 0.0
        if least_s > before[1] + TOLERANCE_S:
            self._forward_most_s = most_s - before[0]
            return least_s - before[1]
        if most_s < before[0] - TOLERANCE_S:
            return most_s - before[0]
        return 0.0
