"""A time limit for what is nearly always there already.

A small body arrives with the head of its request, so reading it does not block. A timer for a read that does not block
costs 2 µs: the timer is set only when the read blocks.
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
    """The remainder of a coroutine that has started and waits for `awaited`."""

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
