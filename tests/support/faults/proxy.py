"""A TCP proxy that does to connections what networks do.

    async with TcpProxy.before(redis_url) as proxy:
        client = connect(proxy.url)
        proxy.swallow_reply(after=b"INCR")
        …the command takes effect, and its caller never learns of it

A fault holds for open connections too, from the moment it is set until `heal`. Bytes are never lost out of
the middle of a stream: what a black hole holds back arrives late once healed, as after a real partition.
"""

import asyncio
import socket
import struct
from collections import deque
from types import TracebackType
from urllib.parse import urlsplit

HOST = "127.0.0.1"
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
END_OF_STREAM = b""


class Way:
    """One of the two directions, for all connections."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.is_open = True
        self.seen = asyncio.Event()


class TcpProxy:
    def __init__(self, host: str, port: int, *, url: str = "") -> None:
        self.upstream = (host, port)
        self.port = 0
        self.to_server, self.to_client = Way(), Way()
        self.ends: set[End] = set()
        self._upstream_url = url
        self._listener: asyncio.Server | None = None
        self._connected, self._swallowed = asyncio.Event(), asyncio.Event()
        self._swallow_after: bytes | None = None

    @classmethod
    def before(cls, url: str) -> "TcpProxy":
        """In front of the server that this URL names."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        return cls(parts.hostname, parts.port, url=url)

    @property
    def url(self) -> str:
        """The server's URL, by way of this proxy."""
        parts = urlsplit(self._upstream_url)
        secret, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{secret}{at}{HOST}:{self.port}").geturl()

    async def __aenter__(self) -> "TcpProxy":
        await self.accept()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.refuse()
        self.cut()
        await asyncio.sleep(0)  # sockets are closed in the next turn of the loop

    # Faults

    def delay(self, *, to_server_s: float = 0, to_client_s: float = 0) -> None:
        """Everything arrives this much after it was sent."""
        self._forget()
        self.to_server.delay_s, self.to_client.delay_s = to_server_s, to_client_s
        self._forward_all()

    def black_hole(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Connections are accepted, and nothing passes in these directions."""
        self._forget()
        self.to_server.is_open, self.to_client.is_open = not to_server, not to_client
        self._forward_all()

    def swallow_reply(self, *, after: bytes = b"") -> None:
        """Pass the next request that holds `after`, drop the server's next bytes to it, and cut with RST.

        Name a word of the request if the client may first greet the server on a new connection.
        """
        self._forget()
        self._swallow_after = after

    def refuse(self) -> None:
        """New connections are refused; open ones go on."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def accept(self) -> None:
        """Listen, at the same port as before."""
        if self._listener is None:
            loop = asyncio.get_running_loop()
            self._listener = await loop.create_server(lambda: End(self, self.to_server), HOST, self.port)
            self.port = self._listener.sockets[0].getsockname()[1]

    def cut(self, *, reset: bool = True) -> None:
        """End the open connections: with RST, as when a machine dies, or with FIN, as when a server stops."""
        for end in list(self.ends):
            end.reset() if reset else end.hang_up()

    async def heal(self) -> None:
        """No fault any more; what was held back arrives."""
        self.delay()
        self.black_hole(to_server=False, to_client=False)
        self._swallow_after = None
        await self.accept()

    # Signals: each tells of what happened since the last fault was set

    async def saw_connection(self) -> None:
        await self._connected.wait()

    async def saw_request(self) -> None:
        """A client has sent something, whether or not it was passed on."""
        await self.to_server.seen.wait()

    async def saw_reply(self) -> None:
        """The server has sent something, whether or not it was passed on."""
        await self.to_client.seen.wait()

    async def swallowed(self) -> None:
        """A reply is gone: its request has taken effect, and its connection is cut."""
        await self._swallowed.wait()

    # For the ends

    def note_connected(self) -> None:
        self._connected.set()

    def note_swallowed(self) -> None:
        self._swallowed.set()

    def wants_swallowed(self, request: bytes) -> bool:
        """True once, for the request that `swallow_reply` waits for."""
        if self._swallow_after is None or self._swallow_after not in request:
            return False
        self._swallow_after = None
        return True

    def _forward_all(self) -> None:
        for end in list(self.ends):
            end.forward()

    def _forget(self) -> None:
        for event in (self._connected, self._swallowed, self.to_server.seen, self.to_client.seen):
            event.clear()


class End(asyncio.Protocol):
    """One end of a connection: what it receives leaves at the other, in order and when its way is open."""

    def __init__(self, proxy: TcpProxy, way: Way, other: "End | None" = None) -> None:
        self._proxy = proxy
        self._way = way
        self._other = other
        self._transport: asyncio.Transport | None = None
        self._queue: deque[tuple[float, bytes]] = deque()
        self._swallowing = False
        self._said_end = self._heard_end = self._is_cut = False
        self._dialling: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._proxy.ends.add(self)
        if self._other is None:
            self._proxy.note_connected()
            self._dialling = asyncio.create_task(self._dial())
        else:
            self._other._other = self
            self._other.forward()

    async def _dial(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(self._twin, *self._proxy.upstream)
        except OSError:
            self._abort()

    def _twin(self) -> "End":
        return End(self._proxy, self._proxy.to_client, self)

    def data_received(self, data: bytes) -> None:
        self._way.seen.set()
        if self._swallowing and not self._is_cut:
            self.reset()
            self._proxy.note_swallowed()
        else:
            self._enqueue(data)

    def eof_received(self) -> bool:
        """True keeps our own half open: the other side may still have something to say."""
        self._heard_end = True
        self._enqueue(END_OF_STREAM)
        self._close_when_done()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._proxy.ends.discard(self)
        if error is not None and self._other is not None:
            self._other.reset()

    def forward(self) -> None:
        """Pass on what is due. Called again when more is due, or the way is open again."""
        loop = asyncio.get_running_loop()
        while self._queue and self._way.is_open and self._other is not None:
            came_at, data = self._queue[0]
            due_at = came_at + self._way.delay_s
            if due_at > loop.time():
                loop.call_at(due_at, self.forward)
                return
            self._queue.popleft()
            self._other.emit(data)

    def emit(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if data == END_OF_STREAM:
            self.finish()
            return
        if self._way is self._proxy.to_client:
            self._swallowing = self._swallowing or self._proxy.wants_swallowed(data)
        transport.write(data)

    def finish(self) -> None:
        """Send FIN, and close once the peer has sent its own."""
        if self._transport is not None and not self._transport.is_closing() and not self._said_end:
            self._said_end = True
            try:
                self._transport.write_eof()
            except OSError:
                self.reset()  # the peer has reset it, and the loop has not yet told us
        self._close_when_done()

    def hang_up(self) -> None:
        """End with FIN now, whatever was still on its way."""
        self._is_cut = True
        self._queue.clear()
        self.finish()

    def reset(self) -> None:
        """End with RST, at both ends."""
        if self._dialling is not None:
            self._dialling.cancel()
        self._abort()
        if self._other is not None:
            self._other._abort()

    def _abort(self) -> None:
        self._is_cut = True
        self._queue.clear()
        if self._transport is not None and not self._transport.is_closing():
            connection: socket.socket = self._transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            self._transport.abort()

    def _close_when_done(self) -> None:
        if self._said_end and self._heard_end and self._transport is not None:
            self._transport.close()

    def _enqueue(self, data: bytes) -> None:
        if not self._is_cut:
            self._queue.append((asyncio.get_running_loop().time(), data))
            self.forward()
