"""Media streams: the socket between an answered call and an agent.

Audio is sparse silence. The simulator records which agent is connected, with which parameters, which side hangs up, and
whether there was an agent at all: one that sent a message, or held the stream and closed it normally.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import aiohttp

from trunkline.telephony.simulator.activity import Activity
from trunkline.telephony.simulator.answered_calls import REFUSED_CODES, StreamEnd, StreamRecord
from trunkline.telephony.simulator.wire import StreamOrder

if TYPE_CHECKING:
    from trunkline.telephony.simulator.calls import SimulatedCall
    from trunkline.telephony.simulator.frames import Frames

# Close codes of an agent that has finished: normal, or going away.
_IN_ORDER = frozenset({1000, 1001})


class MediaStreams:
    def __init__(
        self, interval_s: float, connect_timeout_s: float, now: Callable[[], float], activity: Activity
    ) -> None:
        self._interval_s = interval_s
        self._connect_timeout_s = connect_timeout_s
        self._now = now
        self._activity = activity
        self._session: aiohttp.ClientSession | None = None
        self.counts: Counter[str] = Counter()

    async def run(self, call: "SimulatedCall", stream: StreamOrder) -> None:
        """Returns when the agent closed the stream; cancelled when the person hung up."""
        if not stream.status_url:
            await self._run(call, stream)
            return
        # Its last webhook follows the end of the socket, which may be later than that of the call.
        self._activity.begin()
        try:
            await self._run(call, stream)
        finally:
            self._activity.end()

    async def _run(self, call: "SimulatedCall", stream: StreamOrder) -> None:
        record = StreamRecord(stream.url, self._now())
        if call.answered is not None:
            call.answered.streams.append(record)
        frames = call.wire.frames(call, stream)
        if frames is None:
            self.counts["refused"] += 1
            self._end(call, stream, record, "refused")
            return
        try:
            await self._talk(call, stream, frames, record)
            self.counts["closed by the agent"] += 1
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.counts["failed"] += 1
            if isinstance(error, aiohttp.WSServerHandshakeError):
                record.code = error.status
            self._end(call, stream, record, "failed" if record.opened_at is None else "lost")
        except asyncio.CancelledError:
            self._end(call, stream, record, "by_person")
            raise

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _talk(
        self, call: "SimulatedCall", stream: StreamOrder, frames: "Frames", record: StreamRecord
    ) -> None:
        async with asyncio.timeout(self._connect_timeout_s) as connecting:
            async with self._opened().ws_connect(
                stream.url, headers=call.wire.stream_headers(call, stream.url), max_msg_size=1024 * 1024
            ) as socket:
                connecting.reschedule(None)
                self.counts["opened"] += 1
                record.opened_at = self._now()
                call.on_stream_event(stream, "started")
                await self._converse(call, stream, socket, frames, record)

    async def _converse(
        self,
        call: "SimulatedCall",
        stream: StreamOrder,
        socket: aiohttp.ClientWebSocketResponse,
        frames: "Frames",
        record: StreamRecord,
    ) -> None:
        for text in frames.opening():
            await socket.send_str(text)
        call.on_connected()  # the agent reads this greeting before any end
        speaking = asyncio.create_task(self._speak(socket, frames))
        try:
            await self._listen(call, socket, frames, record)
        except asyncio.CancelledError:
            with suppress(ConnectionError, RuntimeError):
                await socket.send_str(frames.stop())
            raise
        finally:
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)
        record.code = socket.close_code
        if record.code in REFUSED_CODES and record.heard_at is None:
            self._end(call, stream, record, "refused")
        else:
            self._end(call, stream, record, "by_agent" if record.code in _IN_ORDER else "lost")

    async def _listen(
        self,
        call: "SimulatedCall",
        socket: aiohttp.ClientWebSocketResponse,
        frames: "Frames",
        record: StreamRecord,
    ) -> None:
        """Until the agent closes. Marks return at once: simulated audio plays instantly."""
        async for message in socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                if record.heard_at is None:
                    record.heard_at = self._now()
                    _agent_is_there(call, record.heard_at)
                reply = frames.reply(message.data)
                if reply is not None:
                    await socket.send_str(reply)

    def _end(
        self, call: "SimulatedCall", stream: StreamOrder, record: StreamRecord, ended: StreamEnd
    ) -> None:
        is_news = record.closed_at is None and (record.opened_at is not None or ended != "by_person")
        record.closed_at = self._now()
        record.ended = ended
        if is_news:
            call.on_stream_event(stream, "stopped" if ended in ("by_agent", "by_person") else "failed")
        if record.opened_at is not None and ended in ("by_agent", "by_person"):
            _agent_is_there(call, record.opened_at)

    async def _speak(self, socket: aiohttp.ClientWebSocketResponse, frames: "Frames") -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while True:
            await socket.send_str(frames.media(int((loop.time() - began_s) * 1000)))
            await asyncio.sleep(self._interval_s)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self._session


def _agent_is_there(call: "SimulatedCall", at: float) -> None:
    if call.answered is not None and call.answered.agent_at is None:
        call.answered.agent_at = at
