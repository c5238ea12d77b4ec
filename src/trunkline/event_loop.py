"""The event loop of a process that is not ours: which one runs here, when it is to stop, and one of its own for a
synchronous process, to hand over what it does not wait for.
"""

import asyncio
import os
import signal
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")

CLOSE_TIMEOUT_S = 5.0

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Who waits for a signal. They are all in the loop of the main thread, which alone hears one.
_asked: set[asyncio.Event] = set()


class LoopThread(Generic[T]):
    """An event loop in a daemon thread, started by its first use, and what lives in that loop.

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
        # Of the process that forked: never closed here, or the sockets and selectors that are its own would be, too.
        self._inherited: list[object] = []
        self._forget()
        me = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forked(me()))

    def call(self, use: Callable[[T], None]) -> None:
        """Call it in the loop, soon. Never waits."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            self._loop.call_soon_threadsafe(self._use, use)

    def close(self, finish: Callable[[T], Coroutine[Any, Any, None]]) -> None:
        """Do what was called, finish what was made, and end the thread."""
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
        self._forget()

    def _forget(self) -> None:
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


def running_loop() -> asyncio.AbstractEventLoop | None:
    with suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None


async def asked_to_stop() -> None:
    """Return when a signal tells the process to end, also if several wait for it. Where signals cannot be heard, only a
    cancellation does."""
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    _asked.add(asked)
    for number in _SIGNALS:
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, _ask_to_stop)
    try:
        await asked.wait()
    finally:
        _asked.discard(asked)
        if not _asked:
            for number in _SIGNALS:
                with suppress(NotImplementedError, RuntimeError, ValueError):
                    loop.remove_signal_handler(number)


def _ask_to_stop() -> None:
    for asked in _asked:
        asked.set()
