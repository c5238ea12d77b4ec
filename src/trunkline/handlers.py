"""What every part does that runs other people's functions: refuse what it cannot run, and name what does not end.

A handler shares its event loop with everybody else's. A plain function would have its effect and then fail, at every
try; one that blocks stops all others, heartbeats of leases included; one that swallows its cancellation stays for ever.
None of that can be prevented from inside the loop, so it is refused early, or told with the function's place.
"""

import asyncio
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import CodeType, FrameType
from typing import Any

# Tasks that were given up, until they end by themselves.
_left: set["asyncio.Task[Any]"] = set()


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await: an async function, a method, or an object with an async call."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def place_of(function: Callable[..., Any]) -> str:
    """Its name and where it is written."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else name


def refusal(function: Callable[..., Any]) -> str | None:
    """Why this cannot be a handler, in one sentence; None if it can."""
    if is_async(function):
        return None
    return (
        f"{place_of(function)} is a plain function. Write it with `async def`, and call what blocks by "
        "`await asyncio.to_thread(…)`: a plain function would have its effect at every try and fail each time."
    )


class HandlerScope:
    """One run of a handler: whose it is, and what others get back when it is given up on."""

    def __init__(self, part: str, name: str):
        """`job` and its type, or `mailbox` and its kind."""
        self.part = part
        self.name = name
        self._holds: set[Callable[[], object]] = set()

    @contextmanager
    def entered(self) -> "Iterator[HandlerScope]":
        """What is called inside, in tasks and threads of its own too, belongs to this run."""
        token = _scope.set(self)
        try:
            yield self
        finally:
            _scope.reset(token)

    def enter(self) -> None:
        """For the rest of the task."""
        _scope.set(self)

    @contextmanager
    def holding(self, give_back: Callable[[], object]) -> Iterator[None]:
        """Something is the run's for the length of the block; if it is given up on before, it goes back by this."""
        self._holds.add(give_back)
        try:
            yield
        finally:
            self._holds.discard(give_back)

    def give_up(self) -> None:
        holds, self._holds = self._holds, set()
        for give_back in holds:
            give_back()


_scope: ContextVar[HandlerScope | None] = ContextVar("trunkline_handler", default=None)


def current_scope() -> HandlerScope | None:
    """The run of a handler that calls this, if one does."""
    return _scope.get()


def where(task: "asyncio.Task[Any]") -> str:
    """The innermost line at which a task waits, of code that is not the standard library's."""
    found = ""
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None and (not found or not _is_standard(frame.f_code)):
            found = _line(frame)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return found or repr(task)


def leave_behind(task: "asyncio.Task[Any]") -> None:
    """Nobody waits for this task any more, the end of the process neither. It is kept until it ends by itself."""
    _left.add(task)
    task.add_done_callback(_ended)
    # `asyncio.run` cancels every task that it knows of and waits for it. This one does not hear it.
    asyncio._unregister_task(task)


def _ended(task: "asyncio.Task[Any]") -> None:
    _left.discard(task)
    if not task.cancelled():
        task.exception()  # looked at: there is nobody left to tell


class LoopWatch:
    """Tells from a thread of its own who blocks the event loop, while it is blocked.

    `report` gets the task that runs, if one does, for how long nothing else did, and the line it is at."""

    def __init__(self, limit_s: float, report: "Callable[[asyncio.Task[Any] | None, float, str], None]"):
        self._limit_s = limit_s
        self._report = report
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        loop, ident = asyncio.get_running_loop(), threading.get_ident()
        self._thread = threading.Thread(
            target=self._watch, args=(loop, ident), name="loop_watch", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, ident: int) -> None:
        while not self._stopping.wait(self._limit_s / 2):
            turned = threading.Event()
            asked_s = time.monotonic()
            try:
                loop.call_soon_threadsafe(turned.set)
            except RuntimeError:
                return  # the loop is closed
            if not turned.wait(self._limit_s / 2) and not self._stopping.is_set():
                self._tell(loop, ident, time.monotonic() - asked_s)
                # Once for each time that it stands still.
                while not turned.wait(self._limit_s) and not self._stopping.is_set():
                    pass

    def _tell(self, loop: asyncio.AbstractEventLoop, ident: int, for_s: float) -> None:
        frame = sys._current_frames().get(ident)
        if frame is not None:
            self._report(asyncio.current_task(loop), for_s, _innermost(frame))


def _innermost(frame: FrameType) -> str:
    """The line of the thread's stack that somebody wrote, not the one of the library that it called."""
    found: FrameType | None = frame
    while found is not None and _is_standard(found.f_code):
        found = found.f_back
    return _line(found or frame)


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"


_STANDARD = os.path.dirname(os.__file__) + os.sep


def _is_standard(code: CodeType) -> bool:
    return code.co_filename.startswith((_STANDARD, "<")) and "site-packages" not in code.co_filename
