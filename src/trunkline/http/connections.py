"""HTTP/1.1 connections by which a request is sent once, and the sender knows whether a byte of it left.

A connection carries one request at a time, each in one write. The write is the boundary. Before it nothing has left and
the caller may still cancel; after it nothing is certain until the whole reply is here. So there is one place in which a
request can leave, and no retry behind it. httptools parses the reply: it calls the `on_…` methods.

An origin is scheme, host and port, with its open connections. The last used connection is used first, so that the
others become idle and close. A DNS lookup serves all connects within ten seconds; addresses are tried by RFC 8305
(aiohappyeyeballs), so that a broken IPv6 route costs 250 ms and not the whole connect timeout.
"""

import asyncio
import re
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Literal, cast
from urllib.parse import quote, urlsplit

import aiohappyeyeballs
import httptools
from aiohappyeyeballs import AddrInfoType

from trunkline.value import Private, Value

# Headers and body together. The largest replies of carriers are pages of calls, some hundred kilobytes.
REPLY_BYTES_MAX = 4 * 1024 * 1024
_LENGTHS = frozenset({"content-length", "transfer-encoding"})
NAMES_KEPT_S = 10.0
NEXT_ADDRESS_S = 0.25
# Characters that RFC 3986 allows in a URL.
_MARKS = "-._~:[]@!$&'()*+,;=%"
_URL = re.compile(
    rf"(https?://[\w{re.escape(_MARKS)}]+)([\w{re.escape(_MARKS)}/?]*)(?:#.*)?", re.ASCII | re.IGNORECASE
)


class HttpReply(Value, frozen=True):
    """The server, or something in front of it, answered in full."""

    status: int
    headers: Private[Mapping[str, str]]
    body: Private[bytes]


class NotSent(Value, frozen=True):
    """Failed while no byte of the request had left."""

    reason: Literal["not_connected", "not_sent_in_time"]
    detail: str


class ReplyLost(Value, frozen=True):
    """Failed after bytes were written: the server may have read them."""

    reason: str


Exchange = HttpReply | NotSent | ReplyLost


def why(exchange: Exchange) -> str:
    """A description without URL and body."""
    return f"status {exchange.status}" if isinstance(exchange, HttpReply) else exchange.reason


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


def split(url: str) -> tuple[str, str]:
    """The origin, and the request target. A space or a line end would end the first line of a request."""
    match = _URL.fullmatch(url) or _URL.fullmatch(quote(url, safe=_MARKS + "/?#"))
    if match is None:
        raise ValueError("not the URL of an HTTP server")
    origin, target = match.groups()
    return origin, target if target.startswith("/") else f"/{target}"


class Origin:
    """Made and used inside a running loop."""

    def __init__(
        self,
        url: str,
        *,
        idle_max_s: float,
        reply_bytes_max: int = REPLY_BYTES_MAX,
        prepare: Callable[[socket.socket], None] | None = None,
    ) -> None:
        parts = urlsplit(url)
        if not parts.hostname:
            raise ValueError("a URL without a host")
        self.host = parts.netloc.rpartition("@")[2]
        self._host, self._is_tls = parts.hostname, parts.scheme == "https"
        default_port = 443 if self._is_tls else 80
        self._port = default_port if parts.port is None else parts.port
        self._idle_max_s = idle_max_s
        self._made = partial(Connection, reply_bytes_max)
        self._prepare = prepare
        self._loop = asyncio.get_running_loop()
        self._idle: deque[Connection] = deque()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._lookup: asyncio.Task[Sequence[AddrInfoType]] | None = None
        self._lookup_until_s = 0.0
        self._is_closed = False

    def reused(self) -> Connection | None:
        """The connection that was used last, if one is open."""
        oldest_s = self._loop.time() - self._idle_max_s
        while self._idle:
            connection = self._idle.pop()
            if (
                connection.is_free
                and connection.idle_since_s >= oldest_s
                and connection.has_no_pending_bytes()
            ):
                return connection
            connection.close()
        return None

    async def connected(self, timeout_s: float) -> Connection:
        """A new connection. Raises the error of the connect: nothing was sent."""
        try:
            async with asyncio.timeout(timeout_s):
                sock = await aiohappyeyeballs.start_connection(
                    await self._addresses(),
                    happy_eyeballs_delay=NEXT_ADDRESS_S,
                    interleave=1,
                    loop=self._loop,
                    socket_factory=self._socket,
                )
                _, connection = await self._loop.create_connection(
                    self._made,
                    sock=sock,
                    ssl=tls() if self._is_tls else None,
                    server_hostname=self._host if self._is_tls else None,
                )
        except OSError:  # a time-out too
            self._lookup_until_s = 0.0  # it may have moved
            raise
        return connection

    def put_back(self, connection: Connection) -> None:
        """Take back a connection of `reused` or `connected`. One with an unfinished exchange is closed."""
        if self._is_closed or not connection.is_free:
            connection.close()
            return
        connection.idle_since_s = self._loop.time()
        self._idle.append(connection)
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(self._idle_max_s, self._sweep)

    def close(self) -> None:
        """Running requests finish. A lookup is not cancelled, because requests may wait for it."""
        self._is_closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        while self._idle:
            self._idle.pop().close()

    def _sweep(self) -> None:
        self._sweep_timer = None
        oldest_s = self._loop.time() - self._idle_max_s
        while self._idle and self._idle[0].idle_since_s <= oldest_s:
            self._idle.popleft().close()
        if self._idle:
            due_s = self._idle[0].idle_since_s + self._idle_max_s
            self._sweep_timer = self._loop.call_at(due_s, self._sweep)

    def _socket(self, address: AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        sock = socket.socket(family, kind, protocol)
        if self._prepare is not None:
            self._prepare(sock)
        return sock

    async def _addresses(self) -> Sequence[AddrInfoType]:
        lookup = self._lookup
        if lookup is None or (lookup.done() and self._loop.time() >= self._lookup_until_s):
            lookup = self._lookup = self._loop.create_task(self._looked_up())
            lookup.add_done_callback(_consume_exception)
        return await asyncio.shield(lookup)

    async def _looked_up(self) -> Sequence[AddrInfoType]:
        found = await look_up(self._host, self._port)
        self._lookup_until_s = self._loop.time() + NAMES_KEPT_S
        return found


async def look_up(host: str, port: int) -> Sequence[AddrInfoType]:
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


def _consume_exception(lookup: "asyncio.Task[Sequence[AddrInfoType]]") -> None:
    """Its callers may be gone; asyncio would log the exception as never retrieved."""
    if not lookup.cancelled():
        lookup.exception()


@cache
def tls() -> ssl.SSLContext:
    """One for all connections: reading the root certificates takes 30 ms."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
