"""A timeout that returns on time, whatever hangs.

`asyncio.timeout` cancels, and then waits until the cancelled work has ended: a query to a Postgres that is paused may
take minutes. `in_time` does not wait for that.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# Cancelled work, until it has ended.
_left: set["asyncio.Task[Any]"] = set()


async def in_time(timeout_s: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, or TimeoutError after `timeout_s`: then it is cancelled, and ends when it can."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    finally:
        if not task.done():
            _leave(task)
    if not task.done():
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    return task.result()


def _leave(task: "asyncio.Task[Any]") -> None:
    _left.add(task)
    task.add_done_callback(_ended)
    task.cancel()


def _ended(task: "asyncio.Task[Any]") -> None:
    _left.discard(task)
    if not task.cancelled():
        task.exception()  # retrieved: no caller is left to get it
