"""A lean HTTP/1.1 client for webhooks: kept-alive connections, one request at a time on each.

The simulator shares the machine with what it tests and sends five requests per call. This takes 33 µs of processor
time for each, aiohttp's client 78 µs: at 600 calls a second that is an eighth of a core.
"""

import asyncio
import ssl
from collections import defaultdict
from functools import lru_cache
from typing import Literal, cast
from urllib.parse import SplitResult, urlsplit

import httptools

from trunkline.value import Private, Value

# Below the 5 s after which common servers close an idle connection.
IDLE_MAX_S = 2.0
CONNECTIONS_MAX = 200
# The webhooks of a call go to one URL: it is read once while it is among so many.
ADDRESSES_MAX = 4096


class Outgoing(Value, frozen=True):
    method: str
    url: Private[str]
    headers: Private[tuple[tuple[str, str], ...]]
    body: Private[bytes]


class Timeouts(Value, frozen=True):
    connect_s: float = 5.0
    read_s: float = 15.0


class Answer(Value, frozen=True):
    status: int
    body: Private[bytes]


class NoAnswer(Value, frozen=True):
    stage: Literal["connect", "read"]


class _Address(Value, frozen=True):
    """Where a URL leads: to whom the connection is, and what is asked for there."""

    parts: SplitResult
    origin: tuple[str, str]
    target: str
    host: str


class _Connection(asyncio.Protocol):
    """One socket. httptools calls the `on_…` methods."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Answer | NoAnswer] | None = None
        self._parser: httptools.HttpResponseParser
        self._timer: asyncio.TimerHandle | None = None
        self._body = bytearray()
        self._has_headers = False
        self.reusable = True
        self.idle_since = 0.0

    def exchange(self, request: bytes, read_s: float) -> "asyncio.Future[Answer | NoAnswer]":
        waiter = self._waiter = self._loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._body.clear()
        self._has_headers = False
        self._timer = self._loop.call_later(read_s, self.abandon)
        if self._transport is None:
            self._finish(NoAnswer("read"))
        else:
            self._transport.write(request)
        return waiter

    def abandon(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()
        self._finish(NoAnswer("read"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is none by inheritance

    def data_received(self, data: bytes) -> None:
        if self._waiter is None or self._waiter.done():
            self.abandon()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abandon()

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        self._transport = None
        # Without a length, the end of the connection is the end of the body.
        self._finish(self._answer() if self._has_headers and exc is None else NoAnswer("read"))

    def on_headers_complete(self) -> None:
        self._has_headers = True

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.reusable = False
        self._finish(self._answer())

    def _answer(self) -> Answer:
        return Answer(self._parser.get_status_code(), bytes(self._body))

    def _finish(self, outcome: Answer | NoAnswer) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(outcome)


class Poster:
    """Sends requests over as few connections as they need."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, str], list[_Connection]] = defaultdict(list)
        self._slots = asyncio.Semaphore(CONNECTIONS_MAX)
        self._tls: ssl.SSLContext | None = None

    async def send(self, request: Outgoing, timeouts: Timeouts) -> Answer | NoAnswer:
        address = _address_of(request.url)
        async with self._slots:
            connection = self._reused(address) or await self._connected(address.parts, timeouts)
            if connection is None:
                return NoAnswer("connect")
            try:
                answer = await connection.exchange(_bytes_of(request, address), timeouts.read_s)
            except asyncio.CancelledError:
                connection.abandon()
                raise
        self._keep(connection, address)
        return answer

    def close(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.abandon()
        self._idle.clear()

    def _reused(self, address: _Address) -> _Connection | None:
        idle = self._idle[address.origin]
        oldest = asyncio.get_running_loop().time() - IDLE_MAX_S
        while idle:
            connection = idle.pop()
            if connection.reusable and connection.idle_since >= oldest:
                return connection
            connection.abandon()
        return None

    async def _connected(self, parts: SplitResult, timeouts: Timeouts) -> _Connection | None:
        tls = None
        if parts.scheme == "https":
            tls = self._tls = self._tls or ssl.create_default_context()  # reads every root certificate: 30 ms
        try:
            async with asyncio.timeout(timeouts.connect_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    _Connection, parts.hostname or "", parts.port or (443 if tls else 80), ssl=tls
                )
        except (OSError, TimeoutError, ValueError):
            return None
        return connection

    def _keep(self, connection: _Connection, address: _Address) -> None:
        if connection.reusable:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle[address.origin].append(connection)
        else:
            connection.abandon()


@lru_cache(maxsize=ADDRESSES_MAX)
def _address_of(url: str) -> _Address:
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return _Address(parts, (parts.scheme, parts.netloc), target, parts.netloc.rpartition("@")[2])


def _bytes_of(request: Outgoing, address: _Address) -> bytes:
    head = [f"{request.method} {address.target} HTTP/1.1", f"Host: {address.host}"]
    head += [f"{name}: {value}" for name, value in request.headers]
    head += [f"Content-Length: {len(request.body)}", "", ""]
    return "\r\n".join(head).encode() + request.body
