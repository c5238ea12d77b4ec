"""An outage is told once: when it begins, and, with its length and what it cost, when it is over.

For what is asked hundreds of times a second. A loop has the same habit of its own (`loops/base.py`).
"""

import time
from collections.abc import Callable

from trunkline.telemetry.logs import get_logger

log = get_logger(__name__)

# What works was begun this long after the last failure. What was begun before it, or went another way, says nothing.
QUIET_S = 1.0


class Outage:
    """Of one thing that is asked for. `name` is the event in the log; its end is `<name>_over`."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic, **more: str):
        self._name = name
        self._more = more
        self._clock = clock
        self._began_at: float | None = None
        self._failed_at = 0.0
        self._failures = 0

    def failed(self, error: BaseException) -> None:
        self._failed_at = self._clock()
        self._failures += 1
        if self._began_at is None:
            self._began_at = self._failed_at
            log.error(self._name, error=str(error) or type(error).__name__, **self._more)

    def worked(self, begun_at: float) -> None:
        """Something succeeded that was begun at this moment of the monotonic clock."""
        if self._began_at is None or begun_at < self._failed_at + QUIET_S:
            return
        down_s = round(self._failed_at - self._began_at, 1)
        log.info(f"{self._name}_over", down_s=down_s, failures=self._failures, **self._more)
        self._began_at, self._failures = None, 0

    def now(self) -> float:
        return self._clock()
