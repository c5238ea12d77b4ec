"""A time limit for what is nearly always there already.

A small body comes in with the head of its request, so reading it does not wait. A limit on a wait that does not happen
would cost such a request a tenth of its time: it is set only when there is something to wait for.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from inspect import iscoroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


async def timeout_if_blocking(timeout_s: float, start: Callable[[], Awaitable[T]]) -> T:
    """The result of `start()`, or TimeoutError."""
    work = start()
    if not iscoroutine(work):
        async with asyncio.timeout(timeout_s):
            return await work
    try:
        awaited = work.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    async with asyncio.timeout(timeout_s):
        return await _Rest(work, awaited)


class _Rest(Generic[T]):
    """What is left of a coroutine that has begun, and waits for `awaited`."""

    def __init__(self, work: Coroutine[Any, Any, T], awaited: Any):
        self._work = work
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, T]:
        awaited = self._awaited
        while True:
            try:
                sent = yield awaited
            except BaseException as error:
                go_on = partial(self._work.throw, error)
            else:
                go_on = partial(self._work.send, sent)
            try:
                awaited = go_on()
            except StopIteration as done:
                value: T = done.value
                return value
