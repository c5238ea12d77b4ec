"""Media streams: the socket between an answered call and an agent.

Audio is silence and sparse. What matters is who is connected, with which parameters, and who hangs up.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import aiohttp

from trunkline.telephony.simulator.wire import Frames, Stream

if TYPE_CHECKING:
    from trunkline.telephony.simulator.calls import Call


class _Socket:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse, frames: Frames) -> None:
        self._socket = socket
        self._frames = frames
        self._opened_at = asyncio.get_running_loop().time()

    async def greet(self) -> None:
        for text in self._frames.opening():
            await self._socket.send_str(text)

    async def media(self) -> None:
        elapsed_ms = int((asyncio.get_running_loop().time() - self._opened_at) * 1000)
        await self._socket.send_str(self._frames.media(elapsed_ms))

    async def stop(self) -> None:
        await self._socket.send_str(self._frames.stop())

    async def listen(self) -> None:
        """Until the agent closes. Marks come back at once: simulated audio plays instantly."""
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                reply = self._frames.heard(message.data)
                if reply is not None:
                    await self._socket.send_str(reply)


class MediaStreams:
    def __init__(self, interval_s: float, connect_timeout_s: float) -> None:
        self._interval_s = interval_s
        self._connect_timeout_s = connect_timeout_s
        self._session: aiohttp.ClientSession | None = None
        self.counts: Counter[str] = Counter()

    async def run(self, call: "Call", stream: Stream) -> None:
        """Returns when the agent closed the stream; cancelled when the other side hung up."""
        frames = call.wire.frames(call, stream)
        if frames is None:
            self.counts["refused"] += 1
            return
        try:
            await self._talk(call, stream, frames)
            self.counts["closed by the agent"] += 1
        except (aiohttp.ClientError, OSError, TimeoutError):
            self.counts["failed"] += 1

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _talk(self, call: "Call", stream: Stream, frames: Frames) -> None:
        async with asyncio.timeout(self._connect_timeout_s) as connecting:
            async with self._opened().ws_connect(
                stream.url, headers=call.wire.stream_headers(call, stream.url), max_msg_size=1024 * 1024
            ) as socket:
                connecting.reschedule(None)
                self.counts["opened"] += 1
                await self._converse(call, _Socket(socket, frames))

    async def _converse(self, call: "Call", socket: _Socket) -> None:
        await socket.greet()
        call.on_connected()  # the agent reads this greeting before any end
        speaking = asyncio.create_task(self._speak(socket))
        try:
            await socket.listen()
        except asyncio.CancelledError:
            with suppress(ConnectionError, RuntimeError):
                await socket.stop()
            raise
        finally:
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)

    async def _speak(self, socket: _Socket) -> None:
        while True:
            await socket.media()
            await asyncio.sleep(self._interval_s)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self._session
