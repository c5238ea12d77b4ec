"""An HTTP origin: scheme, host and port, with its open connections.

The last used connection is used first, so that the others become idle and close. A DNS lookup serves all connects
within ten seconds; addresses are tried by RFC 8305 (aiohappyeyeballs), so that a broken IPv6 route costs 250 ms and not
the whole connect timeout.
"""

import asyncio
import re
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from urllib.parse import quote, urlsplit

import aiohappyeyeballs
from aiohappyeyeballs import AddrInfoType

from trunkline.telephony.connection import REPLY_BYTES_MAX, Connection

NAMES_KEPT_S = 10.0
NEXT_ADDRESS_S = 0.25
# Characters that RFC 3986 allows in a URL.
_MARKS = "-._~:[]@!$&'()*+,;=%"
_URL = re.compile(
    rf"(https?://[\w{re.escape(_MARKS)}]+)([\w{re.escape(_MARKS)}/?]*)(?:#.*)?", re.ASCII | re.IGNORECASE
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
