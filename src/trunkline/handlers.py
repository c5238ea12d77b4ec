"""Runs application functions safely: refuses those that cannot be handlers, and logs those that do not end.

All handlers of a process share one event loop. A plain function would have its effect and then fail, at every try; one
that blocks stops all others, including lease renewals; one that swallows its cancellation stays for ever. None of that
can be prevented from inside the loop, so it is refused early, or logged with the function's source line.

Blocking functions are called by `in_thread`. A thread cannot be stopped either, but threads are bounded: each job type
and each kind of mailboxes has at most 20, one that outlives its cancellation is logged, and no process waits for it.
"""

import asyncio
import contextvars
import ctypes
import inspect
import logging
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import CodeType, FrameType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

# Threads of one job type or kind of mailboxes, including those that outlived their cancellation.
THREADS_MAX = 20
# How long a thread whose caller was cancelled may run on before it is logged.
GRACE_S = 5.0

# Abandoned tasks, until they end by themselves.
_left: set["asyncio.Task[Any]"] = set()


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it returns an awaitable: an async function, a method, or an object with an async call."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def place_of(function: Callable[..., Any]) -> str:
    """Its name and the file and line of its definition."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else name


def refusal(function: Callable[..., Any]) -> str | None:
    """Why this cannot be a handler; None if it can."""
    if is_async(function):
        return None
    return (
        f"{place_of(function)} is a plain function. Write it with `async def`, and call what blocks by "
        "`await trunkline.handlers.in_thread(…)`: a plain function would have its effect at every try and fail each "
        "time."
    )


class HandlerScope:
    """One run of a handler: its type or kind, the resources to release if it is abandoned, and its threads.

    Everything that its block calls, in tasks and threads too, belongs to the run. One is made for every job, so it must
    cost no more than a microsecond."""

    __slots__ = ("_token", "grace_s", "name", "on_stuck_thread", "part", "releases", "threads")

    def __init__(
        self,
        part: str,
        name: str,
        threads: "HandlerThreads | None" = None,
        *,
        grace_s: float = GRACE_S,
        on_stuck_thread: Callable[[str, str], None] | None = None,
        within: "HandlerScope | None" = None,
    ):
        """`job` and its type, or `mailbox` and its kind. `on_stuck_thread` gets the function that outlived its
        cancellation, and the line that it is at. A scope shares the resources of the one that it is `within`."""
        self.part = part
        self.name = name
        self.threads = threads or _default_threads
        self.grace_s = grace_s
        self.on_stuck_thread = on_stuck_thread or _log_stuck_thread
        self.releases: set[Callable[[], object]] = set() if within is None else within.releases

    def __enter__(self) -> "HandlerScope":
        self._token = _scope.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _scope.reset(self._token)

    def enter(self) -> None:
        """Until the task ends."""
        _scope.set(self)

    @contextmanager
    def holding(self, release: Callable[[], object]) -> Iterator[None]:
        """The run holds a resource for the length of the block; if it is abandoned before, `release` is called."""
        self.releases.add(release)
        try:
            yield
        finally:
            self.releases.discard(release)

    def abandon(self) -> None:
        """Release its resources."""
        for release in list(self.releases):
            # A broken connection is released already, and raises.
            with suppress(Exception):
                release()


_scope: contextvars.ContextVar[HandlerScope | None] = contextvars.ContextVar(
    "trunkline_handler", default=None
)


def current_scope() -> HandlerScope | None:
    """The run of the handler that calls this, if it is one."""
    return _scope.get()


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a blocking function in a daemon thread of its own. Waits while the job type or the kind of mailboxes uses
    all its threads. Cancelled, it returns at once; the thread runs on until it ends by itself."""
    scope = _scope.get() or _outside
    return await scope.threads.call(scope, partial(function, *args, **kwargs))


