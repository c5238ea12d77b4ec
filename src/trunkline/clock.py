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
