"""Limits how long a client may take to read a streamed response: each chunk has its timeout.

A chunk that the client does not read keeps the request and its database connection open. A response of one chunk is
handed to the kernel at once, so it needs no timeout.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trunkline.telemetry import get_logger

log = get_logger(__name__)


class NotTaken(OSError):
    """The client does not read the response."""


class WriteGuard:
    def __init__(self, app: ASGIApp, timeout_s: float):
        self.app = app
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            await self.app(scope, receive, _Pieces(send, self._timeout_s))
        except NotTaken:
            log.warning("http.answer_not_taken", path=scope["path"])


class _Pieces:
    def __init__(self, send: Send, timeout_s: float):
        self._send = send
        self._timeout_s = timeout_s
        self._is_begun = False

    async def __call__(self, message: Message) -> None:
        if not self._is_begun:
            self._is_begun = message.get("more_body", False)
            await self._send(message)
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send(message)
        except TimeoutError:
            raise NotTaken from None
