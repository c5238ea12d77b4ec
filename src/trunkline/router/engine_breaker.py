"""Circuit breaker of Postgres or Valkey: opens for one second after three timeouts in a row.

A person waits on the phone. Without it every call would wait out the same timeout, half a second each.
"""

import time

TIMEOUTS_MAX = 3
OPEN_S = 1.0


class EngineBreaker:
    def __init__(self) -> None:
        self._timeouts = 0
        self._open_until_s = float("-inf")

    @property
    def is_open(self) -> bool:
        """True: send no request now."""
        return time.monotonic() < self._open_until_s

    def answered(self) -> None:
        self._timeouts = 0

    def timed_out(self) -> None:
        self._timeouts += 1
        if self._timeouts >= TIMEOUTS_MAX:
            self._open_until_s = time.monotonic() + OPEN_S
