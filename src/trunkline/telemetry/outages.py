"""Logs an outage twice: when it begins, and, with its length and the number of failures, when it is over.

For requests that are sent hundreds of times a second. Loops have their own (`loops/base.py`).
"""

import time
from collections.abc import Callable

from trunkline.telemetry.logs import get_logger

log = get_logger(__name__)

# A success ends an outage if it began this long after the last failure. An earlier one proves nothing.
QUIET_S = 1.0


class Outage:
    """Of one kind of request. `name` is the log event of its begin; its end is `<name>_over`."""

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
        """A request that began at `begun_at` of the monotonic clock succeeded."""
        if self._began_at is None or begun_at < self._failed_at + QUIET_S:
            return
        down_s = round(self._failed_at - self._began_at, 1)
        log.info(f"{self._name}_over", down_s=down_s, failures=self._failures, **self._more)
        self._began_at, self._failures = None, 0

    def now(self) -> float:
        return self._clock()
