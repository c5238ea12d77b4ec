"""What Postgres' clock says, read on our own: so that a job that was claimed a little early begins at its moment.

An answer tells what time it was there when it was made, and it was made before it came here. So the moment at which it
came is never before that time on our clock: a job begun by this reckoning is never early. The quickest answer of the
last minute is the truest.
"""

from datetime import datetime

WINDOW_S = 30.0


class ServerClock:
    """Times of ours are seconds of the clock that never goes back."""

    def __init__(self) -> None:
        self._offset_s: float | None = None
        self._before_s: float | None = None
        self._window_ends_s = 0.0

    @property
    def is_known(self) -> bool:
        return self._offset_s is not None

    def note(self, seen_at: datetime, came_s: float) -> None:
        """An answer that was made at `seen_at` came at `came_s`."""
        offset_s = came_s - seen_at.timestamp()
        if came_s >= self._window_ends_s:
            # A clock that was set, or another server: what is older than two windows does not count.
            self._before_s, self._offset_s = self._offset_s, None
            self._window_ends_s = came_s + WINDOW_S
        self._offset_s = offset_s if self._offset_s is None else min(self._offset_s, offset_s)

    def ours_s(self, moment: datetime) -> float:
        """When it is this moment at the server, on our clock; a little later rather than earlier."""
        assert self._offset_s is not None, "asked only when known"
        before_s = self._offset_s if self._before_s is None else self._before_s
        return moment.timestamp() + min(self._offset_s, before_s)
