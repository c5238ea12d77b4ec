"""Live pages: calls the page's own function every two seconds, and sends its live part when it has changed.

A stream ends with its session, with the process, and when the browser does not read it. Their number is limited, so
that many open pages cannot starve the API.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from starlette.responses import PlainTextResponse, Response, StreamingResponse

from trunkline.console.rendering import HEADERS

EVERY_S = 2.0
STREAMS_MAX = 100
# A browser that lost the stream reconnects after this long.
RETRY_MS = 3000

# Renders the live part of a page; None: the session has ended.
Render = Callable[[], Awaitable[str | None]]


class Streams:
    def __init__(self) -> None:
        self._open = 0
        self._closing = asyncio.Event()

    def close(self) -> None:
        """The process stops: end all streams."""
        self._closing.set()

    def answer(self, render: Render) -> Response:
        if self._open >= STREAMS_MAX or self._closing.is_set():
            return PlainTextResponse("Too many live pages are open.", 503, headers={"Retry-After": "30"})
        return StreamingResponse(self._events(render), media_type="text/event-stream", headers=HEADERS)

    async def _events(self, render: Render) -> AsyncIterator[str]:
        self._open += 1
        try:
            yield f"retry: {RETRY_MS}\n\n"
            last = ""
            while not self._closing.is_set():
                html = await render()
                if html is None:
                    yield "event: ended\ndata: signed out\n\n"
                    return
                yield event("live", html) if html != last else ": still here\n\n"
                last = html
                with suppress(TimeoutError):
                    async with asyncio.timeout(EVERY_S):
                        await self._closing.wait()
        finally:
            self._open -= 1


def event(name: str, text: str) -> str:
    """Every line of the text becomes a data line: the format has no other line breaks."""
    lines = "".join(f"data: {line}\n" for line in text.splitlines())
    return f"event: {name}\n{lines}\n"
