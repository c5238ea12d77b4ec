"""Limits the size of a request's body and the time to send it, also for chunked bodies."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from fnmatch import translate
from functools import partial
from inspect import iscoroutine
from typing import Any, Generic, TypeVar

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trunkline.api.errors import CLOSE, ApiError, too_slow

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BodyRule:
    bytes_max: int
    timeout_s: float


class BodyGuard:
    """One rule for all paths, and exceptions by prefix of the path. A `*` in a prefix matches anything."""

    def __init__(self, app: ASGIApp, rule: BodyRule, exceptions: Mapping[str, BodyRule]):
        self.app = app
        self._rule = rule
        longest_first = sorted(exceptions.items(), key=lambda item: len(item[0]), reverse=True)
        self._exceptions = [(re.compile(translate(f"{prefix}*")), rule) for prefix, rule in longest_first]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        rule = self._rule_for(scope["path"])
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced) > rule.bytes_max:
            raise _too_large(rule)
        await self.app(scope, TimedBody(receive, rule), send)

    def _rule_for(self, path: str) -> BodyRule:
        return next((rule for pattern, rule in self._exceptions if pattern.match(path)), self._rule)


class TimedBody:
    """The body as it arrives. Its time runs from the first read to its last byte."""

    def __init__(self, receive: Receive, rule: BodyRule):
        self._receive = receive
        self._rule = rule
        self._size = 0
        self._deadline_s: float | None = None
        self._is_whole = False

    async def __call__(self) -> Message:
        if self._is_whole:
            return await self._receive()
        if self._deadline_s is None:
            self._deadline_s = asyncio.get_running_loop().time() + self._rule.timeout_s
        left_s = self._deadline_s - asyncio.get_running_loop().time()
        try:
            message = await timeout_if_blocking(left_s, self._receive)
        except TimeoutError:
            raise too_slow(self._rule.timeout_s) from None
        self._count(message)
        return message

    def _count(self, message: Message) -> None:
        self._size += len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        if self._size > self._rule.bytes_max:
            raise _too_large(self._rule)


def _too_large(rule: BodyRule) -> ApiError:
    message = f"The body is too large. At most {rule.bytes_max} bytes are taken here."
    return ApiError(413, "body_too_large", message, headers=CLOSE)


async def timeout_if_blocking(timeout_s: float, start: Callable[[], Awaitable[T]]) -> T:
    """The result of `start()`, or TimeoutError.

    A small body arrives with the head of its request, so reading it does not block. A timer for a read that does not
    block costs 2 µs: the timer is set only when the read blocks."""
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
