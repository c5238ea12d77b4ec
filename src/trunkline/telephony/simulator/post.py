"""Webhooks are sent over kept-alive connections, one request at a time on each.

The simulator shares the machine with what it tests and sends five requests per call. One after the other, each takes
70 µs of processor time where aiohttp's client takes 150 to 200.
"""

import asyncio
from functools import partial

from trunkline.telephony.connection import Connection
from trunkline.telephony.http_exchange import Exchange, HttpReply, NotSent, ReplyLost
from trunkline.telephony.http_origin import Origin, split
from trunkline.value import Private, Value

# Below the 5 s after which common servers close an idle connection.
IDLE_MAX_S = 2.0
CONNECTIONS_MAX = 200


class Outgoing(Value, frozen=True):
    method: str
    url: Private[str]
    headers: Private[tuple[tuple[str, str], ...]]
    body: Private[bytes]


class Timeouts(Value, frozen=True):
    connect_s: float = 5.0
    read_s: float = 15.0

    def within(self, left_s: float) -> "Timeouts":
        if left_s >= self.read_s and left_s >= self.connect_s:
            return self
        return Timeouts(min(self.connect_s, left_s), min(self.read_s, left_s))


class _Slots:
    """So many requests at a time; the others wait."""

    def __init__(self, count: int):
        self._free: asyncio.Queue[None] = asyncio.Queue()
        for _ in range(count):
            self.release()

    def take_at_once(self) -> bool:
        """False: all are taken."""
        if self._free.empty():
            return False
        self._free.get_nowait()
        return True

    async def acquire(self) -> None:
        await self._free.get()

    def release(self) -> None:
        self._free.put_nowait(None)


class Poster:
    """Sends requests over as few connections as they need."""

    def __init__(self) -> None:
        self._origins: dict[str, Origin] = {}
        self._slots = _Slots(CONNECTIONS_MAX)

    async def send(self, request: Outgoing, timeouts: Timeouts) -> Exchange:
        answer = self.send_at_once(request, timeouts)
        if answer is not None:
            return await answer
        await self._slots.acquire()
        try:
            origin, content = self._addressed(request)
            connection = origin.reused() or await origin.connected(timeouts.connect_s)
        except asyncio.CancelledError:
            self._slots.release()
            raise
        except Exception as error:
            self._slots.release()
            return NotSent("not_connected", type(error).__name__)
        if not connection.is_free:
            self._slots.release()
            return NotSent("not_connected", "closed at once")
        return await self._exchange(connection, origin, content, timeouts)

    def send_at_once(
        self, request: Outgoing, timeouts: Timeouts
    ) -> "asyncio.Future[HttpReply | ReplyLost] | None":
        """Needs no task, so nearly all requests go this way. None: no connection is free."""
        try:
            origin, content = self._addressed(request)
        except ValueError:
            return None
        if not self._slots.take_at_once():
            return None
        connection = origin.reused()
        if connection is None:
            self._slots.release()
            return None
        return self._exchange(connection, origin, content, timeouts)

    def close(self) -> None:
        for origin in self._origins.values():
            origin.close()
        self._origins.clear()

    def _exchange(
        self, connection: Connection, origin: Origin, content: bytes, timeouts: Timeouts
    ) -> "asyncio.Future[HttpReply | ReplyLost]":
        until_s = asyncio.get_running_loop().time() + timeouts.read_s
        answer = connection.exchange(content, until_s)
        answer.add_done_callback(partial(self._exchanged, connection, origin))
        return answer

    def _exchanged(
        self, connection: Connection, origin: Origin, _answer: "asyncio.Future[HttpReply | ReplyLost]"
    ) -> None:
        self._slots.release()
        origin.keep(connection)

    def _addressed(self, request: Outgoing) -> tuple[Origin, bytes]:
        """Raises ValueError for what cannot be sent. A call has URLs of its own, and all calls have few origins."""
        name, target = split(request.url)
        origin = self._origins.get(name)
        if origin is None:
            origin = self._origins[name] = Origin(name, idle_max_s=IDLE_MAX_S)
        return origin, _bytes_of(request, origin.host, target)


def _bytes_of(request: Outgoing, host: str, target: str) -> bytes:
    head = [f"{request.method} {target} HTTP/1.1", f"Host: {host}"]
    head += [f"{name}: {value}" for name, value in request.headers]
    head += [f"Content-Length: {len(request.body)}", "", ""]
    return "\r\n".join(head).encode() + request.body
