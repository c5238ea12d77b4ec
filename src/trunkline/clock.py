"""The three clocks a process has, behind one seam so that tests can set them.

`now` may jump and is for people and for records. `monotonic_s` never goes back but stands still while the machine
sleeps. `boottime_s` counts the sleep too: a deadline on it has passed after a suspended laptop or a paused VM wakes.
Postgres decides what is due; none of these does.
"""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """Wall clock, aware, in UTC."""
        ...

    def monotonic_s(self) -> float: ...

    def boottime_s(self) -> float: ...


class SystemClock:
    """The machine's own clocks. Where there is no CLOCK_BOOTTIME (macOS), the monotonic one stands in."""

    _BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()

    def boottime_s(self) -> float:
        return time.clock_gettime(self._BOOTTIME)


class ClockJumps:
    """Notices that the server's clock was set. A step of it is compared with a step of ours, which never goes back."""

    # Clocks that are corrected a little at a time stay within this between two looks.
    TOLERANCE_S = 1.0

    def __init__(self) -> None:
        # How far the server was ahead of us at most and at least.
        self._ahead_s: tuple[float, float] | None = None
        # How far the clock can have been set forward at most, when it was last.
        self.forward_most_s = 0.0

    def note(self, seen_at: datetime, asked_s: float, came_s: float) -> float:
        """The server said `seen_at` between these two moments of ours. By how much it was set since the last time: 0
        if nothing but the time of an answer can explain the difference."""
        least_s, most_s = seen_at.timestamp() - came_s, seen_at.timestamp() - asked_s
        before, self._ahead_s = self._ahead_s, (least_s, most_s)
        if before is None:
            return 0.0
        if least_s > before[1] + self.TOLERANCE_S:
            self.forward_most_s = most_s - before[0]
            return least_s - before[1]
        if most_s < before[0] - self.TOLERANCE_S:
            return most_s - before[0]
        return 0.0
