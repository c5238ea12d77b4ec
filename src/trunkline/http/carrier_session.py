"""The HTTP session of one carrier account: a request is sent once, and the caller knows whether it left.

- A request leaves in one write, on a connection that is open. Failing before the write is "not sent"; after it nothing
  is certain. A dial that connected too late is stopped there.
- A POST is never sent again. Anything else is, once, if the kept-alive connection turns out to be closed.
- The kernel may buffer the bytes and deliver them after the timeout. TCP_USER_TIMEOUT bounds how long it tries, and
  closing with a linger of 0 discards the rest.
"""

import asyncio
import socket
import struct
from base64 import b64encode
from collections.abc import Mapping
from urllib.parse import urlencode

from trunkline.clock import Clock, SystemClock
from trunkline.http.connections import REPLY_BYTES_MAX, Connection, Exchange, NotSent, Origin, split

_LINGER_0_S = struct.pack("ii", 1, 0)
# An account uses one or two hosts. Beyond this, which only redirecting replies could cause, all are dropped.
_ORIGINS_MAX = 64


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
        self._user_timeout_ms = int(user_timeout_s * 1000)
        self._keepalive_s = keepalive_s
        self._reply_bytes_max = reply_bytes_max
        self._clock = clock or SystemClock()
        self._origins: dict[str, Origin] = {}

    async def post(
        self, url: str, content_type: str, body: bytes, send_by_boottime_s: float | None = None
    ) -> Exchange:
        head = f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        return await self._exchange("POST", url, head, body, send_by_boottime_s)

    async def get(self, url: str, query: Mapping[str, str] | None = None) -> Exchange:
        return await self._exchange("GET", url, query=query)

    async def delete(self, url: str) -> Exchange:
        return await self._exchange("DELETE", url)

    async def aclose(self) -> None:
        self._forget_origins()

    async def _exchange(
        self,
        method: str,
        url: str,
        head: str = "",
        body: bytes = b"",
        send_by_boottime_s: float | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Exchange:
        until_s = asyncio.get_running_loop().time() + self._total_timeout_s
        try:
            name, target = split(_with(query, url) if query else url)
            origin = self._origins.get(name) or self._origin(name)
        except ValueError as error:
            return _not_connected(error)
        first_lines = f"{method} {target} HTTP/1.1\r\nHost: {origin.host}\r\n"
        content = f"{first_lines}{self._head}{head}\r\n".encode() + body
        kept_alive = origin.reused()
        if kept_alive is not None:
            exchange = await self._over(kept_alive, origin, content, until_s, send_by_boottime_s)
            if method == "POST" or not kept_alive.closed_before_reply:
                return exchange
        try:
            left_s = until_s - asyncio.get_running_loop().time()
            connection = await origin.connected(min(self._connect_timeout_s, left_s))
        except Exception as error:  # whatever it is, nothing was written
            return _not_connected(error)
        return await self._over(connection, origin, content, until_s, send_by_boottime_s)

    async def _over(
        self,
        connection: Connection,
        origin: Origin,
        content: bytes,
        until_s: float,
        send_by_boottime_s: float | None,
    ) -> Exchange:
        try:
            if send_by_boottime_s is not None and self._clock.boottime_s() > send_by_boottime_s:
                return NotSent("not_sent_in_time", "connected after the deadline")
            if not connection.is_free:
                return NotSent("not_connected", "closed at once")
            return await connection.exchange(content, until_s)
        finally:
            origin.put_back(connection)

    def _origin(self, name: str) -> Origin:
        if len(self._origins) >= _ORIGINS_MAX:
            self._forget_origins()
        origin = self._origins[name] = Origin(
            name,
            idle_max_s=self._keepalive_s,
            reply_bytes_max=self._reply_bytes_max,
            prepare=self._prepare,
        )
        return origin

    def _forget_origins(self) -> None:
        """Their idle connections end now, those in use with their requests."""
        for origin in self._origins.values():
            origin.close()
        self._origins.clear()

    def _prepare(self, sock: socket.socket) -> None:
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; elsewhere the total time-out alone bounds it
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._user_timeout_ms)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0_S)


def _with(query: Mapping[str, str], url: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}"


def _not_connected(error: Exception) -> NotSent:
    # The class alone: a message may quote the URL, which is a secret.
    return NotSent("not_connected", type(error).__name__)
