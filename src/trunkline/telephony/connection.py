"""One HTTP/1.1 connection: one request at a time, each in one write.

The write is the boundary. Before it nothing has left and the caller may still cancel; after it nothing is certain until
the whole reply is here. So there is one place in which a request can leave, and no retry behind it. httptools parses
the reply: it calls the `on_…` methods.
"""

import asyncio
import select
from typing import cast

import httptools

from trunkline.telephony.http_exchange import HttpReply, ReplyLost

# Headers and body together. The largest replies of carriers are pages of calls, some hundred kilobytes.
REPLY_BYTES_MAX = 4 * 1024 * 1024
_LENGTHS = frozenset({"content-length", "transfer-encoding"})


class Connection(asyncio.Protocol):
    def __init__(self, reply_bytes_max: int = REPLY_BYTES_MAX) -> None:
        self._loop = asyncio.get_running_loop()
        self._reply_bytes_max = reply_bytes_max
        self._transport: asyncio.Transport | None = None
        self._kernel = select.poll()
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[HttpReply | ReplyLost] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._bytes_received = 0
        self._has_headers = False
        self._keeps_alive = True
        # The server closed it after a request, before the first byte of a reply, as after a long idle time.
        self.closed_before_reply = False
        self.idle_since_s = 0.0

    @property
    def is_free(self) -> bool:
        """Whether it can take a request."""
        transport = self._transport
        return (
            self._keeps_alive
            and self._waiter is None
            and transport is not None
            and not transport.is_closing()
        )

    def has_no_pending_bytes(self) -> bool:
        """Whether the kernel has nothing that the loop has not read yet: an end, or unexpected bytes. Only for a free
        connection with an open socket."""
        return not self._kernel.poll(0)

    def exchange(self, request: bytes, until_s: float) -> "asyncio.Future[HttpReply | ReplyLost]":
        """Send, and wait for the reply until `until_s` of the loop's clock. Only on a free connection."""
        assert self.is_free, "one request at a time, on an open connection"
        assert self._transport is not None
        waiter = self._waiter = self._loop.create_future()
        self._bytes_received = 0
        self._has_headers = False
        self._timer = self._loop.call_at(until_s, self._give_up, "no reply in time")
        self._transport.write(request)
        return waiter

    def close(self) -> None:
        self._give_up("connection closed")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is none by inheritance
        self._kernel.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        self._bytes_received += len(data)
        if self._waiter is None:
            self.close()  # bytes without a request
        elif self._bytes_received > self._reply_bytes_max:
            self._give_up("reply too long")
        else:
            self._parse(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.closed_before_reply = self._waiter is not None and self._bytes_received == 0
        # Without a length, the end of the connection is the end of the body.
        is_whole = exc is None and self._has_headers and not _LENGTHS & self._headers.keys()
        self._finish(self._reply() if is_whole else ReplyLost("connection closed"))

    def on_message_begin(self) -> None:
        self._headers = {}  # a new one: the last belongs to whoever has that reply
        self._body.clear()
        if self._waiter is None:
            self._keeps_alive = False  # more bytes than the reply: the next one would be misread

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._has_headers = self._parser.get_status_code() >= 200

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._has_headers:  # "100 Continue" and the like come before the reply
            self._keeps_alive = self._keeps_alive and self._parser.should_keep_alive()
            self._finish(self._reply())

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._give_up("reply is not HTTP/1")

    def _reply(self) -> HttpReply:
        return HttpReply(self._parser.get_status_code(), self._headers, bytes(self._body))

    def _give_up(self, reason: str) -> None:
        self._keeps_alive = False
        if self._transport is not None:
            self._transport.abort()
        self._finish(ReplyLost(reason))

    def _finish(self, outcome: HttpReply | ReplyLost) -> None:
        waiter, self._waiter = self._waiter, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if waiter is not None and not waiter.done():
            waiter.set_result(outcome)
