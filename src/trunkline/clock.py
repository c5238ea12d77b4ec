"""The three clocks a process has, behind one seam so that tests can set them.

`now` may jump and is for people and for records. `monotonic_s` never goes back but stands still while the machine
sleeps. `boottime_s` counts the sleep too: a deadline on it has passed after a suspended laptop or a paused VM wakes.
Postgres decides what is due; none of these does.
"""

import time
from datetime import UTC, datetime, timedelta
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


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, now: datetime = datetime(2025, 1, 1, tzinfo=UTC)):
        self._now = now
        self._monotonic_s = 0.0
        self._suspended_s = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def boottime_s(self) -> float:
        return self._monotonic_s + self._suspended_s

    def advance(self, seconds: float) -> None:
        """Let time pass on all three clocks."""
        self._now += timedelta(seconds=seconds)
        self._monotonic_s += seconds

    def suspend(self, seconds: float) -> None:
        """Let the machine sleep: the monotonic clock does not notice."""
        self._now += timedelta(seconds=seconds)
        self._suspended_s += seconds

    def set_wall(self, now: datetime) -> None:
        """Let the wall clock jump, forward or back, while the other two do not move."""
        self._now = now
