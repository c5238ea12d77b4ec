"""A carrier's calls per second: calls over the pace wait in a queue and are dialled later."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

CATCH_UP_S = 0.05


class PacedQueue(Generic[T]):
    """One timer for the whole queue, running only while calls wait."""

    def __init__(self, per_s: float, start: Callable[[T], None]) -> None:
        self._interval_s = 1 / per_s
        self._start = start
        self._waiting: deque[T] = deque()
        self._next_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def wait_s(self) -> float:
        """How long a new arrival will wait."""
        behind = len(self._waiting) * self._interval_s
        return max(0.0, self._next_at + behind - asyncio.get_running_loop().time())

    def add(self, item: T) -> None:
        self._waiting.append(item)
        self._run()

    def remove(self, item: T) -> None:
        self._waiting.remove(item)

    def close(self) -> None:
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting and self._next_at <= loop.time():
            # Catches up with a late timer; unused time is not saved for a burst.
            self._next_at = max(self._next_at, loop.time() - CATCH_UP_S) + self._interval_s
            self._start(self._waiting.popleft())
        if self._waiting and self._timer is None:
            self._timer = loop.call_at(self._next_at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._run()


class RequestWindow:
    """Limits the requests of any minute; over it, the reply says when to retry."""

    def __init__(self, per_min: int) -> None:
        self._per_min = per_min
        self._taken: deque[float] = deque()

    def wait_s(self) -> float:
        """Count a request and return 0, or return how long until one is allowed."""
        now = asyncio.get_running_loop().time()
        while self._taken and self._taken[0] <= now - 60:
            self._taken.popleft()
        if len(self._taken) >= self._per_min:
            return self._taken[0] + 60 - now
        self._taken.append(now)
        return 0.0
