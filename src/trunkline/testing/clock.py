"""A manual `trunkline.clock.Clock`."""

from datetime import UTC, datetime, timedelta


class ManualClock:
    """A clock that moves only by its methods."""

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
