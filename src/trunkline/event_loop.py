"""Event loops in an application's process: the running one, waiting for a stop signal, a task that runs while there is
work, and a loop in a thread for background work of a synchronous process.
"""

import asyncio
import os
import signal
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")

CLOSE_TIMEOUT_S = 5.0

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Set by a stop signal. All are of the loop in the main thread, which alone receives signals.
_stop_events: set[asyncio.Event] = set()


class LoopThread(Generic[T]):
    """An event loop in a daemon thread, started by its first use, and an object that lives in that loop.

    A thread does not survive a fork, so a server that forks after it was loaded gets one in each of its children.
    """

    _lock: threading.Lock
    _loop: asyncio.AbstractEventLoop | None
    _thread: threading.Thread | None
    _made: T | None

    def __init__(self, name: str, make: Callable[[], T]):
        """`make` is called in the loop, before its first use."""
        self._name = name
        self._make = make
        # Of the parent process: never closed here, or its sockets and selectors would be, too.
        self._inherited: list[object] = []
        self._reset()
        me = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forked(me()))

    def call(self, use: Callable[[T], None]) -> None:
        """Schedule `use` in the loop. Never waits."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            self._loop.call_soon_threadsafe(self._use, use)

    def close(self, finish: Callable[[T], Coroutine[Any, Any, None]]) -> None:
        """Run the scheduled calls, finish the object, and end the thread."""
        with self._lock:
            loop, thread = self._loop, self._thread
            if loop is None or thread is None:
                return
            asyncio.run_coroutine_threadsafe(self._finish(finish), loop).result(CLOSE_TIMEOUT_S)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(CLOSE_TIMEOUT_S)
            loop.close()
            self._loop = self._thread = None

    def forked(self) -> None:
        self._inherited.append((self._loop, self._made))
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._loop = self._thread = self._made = None

    def _use(self, use: Callable[[T], None]) -> None:
        if self._made is None:
            self._made = self._make()
        use(self._made)

    async def _finish(self, finish: Callable[[T], Coroutine[Any, Any, None]]) -> None:
        made, self._made = self._made, None
        if made is not None:
            await finish(made)


def _forked(thread: LoopThread[Any] | None) -> None:
    if thread is not None:
        thread.forked()


class OnDemandTask:
    """Runs `work` in a task whenever there is some, one at a time: what comes in while it runs, it does too."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], name: str):
        self._work = work
        self._name = name
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Begin, unless it runs."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name=self._name)

    async def idle(self) -> None:
        """Return when it does not run."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])


async def ends_within(timeout_s: float | None, work: Awaitable[object]) -> bool:
    """Await this; False if it was cancelled by the timeout."""
    try:
        async with asyncio.timeout(timeout_s):
            await work
    except TimeoutError:
        return False
    return True


def running_loop() -> asyncio.AbstractEventLoop | None:
    with suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None


async def wait_for_stop_signal() -> None:
    """Return at SIGTERM or SIGINT; several tasks may wait. Where signals are not available, only a cancellation ends
    it."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    _stop_events.add(stop)
    for number in _SIGNALS:
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, _on_stop_signal)
    try:
        await stop.wait()
    finally:
        _stop_events.discard(stop)
        if not _stop_events:
            for number in _SIGNALS:
                with suppress(NotImplementedError, RuntimeError, ValueError):
                    loop.remove_signal_handler(number)


def _on_stop_signal() -> None:
    for stop in _stop_events:
        stop.set()
