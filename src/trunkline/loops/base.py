"""A loop: one duty, repeated until the loop is stopped.

It logs the first failure, then nothing until it has recovered, and then how long it was down: an outage of an hour must
not write an hour of stack traces.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import ClassVar

from trunkline.errors import TrunklineError
from trunkline.event_loop import ends_within
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

# After failures in a row the wait grows to this, so that a failing engine is not overloaded.
BACKOFF_MAX_S = 5.0
# For loops that people wait for: dials go on within seconds of an engine's return.
PROMPT_BACKOFF_MAX_S = 0.5


class Loop(ABC):
    """Subclasses implement one run; this class decides how often it runs, and handles failures."""

    name: ClassVar[str]
    backoff_max_s: ClassVar[float] = BACKOFF_MAX_S
    interval_s: float

    def __init__(self, interval_s: float):
        self.interval_s = interval_s
        self._stopping = asyncio.Event()
        self._waiting: asyncio.Task[object] | None = None
        self._failures = 0
        self._down_since: float | None = None

    @abstractmethod
    async def run_once(self) -> int:
        """Do the duty once and return how much was done (0: nothing)."""

    async def wait(self) -> None:
        """Between two runs. A loop that a signal wakes overrides this."""
        await self.pause(self.interval_s)

    async def run(self) -> None:
        while not self._stopping.is_set():
            if await self._attempt():
                await self._wait()
            else:
                await self.pause(min(self.backoff_max_s, 0.1 * 2**self._failures))

    def stop(self) -> None:
        """End the loop: at once if it waits, else after its current run."""
        self._stopping.set()
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.cancel()

    async def _wait(self) -> None:
        task = self._waiting = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        try:
            await self.wait()
        except asyncio.CancelledError:
            if not self._stopping.is_set():
                raise
        finally:
            if self._waiting is None:
                # `stop` ended the wait: later checks of `task.cancelling()` must return 0.
                task.uncancel()
            self._waiting = None

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    async def pause(self, seconds: float) -> None:
        """Sleep, at most until the loop is stopped."""
        await ends_within(seconds, self._stopping.wait())

    async def in_pages(self, size: int, step: Callable[[], Awaitable[int]]) -> int:
        """Repeat a step for as long as it does a whole page, at most until the loop is stopped. Returns the sum."""
        total = 0
        while not self.stopping:
            done = await step()
            total += done
            if done < size:
                break
        return total

    async def _attempt(self) -> bool:
        started = time.monotonic()
        metrics.LOOP_RUNS.labels(self.name).inc()
        try:
            await self.run_once()
        except Exception as error:
            self._report_failure(error, started)
            return False
        finally:
            metrics.LOOP_SECONDS.labels(self.name).observe(time.monotonic() - started)
        self._report_recovery()
        return True

    def _report_failure(self, error: Exception, now: float) -> None:
        self._failures = min(self._failures + 1, 10)
        metrics.LOOP_FAILURES.labels(self.name).inc()
        if self._down_since is not None:
            return
        self._down_since = now
        if isinstance(error, TrunklineError):
            # An engine is away, or a projection is being rebuilt: the message is enough, without a stack trace.
            log.warning("loop.waiting", loop=self.name, reason=str(error))
        else:
            log.error("loop.failed", loop=self.name, error=str(error) or type(error).__name__, exc_info=error)

    def _report_recovery(self) -> None:
        if self._down_since is not None:
            log.info("loop.recovered", loop=self.name, down_s=round(time.monotonic() - self._down_since, 1))
            self._down_since = None
        self._failures = 0
