"""HTTP/1.1 connections by which a request is sent once, and the sender knows whether a byte of it left.

A connection carries one request at a time, each in one write. The write is the boundary. Before it nothing has left and
the caller may still cancel; after it nothing is certain until the whole reply is here. So there is one place in which a
request can leave, and no retry behind it. httptools parses the reply: it calls the `on_…` methods.

An origin is scheme, host and port, with its open connections. The last used connection is used first, so that the
others become idle and close. A DNS lookup serves all connects within ten seconds; addresses are tried by RFC 8305
(aiohappyeyeballs), so that a broken IPv6 route costs 250 ms and not the whole connect timeout.

The session of a carrier account sends over them:

- A request leaves in one write, on a connection that is open. Failing before the write is "not sent"; after it nothing
  is certain. A dial that connected too late is stopped there.
- A POST is never sent again. Anything else is, once, if the kept-alive connection turns out to be closed.
- The kernel may buffer the bytes and deliver them after the timeout. TCP_USER_TIMEOUT bounds how long it tries, and
  closing with a linger of 0 discards the rest.
"""

import asyncio
import math
import re
import select
import socket
import ssl
import struct
from base64 import b64encode
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Literal, cast
from urllib.parse import quote, urlencode, urlsplit

import aiohappyeyeballs
import httptools
from aiohappyeyeballs import AddrInfoType

from trunkline.clock import Clock, SystemClock
from trunkline.value import Private, Value

# Headers and body together. The largest replies of carriers are pages of calls, some hundred kilobytes.
REPLY_BYTES_MAX = 4 * 1024 * 1024
_LENGTHS = frozenset({"content-length", "transfer-encoding"})
NAMES_KEPT_S = 10.0
NEXT_ADDRESS_S = 0.25
_LINGER_0_S = struct.pack("ii", 1, 0)
# An account uses one or two hosts. Beyond this, which only redirecting replies could cause, all are dropped.
_ORIGINS_MAX = 64
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
        self._waiter: asyncio.Future[HttpReply | ReplyLost] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self.on_body = self._body.extend
        self._parser = httptools.HttpResponseParser(self)
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
        self._timer = self._loop.call_at(until_s, self.close, "no reply in time")
        self._transport.write(request)
        return waiter

    def close(self, reason: str = "connection closed") -> None:
        self._keeps_alive = False
        if self._transport is not None:
            self._transport.abort()
        self._finish(ReplyLost(reason))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is none by inheritance
        self._kernel.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        self._bytes_received += len(data)
        if self._waiter is None:
            self.close()  # bytes without a request
        elif self._bytes_received > self._reply_bytes_max:
            self.close("reply too long")
        else:
            try:
                self._parser.feed_data(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade):
                self.close("reply is not HTTP/1")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.closed_before_reply = self._waiter is not None and self._bytes_received == 0
        # Without a length, the end of the connection is the end of the body.
        is_whole = exc is None and self._has_headers and not _LENGTHS & self._headers.keys()
        self._finish(None if is_whole else ReplyLost("connection closed"))

    def on_message_begin(self) -> None:
        self._headers = {}  # a new one: the last belongs to whoever has that reply
        self._body.clear()
        if self._waiter is None:
            self._keeps_alive = False  # more bytes than the reply: the next one would be misread

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._has_headers = self._parser.get_status_code() >= 200

    def on_message_complete(self) -> None:
        if self._has_headers:  # "100 Continue" and the like come before the reply
            self._keeps_alive = self._keeps_alive and self._parser.should_keep_alive()
            self._finish(None)

    def _finish(self, lost: ReplyLost | None) -> None:
        """None: the whole reply is here."""
        waiter, self._waiter = self._waiter, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if waiter is not None and not waiter.done():
            waiter.set_result(
                lost or HttpReply(self._parser.get_status_code(), self._headers, bytes(self._body))
            )


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
        # How long the kernel goes on trying to deliver; what is left when a connection closes is discarded then.
        user_timeout_s: float | None = None,
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
        self._user_timeout_s = user_timeout_s
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
        lookup = self._lookup
        if lookup is None or (lookup.done() and self._loop.time() >= self._lookup_until_s):
            lookup = self._lookup = self._loop.create_task(look_up(self._host, self._port))
            lookup.add_done_callback(_consume_exception)
            self._lookup_until_s = self._loop.time() + NAMES_KEPT_S
        try:
            async with asyncio.timeout(timeout_s):
                sock = await aiohappyeyeballs.start_connection(
                    await asyncio.shield(lookup),
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
        if self._user_timeout_s is not None:
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; elsewhere the total time-out alone bounds it
                timeout_ms = int(self._user_timeout_s * 1000)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0_S)
        return sock


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


