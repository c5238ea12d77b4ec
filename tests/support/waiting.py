"""Waiting for what another process does. Within one process, wait on its signal instead."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

POLL_S = 0.02


@overload
async def eventually(
    condition: Callable[[], Awaitable[T | None]], *, timeout_s: float = ..., what: str | None = ...
) -> T: ...


@overload
async def eventually(
    condition: Callable[[], T | None], *, timeout_s: float = ..., what: str | None = ...
) -> T: ...


async def eventually(condition: Callable[[], Any], *, timeout_s: float = 10, what: str | None = None) -> Any:
    """The first true value of `condition`. An `AssertionError` says what was waited for and seen last."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if loop.time() >= deadline:
            wanted = what or inspect.getsource(condition).strip()
            raise AssertionError(f"not within {timeout_s} s: {wanted} (last seen: {value!r})")
        await asyncio.sleep(POLL_S)
