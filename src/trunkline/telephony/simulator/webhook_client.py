"""The simulator sends its webhooks over the connections that the platform sends its dials over: every test of a call
tests them twice."""

import asyncio

from trunkline.telephony.http_exchange import Exchange, NotSent
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


class WebhookClient:
    """Sends requests over as few connections as they need, so many at a time; the others wait."""

    def __init__(self) -> None:
        self._origins: dict[str, Origin] = {}
        self._slots = asyncio.Semaphore(CONNECTIONS_MAX)

    async def send(self, request: Outgoing, timeouts: Timeouts) -> Exchange:
        async with self._slots:
            try:
                origin, content = self._addressed(request)
                connection = origin.reused() or await origin.connected(timeouts.connect_s)
            except Exception as error:  # whatever it is, nothing was written
                return NotSent("not_connected", type(error).__name__)
            try:
                if not connection.is_free:
                    return NotSent("not_connected", "closed at once")
                until_s = asyncio.get_running_loop().time() + timeouts.read_s
                return await connection.exchange(content, until_s)
            finally:
                origin.put_back(connection)

    def close(self) -> None:
        for origin in self._origins.values():
            origin.close()
        self._origins.clear()

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