class HandlerThreads:
    """The threads of a worker's handlers. Calls end in any thread, so a lock guards the state."""

    def __init__(self, most: int = THREADS_MAX):
        self._most = most
        self._lock = threading.Lock()
        self._calls: set[_ThreadCall] = set()
        # Set at the end of every call: for callers that wait for a free thread, and for the end of all.
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    async def call(self, scope: HandlerScope, function: "partial[T]") -> T:
        loop = asyncio.get_running_loop()
        while len(self._of(scope.name)) >= self._most:
            await self._until_one_ends(lambda: len(self._of(scope.name)) < self._most)
        call = _ThreadCall(scope, function, loop.create_future())
        with self._lock:
            self._calls.add(call)
        try:
            call.start(self._ended)
        except RuntimeError:
            self._ended(call)  # the system has no more threads
            raise
        try:
            result: T = await call.answer
            return result
        except asyncio.CancelledError:
            if call in self._calls:
                loop.call_later(scope.grace_s, self._name, call)
            raise

    async def end(self, grace_s: float) -> list[str]:
        """Wait up to `grace_s` for running calls. Returns the others: the type, and the line that each is at."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, grace_s)):
                while self._calls:
                    await self._until_one_ends(lambda: not self._calls)
        return [f"{call.scope.name} in a thread at {self._name(call)}" for call in self._running()]

    def _running(self) -> "list[_ThreadCall]":
        with self._lock:
            return list(self._calls)

    def _of(self, name: str) -> "list[_ThreadCall]":
        return [call for call in self._running() if call.scope.name == name]

    async def _until_one_ends(self, is_so: Callable[[], bool]) -> None:
        waiter = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._waiting.add(waiter)
        try:
            # Checked again now that the end of a call sets the event.
            if not is_so():
                await waiter[1].wait()
        finally:
            with self._lock:
                self._waiting.discard(waiter)

    def _ended(self, call: "_ThreadCall") -> None:
        with self._lock:
            self._calls.discard(call)
            waiting = list(self._waiting)
        for loop, event in waiting:
            with suppress(RuntimeError):  # that loop is closed
                loop.call_soon_threadsafe(event.set)

    def _name(self, call: "_ThreadCall") -> str:
        place = call.place()
        if call in self._calls and not call.is_named:
            call.is_named = True
            call.scope.on_stuck_thread(place_of(call.function), place)
        return place


class _ThreadCall:
    def __init__(self, scope: HandlerScope, function: "partial[Any]", answer: "asyncio.Future[Any]"):
        self.scope = scope
        self.function = function
        self.answer = answer
        self.is_named = False
        self._loop = answer.get_loop()
        self._context = contextvars.copy_context()

    def start(self, on_end: "Callable[[_ThreadCall], None]") -> None:
        self._thread = threading.Thread(
            target=self._run, args=(on_end,), name=f"handler_of_{self.scope.name}", daemon=True
        )
        self._thread.start()

    def place(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return _innermost(frame) if frame is not None else place_of(self.function)

    def _run(self, on_end: "Callable[[_ThreadCall], None]") -> None:
        try:
            answer: Callable[[], None] = partial(self.answer.set_result, self._context.run(self.function))
        except StopIteration as error:
            # A future cannot raise this one: it would end the generator that awaits it.
            answer = partial(self.answer.set_exception, RuntimeError(repr(error)))
        except BaseException as error:
            answer = partial(self.answer.set_exception, error)
        on_end(self)
        with suppress(RuntimeError):  # the loop is closed: no caller waits
            self._loop.call_soon_threadsafe(self._answer, answer)

    def _answer(self, answer: Callable[[], None]) -> None:
        if not self.answer.done():
            answer()


def _log_stuck_thread(function: str, place: str) -> None:
    log.error("%s outlived its cancellation in a thread, at %s", function, place)


_default_threads = HandlerThreads()
_outside = HandlerScope("other", "")


def awaitable(returned: Any, function: Callable[..., Any]) -> Awaitable[Any]:
    """What this function returned; `TypeError` with its name and place if that is no awaitable."""
    if inspect.isawaitable(returned):
        return returned
    raise TypeError(f"{place_of(function)} gives nothing to await: it has to be, or to call, an `async def`.")


def where(task: "asyncio.Task[Any]") -> str:
    """The innermost line at which a task waits, of code that is not the standard library's."""
    line = ""
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None and (not line or not _is_standard(frame.f_code)):
            line = _line(frame)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return line or repr(task)


def abandon(task: "asyncio.Task[Any]", scope: HandlerScope | None) -> str:
    """Give up a handler that was cancelled and runs on: release its resources, and leave its task behind. Returns the
    line that it is at."""
    place = where(task)
    if scope is not None:
        scope.abandon()
    leave_behind(task)
    return place


def leave_behind(task: "asyncio.Task[Any]") -> None:
    """Abandon a task: nothing waits for it any more, nor does the end of the process. A reference stays until it
    ends."""
    if task in _left or task.done():
        return
    _left.add(task)
    # Hidden from the interpreter too, which closes all coroutines at its end, and would wait for one that catches
    # GeneratorExit over and over.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))
    task.add_done_callback(_ended)
    # `asyncio.run` cancels every registered task and waits for it. This one would not end.
    asyncio._unregister_task(task)


def _ended(task: "asyncio.Task[Any]") -> None:
    _left.discard(task)
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(task))
    if not task.cancelled():
        task.exception()  # retrieved: no caller is left to get it


class LoopWatch:
    """Reports from a thread of its own which task blocks the event loop, while it is blocked.

    `report` gets the task that runs, if one does, for how long it has blocked the loop, and the line it is at."""

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
            scheduled_s = time.monotonic()
            try:
                loop.call_soon_threadsafe(turned.set)
            except RuntimeError:
                return  # the loop is closed
            if not turned.wait(self._limit_s / 2) and not self._stopping.is_set():
                if (frame := sys._current_frames().get(ident)) is not None:
                    for_s = time.monotonic() - scheduled_s
                    self._report(asyncio.current_task(loop), for_s, _innermost(frame))
                # Once per blockage.
                while not turned.wait(self._limit_s) and not self._stopping.is_set():
                    pass


def _innermost(frame: FrameType) -> str:
    """The innermost line of the thread's stack that is not the standard library's."""
    caller: FrameType | None = frame
    while caller is not None and _is_standard(caller.f_code):
        caller = caller.f_back
    return _line(caller or frame)


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"


_STANDARD = os.path.dirname(os.__file__) + os.sep


def _is_standard(code: CodeType) -> bool:
    return code.co_filename.startswith((_STANDARD, "<")) and "site-packages" not in code.co_filename
