"""Passes an engine over that does not answer: three silent answers in a row, and it is not asked for a second.

A person is on the line. Waiting out the same time-out with every call would cost each of them half a second.
"""

import time

SILENT_MAX = 3
REST_S = 1.0


class EngineBreaker:
    def __init__(self) -> None:
        self._silent = 0
        self._until_s = float("-inf")

    @property
    def is_open(self) -> bool:
        """True: do not ask now."""
        return time.monotonic() < self._until_s

    def heard(self) -> None:
        self._silent = 0

    def silent(self) -> None:
        self._silent += 1
        if self._silent >= SILENT_MAX:
            self._until_s = time.monotonic() + REST_S
