"""The other end of a carrier, to try one without the platform: receives webhooks, answers calls, serves streams."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

from aiohttp import WSMsgType, web

from trunkline.telephony.carrier import Document, WebhookRequest
from trunkline.telephony.twilio import TwilioDocuments


class Receiver:
    """Stores the requests that it received, in order of arrival, with the URL as the carrier has it."""

    def __init__(self) -> None:
        self.requests: list[WebhookRequest] = []
        self.stream_messages: list[dict[str, Any]] = []
        self.stream_headers: dict[str, str] = {}
        self.stream_query: dict[str, str] = {}
        # The document of an answered call. By default it connects to the receiver's own stream until a hang-up.
        self.document: Callable[[WebhookRequest], Document] = lambda _: TwilioDocuments().answer_document(
            self.stream_url, {}
        )
        self.status = 204
        # The agent hangs up after this many messages.
        self.hang_up_after: int | None = None
        self.close_code = 1000
        self._changed = asyncio.Condition()
        self._app = web.Application()
        self._app.add_routes(
            [
                web.route("*", "/webhooks/{carrier}/answer", self._answer),
                web.route("*", "/webhooks/{carrier}/resume", self._answer),
                web.route("*", "/webhooks/{carrier}/inbound", self._answer),
                web.route("*", "/webhooks/{carrier}/{kind}", self._status),
                web.get("/stream", self._stream),
            ]
        )
        self._runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=0.1)
        self.port = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def stream_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/stream"

    async def until(self, seen: Callable[["Receiver"], bool], timeout_s: float = 10.0) -> None:
        """Wait for a condition, checked whenever a request arrives."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(lambda: seen(self))

    async def __aenter__(self) -> "Receiver":
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _status(self, request: web.Request) -> web.Response:
        await self._record(request)
        return web.Response(status=self.status)

    async def _answer(self, request: web.Request) -> web.Response:
        document = self.document(await self._record(request))
        return web.Response(text=document.body, content_type=document.content_type, status=document.status)

    async def _record(self, request: web.Request) -> WebhookRequest:
        headers = {name.lower(): value for name, value in request.headers.items()}
        url = f"{self.base_url}{request.path_qs}"
        received = WebhookRequest(request.method, url, headers, await request.read())
        self.requests.append(received)
        await self._notify()
        return received

    async def _stream(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.stream_headers = {name.lower(): value for name, value in request.headers.items()}
        self.stream_query = dict(request.query)
        heard = 0
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                self.stream_messages.append(message.json())
                heard += 1
                await self._notify()
            if heard == self.hang_up_after:
                break
        await socket.close(code=self.close_code)
        return socket

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