def basic(username: str, password: str) -> str:
    """The value of an Authorization header."""
    return "Basic " + b64encode(f"{username}:{password}".encode()).decode()


class CarrierSession:
    """Connects at first use, inside the running loop; shared by everything that talks to one account."""

    def __init__(
        self,
        # None for hosts of the carrier that must not get the credentials.
        authorization: str | None,
        *,
        connect_timeout_s: float = 3.0,
        total_timeout_s: float = 10.0,
        user_timeout_s: float = 5.0,
        # Below the 5 s after which common servers close an idle connection: never dial on a closing one.
        keepalive_s: float = 4.0,
        reply_bytes_max: int = REPLY_BYTES_MAX,
        clock: Clock | None = None,
    ) -> None:
        # Replies are not decompressed, so none may be compressed.
        self._head = "Accept: */*\r\nAccept-Encoding: identity\r\nUser-Agent: trunkline\r\n"
        if authorization:
            self._head += f"Authorization: {authorization}\r\n"
        self._connect_timeout_s = connect_timeout_s
        self._total_timeout_s = total_timeout_s
        self._origin = partial(
            Origin, idle_max_s=keepalive_s, reply_bytes_max=reply_bytes_max, user_timeout_s=user_timeout_s
        )
        self._clock = clock or SystemClock()
        self._origins: dict[str, Origin] = {}

    async def post(
        self, url: str, content_type: str, body: bytes, send_by_boottime_s: float = math.inf
    ) -> Exchange:
        head = f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        return await self._exchange("POST", url, head, body, send_by_boottime_s)

    async def get(self, url: str, query: Mapping[str, str] | None = None) -> Exchange:
        return await self._exchange("GET", url, query=query)

    async def delete(self, url: str) -> Exchange:
        return await self._exchange("DELETE", url)

    async def aclose(self) -> None:
        """Idle connections end now, those in use with their requests."""
        for origin in self._origins.values():
            origin.close()
        self._origins.clear()

    async def _exchange(
        self,
        method: str,
        url: str,
        head: str = "",
        body: bytes = b"",
        send_by_boottime_s: float = math.inf,
        query: Mapping[str, str] | None = None,
    ) -> Exchange:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._total_timeout_s
        try:
            name, target = split(f"{url}{'&' if '?' in url else '?'}{urlencode(query)}" if query else url)
            origin = self._origins.get(name)
            if origin is None:
                if len(self._origins) >= _ORIGINS_MAX:
                    await self.aclose()
                origin = self._origins[name] = self._origin(name)
        except ValueError as error:
            return NotSent("not_connected", type(error).__name__)
        first_lines = f"{method} {target} HTTP/1.1\r\nHost: {origin.host}\r\n"
        content = f"{first_lines}{self._head}{head}\r\n".encode() + body
        kept_alive = origin.reused()
        while True:
            try:
                left_s = min(self._connect_timeout_s, until_s - loop.time())
                connection = kept_alive or await origin.connected(left_s)
            except Exception as error:  # whatever it is, nothing was written
                # The class alone: a message may quote the URL, which is a secret.
                return NotSent("not_connected", type(error).__name__)
            try:
                if self._clock.boottime_s() > send_by_boottime_s:
                    return NotSent("not_sent_in_time", "connected after the deadline")
                if not connection.is_free:
                    return NotSent("not_connected", "closed at once")
                exchange = await connection.exchange(content, until_s)
            finally:
                origin.put_back(connection)
            if kept_alive is None or method == "POST" or not kept_alive.closed_before_reply:
                return exchange
            kept_alive = None  # the server had closed it: once more, on a new connection
