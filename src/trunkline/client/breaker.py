"""A circuit breaker: while the router fails, calls do not wait for it.

Closed, all requests pass; a number of failures in a row opens it. Open, no request passes for a time; then a few probes
pass: if all of them succeed it closes, and the first failure opens it again. A probe without a result (its thread or
its loop is gone) counts for that same time and no longer, or the circuit would stay open for good.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

State = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True)
class BreakerRule:
    failure_threshold: int = 5
    recovery_timeout_s: float = 30.0
    half_open_max_calls: int = 3


class CircuitBreaker:
    """One for all threads of a process, so that their failures add up."""

    def __init__(self, rule: BreakerRule = BreakerRule(), clock: Callable[[], float] = time.monotonic):  # noqa: B008  frozen
        self.rule = rule
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._opened_at_s: float | None = None
        self._tries = 0
        self._tried_at_s = 0.0
        self._successes = 0

    @property
    def state(self) -> State:
        with self._lock:
            return self._state()

    def allows(self) -> bool:
        """Whether a request may be sent now. Half open, every True is one of the probes."""
        with self._lock:
            state = self._state()
            if state != "half_open":
                return state == "closed"
            now_s = self._clock()
            if now_s - self._tried_at_s >= self.rule.recovery_timeout_s:
                self._tries = self._successes
            if self._tries >= self.rule.half_open_max_calls:
                return False
            self._tries += 1
            self._tried_at_s = now_s
            return True

    def succeeded(self) -> None:
        with self._lock:
            if self._state() == "half_open":
                self._successes += 1
                if self._successes >= self.rule.half_open_max_calls:
                    self._close()
            elif self._opened_at_s is None:
                self._failures = 0

    def failed(self) -> None:
        with self._lock:
            self._failures += 1
            if self._state() == "half_open" or self._failures >= self.rule.failure_threshold:
                self._opened_at_s = self._clock()
                self._tries = self._successes = 0

    def given_up(self) -> None:
        """A probe without a result: its caller was cancelled. Another request may probe."""
        with self._lock:
            if self._opened_at_s is not None and self._tries > self._successes:
                self._tries -= 1

    def _state(self) -> State:
        if self._opened_at_s is None:
            return "closed"
        has_rested = self._clock() - self._opened_at_s >= self.rule.recovery_timeout_s
        return "half_open" if has_rested else "open"

    def _close(self) -> None:
        self._failures = self._tries = self._successes = 0
        self._opened_at_s = None


_shared: dict[str, CircuitBreaker] = {}
_shared_lock = threading.Lock()


def shared_breaker(name: str, rule: BreakerRule) -> CircuitBreaker:
    """The process's breaker of that name. The first rule counts."""
    with _shared_lock:
        return _shared.setdefault(name, CircuitBreaker(rule))
