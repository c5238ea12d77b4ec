"""The three clocks a process has, behind one seam so that tests can set them.

`now` may jump and is for people and for records. `monotonic_s` never goes back but does not count while the machine
sleeps. `boottime_s` counts the sleep too: a deadline on it has passed after a suspended laptop or a paused VM wakes.
Only Postgres' clock decides what is due.
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
    """The machine's own clocks. Where there is no CLOCK_BOOTTIME (macOS), the monotonic one replaces it."""

    _BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()

    def boottime_s(self) -> float:
        return time.clock_gettime(self._BOOTTIME)


class ClockJumps:
    """Detects that the server's clock was set, by comparing its steps with those of the local monotonic clock."""

    # Clocks that are corrected gradually stay within this between two readings.
    TOLERANCE_S = 1.0

    def __init__(self) -> None:
        # Bounds of the server's offset to the local clock, at the last reading.
        self._ahead_s: tuple[float, float] | None = None
        # The upper bound of its last jump forward.
        self.forward_most_s = 0.0

    def note(self, seen_at: datetime, requested_s: float, received_s: float) -> float:
        """The server's clock read `seen_at` between these two local times. Returns its jump since the last reading: 0
        if the duration of the requests can explain the difference."""
        least_s, most_s = seen_at.timestamp() - received_s, seen_at.timestamp() - requested_s
        before, self._ahead_s = self._ahead_s, (least_s, most_s)
        if before is None:
            return 0.0
        if least_s > before[1] + self.TOLERANCE_S:
            self.forward_most_s = most_s - before[0]
            return least_s - before[1]
        if most_s < before[0] - self.TOLERANCE_S:
            return most_s - before[0]
        return 0.0
