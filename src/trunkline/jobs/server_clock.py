"""Converts times of Postgres' clock to the local monotonic clock, so that a job claimed early begins when it is due.

A reply carries the server's time at which it was made, which is before it arrives. So its arrival is never earlier than
that time, and a job begun by this offset is never early. The fastest reply of the last minute gives the best offset.
"""

from datetime import datetime

WINDOW_S = 30.0


class ServerClock:
    """Local times are seconds of the monotonic clock."""

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
