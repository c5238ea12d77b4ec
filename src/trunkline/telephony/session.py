"""The HTTP session of one carrier account: what is sent is sent once, and we know whether it left.

- aiohttp by itself sends a GET again when a kept-alive connection turns out closed, a POST never. A place is
  a POST.
- A request passes one gate when its connection is open and none of its bytes is written. Failing before the
  gate is "not sent"; after it nothing is certain. The gate also stops a dial that connected too late.
- The kernel may hold our bytes and deliver them after we gave up. TCP_USER_TIMEOUT bounds how long it tries,
  and closing with a linger of 0 throws the rest away.
"""

import socket
import struct
from base64 import b64encode
from collections.abc import Mapping
from types import SimpleNamespace

import aiohttp
from aiohttp.client_exceptions import ClientError

from trunkline.clock import Clock, SystemClock
from trunkline.telephony.exchange import Exchange, Lost, NotSent, Reply

_LINGER_0_S = struct.pack("ii", 1, 0)


class _TooLateError(Exception):
    """The connection was ready after the order's deadline."""


class _Gate:
    """Passed when the first byte is about to be written."""

    __slots__ = ("_clock", "_send_by_boottime_s", "passed")

    def __init__(self, clock: Clock, send_by_boottime_s: float | None) -> None:
        self.passed = False
        self._clock = clock
        self._send_by_boottime_s = send_by_boottime_s

    def enter(self) -> None:
        if self._send_by_boottime_s is not None and self._clock.boottime_s() > self._send_by_boottime_s:
            raise _TooLateError
        self.passed = True


def basic(username: str, password: str) -> str:
    """The value of an Authorization header."""
    return "Basic " + b64encode(f"{username}:{password}".encode()).decode()


class CarrierSession:
    """Opened at first use, inside the running loop; shared by everything that talks to one account."""

    def __init__(
        self,
        # None for hosts that are the carrier's but must not see our credentials.
        authorization: str | None,
        *,
        connect_timeout_s: float = 3.0,
        total_timeout_s: float = 10.0,
        user_timeout_s: float = 5.0,
        # Below the 5 s after which common servers close an idle connection: never dial on a closing one.
        keepalive_s: float = 4.0,
        reply_bytes_max: int = 4 * 1024 * 1024,
        clock: Clock | None = None,
    ) -> None:
        self._headers = {"Authorization": authorization} if authorization else {}
        self._timeout = aiohttp.ClientTimeout(
            total=total_timeout_s, connect=connect_timeout_s, sock_connect=connect_timeout_s
        )
        self._user_timeout_ms = int(user_timeout_s * 1000)
        self._keepalive_s = keepalive_s
        self._reply_bytes_max = reply_bytes_max
        self._clock = clock or SystemClock()
        self._session: aiohttp.ClientSession | None = None

    async def post(
        self, url: str, content_type: str, body: bytes, send_by_boottime_s: float | None = None
    ) -> Exchange:
        headers = {"Content-Type": content_type}
        return await self._exchange("POST", url, headers, body=body, send_by_boottime_s=send_by_boottime_s)

    async def get(self, url: str, query: Mapping[str, str] | None = None) -> Exchange:
        return await self._exchange("GET", url, {}, query=query)

    async def delete(self, url: str) -> Exchange:
        return await self._exchange("DELETE", url, {})

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _exchange(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        *,
        body: bytes | None = None,
        query: Mapping[str, str] | None = None,
        send_by_boottime_s: float | None = None,
    ) -> Exchange:
        gate = _Gate(self._clock, send_by_boottime_s)
        try:
            async with self._opened().request(
                method,
                url,
                data=body,
                params=query,
                headers=headers,
                allow_redirects=False,
                trace_request_ctx=gate,
            ) as response:
                return await self._read(response)
        except _TooLateError:
            return NotSent("not_sent_in_time", "connected after the deadline")
        except (ClientError, OSError, TimeoutError, ValueError) as error:
            # The class alone: messages of HTTP clients quote URLs, and ours are secrets.
            name = type(error).__name__
            return Lost(name) if gate.passed else NotSent("not_connected", name)

    async def _read(self, response: aiohttp.ClientResponse) -> Exchange:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > self._reply_bytes_max:
                return Lost("reply too long")
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Reply(response.status, headers, bytes(body))

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            trace = aiohttp.TraceConfig()
            trace.on_request_headers_sent.append(_pass_gate)
            connector = aiohttp.TCPConnector(
                limit=0, keepalive_timeout=self._keepalive_s, socket_factory=self._socket
            )
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                connector=connector,
                timeout=self._timeout,
                trace_configs=[trace],
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    def _socket(self, address: aiohttp.connector.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        sock = socket.socket(family, kind, protocol)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; elsewhere the total time-out alone bounds it
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._user_timeout_ms)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0_S)
        return sock


async def _pass_gate(
    _session: aiohttp.ClientSession, context: SimpleNamespace, _params: aiohttp.TraceRequestHeadersSentParams
) -> None:
    # aiohttp calls this while the headers are still in its own buffer; raising closes the connection unused.
    gate: _Gate = context.trace_request_ctx
    gate.enter()
