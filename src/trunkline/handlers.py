"""What every part does that runs other people's functions: refuse what it cannot run, and name what does not end.

A handler shares its event loop with everybody else's. A plain function would have its effect and then fail, at every
try; one that blocks stops all others, heartbeats of leases included; one that swallows its cancellation stays for ever.
None of that can be prevented from inside the loop, so it is refused early, or told with the function's place.

What blocks is called by `in_thread`. A thread cannot be stopped either, but it is bounded: each type of jobs and each
kind of mailboxes has so many, one that outlives its cancellation is named, and no process waits for it to end.
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

# Threads of one type of jobs or kind of mailboxes, those that outlived their cancellation included.
THREADS_MAX = 20
# How long a thread may go on whose caller was cancelled before it is named.
GRACE_S = 5.0

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
        "`await trunkline.handlers.in_thread(…)`: a plain function would have its effect at every try and fail each "
        "time."
    )


class HandlerScope:
    """One run of a handler: whose it is, what others get back when it is given up on, and where its threads count.

    What is called in its block, in tasks and threads of its own too, belongs to the run. One is made for every job, so
    it costs a microsecond and no more."""

    __slots__ = ("_holds", "_token", "grace_s", "name", "on_stuck_thread", "part", "threads")

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
        cancellation, and the line that it is at. What this one holds goes back with the one that it is `within`."""
        self.part = part
        self.name = name
        self.threads = threads or _of_nobody
        self.grace_s = grace_s
        self.on_stuck_thread = on_stuck_thread or _tell_of_stuck_thread
        self._holds: set[Callable[[], object]] | None = within.holds if within is not None else None

    def __enter__(self) -> "HandlerScope":
        self._token = _scope.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _scope.reset(self._token)

    def enter(self) -> None:
        """For the rest of the task."""
        _scope.set(self)

    @property
    def holds(self) -> set[Callable[[], object]]:
        """Made when it is first asked for: most runs hold nothing."""
        if self._holds is None:
            self._holds = set()
        return self._holds

    @contextmanager
    def holding(self, give_back: Callable[[], object]) -> Iterator[None]:
        """Something is the run's for the length of the block; if it is given up on before, it goes back by this."""
        self.holds.add(give_back)
        try:
            yield
        finally:
            self.holds.discard(give_back)

    def give_up(self) -> None:
        for give_back in list(self._holds or ()):
            # A connection that broke is back already, and says so by raising.
            with suppress(Exception):
                give_back()


_scope: contextvars.ContextVar[HandlerScope | None] = contextvars.ContextVar(
    "trunkline_handler", default=None
)


def current_scope() -> HandlerScope | None:
    """The run of a handler that calls this, if one does."""
    return _scope.get()


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call what blocks, in a daemon thread of its own. Waits while the job type or the kind of mailboxes has all the
    threads that it may. Cancelled, it returns at once; the thread goes on until it ends by itself."""
    scope = _scope.get() or _outside
    return await scope.threads.call(scope, partial(function, *args, **kwargs))


class HandlerThreads:
    """The threads of a worker's handlers. They end in any thread, so what they change is under a lock."""

    def __init__(self, most: int = THREADS_MAX):
        self._most = most
        self._lock = threading.Lock()
        self._calls: set[_ThreadCall] = set()
        # Told of every call that ends: who waits for a free thread, and who waits for the end of all.
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
        """Wait so long for those that still run; then name the rest: the type, and the line that each is at."""
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
            # Asked once more now that the end of a call is heard.
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
            answer = partial(_answer, self.answer, self._context.run(self.function))
        except BaseException as error:
            answer = partial(_fail, self.answer, error)
        on_end(self)
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(answer)


def _answer(answer: "asyncio.Future[Any]", result: object) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: "asyncio.Future[Any]", error: BaseException) -> None:
    if not answer.done():
        # A future cannot raise this one: it would end the generator that awaits it.
        answer.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)


def _tell_of_stuck_thread(function: str, place: str) -> None:
    log.error("%s outlived its cancellation in a thread, at %s", function, place)


_of_nobody = HandlerThreads()
_outside = HandlerScope("other", "")


def callback_refusal(function: Callable[..., Any]) -> str | None:
    """As `refusal`, for what a handler hands over to be called later. A lambda may well give something to await: that
    is seen when it is called."""
    is_lambda = getattr(function, "__name__", None) == "<lambda>"
    return None if is_lambda else refusal(function)


def awaitable(given: Any, function: Callable[..., Any]) -> Awaitable[Any]:
    """What this function gave, to be awaited; `TypeError` with its name and place if nobody can."""
    if inspect.isawaitable(given):
        return given
    raise TypeError(f"{place_of(function)} gives nothing to await: it has to be, or to call, an `async def`.")


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
    if task in _left or task.done():
        return
    _left.add(task)
    # For the interpreter too, which closes the coroutines that it finds at its end, and would wait for one that catches
    # what it is told then, over and over.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))
    task.add_done_callback(_ended)
    # `asyncio.run` cancels every task that it knows of and waits for it. This one does not hear it.
    asyncio._unregister_task(task)


def _ended(task: "asyncio.Task[Any]") -> None:
    _left.discard(task)
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(task))
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
