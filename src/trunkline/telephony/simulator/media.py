"""Media Streams: the socket between an answered call and an agent, as Twilio speaks it.

Audio is silence and sparse. What matters is who is connected, with which parameters, and who hangs up.
"""

import asyncio
import json
from base64 import b64encode
from collections import Counter
from contextlib import suppress
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import aiohttp

from trunkline.telephony.simulator.wire import Stream

if TYPE_CHECKING:
    from trunkline.telephony.simulator.calls import Call

# 20 ms of silence in 8 kHz mu-law.
_SILENCE = b64encode(b"\xff" * 160).decode()
_FORMAT = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}


class _Socket:
    """Numbers what it says, as the protocol wants."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, call: "Call") -> None:
        self._socket = socket
        self._call = call
        self._stream_sid = f"MZ{token_hex(16)}"
        self._sequence = 0
        self._chunk = 0
        self._opened_at = asyncio.get_running_loop().time()

    async def greet(self, stream: Stream) -> None:
        await self._socket.send_str('{"event":"connected","protocol":"Call","version":"1.0.0"}')
        start = {
            "streamSid": self._stream_sid,
            "accountSid": self._call.account.sid,
            "callSid": self._call.sid,
            "tracks": ["inbound"],
            "customParameters": dict(stream.parameters),
            "mediaFormat": _FORMAT,
        }
        await self._say("start", start)

    async def media(self) -> None:
        self._chunk += 1
        elapsed_ms = int((asyncio.get_running_loop().time() - self._opened_at) * 1000)
        await self._say(
            "media",
            {
                "track": "inbound",
                "chunk": str(self._chunk),
                "timestamp": str(elapsed_ms),
                "payload": _SILENCE,
            },
        )

    async def stop(self) -> None:
        await self._say("stop", {"accountSid": self._call.account.sid, "callSid": self._call.sid})

    async def listen(self) -> None:
        """Until the agent closes. Marks come back at once: simulated audio plays instantly."""
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.TEXT and '"mark"' in message.data:
                with suppress(ValueError, TypeError, KeyError):
                    await self._say("mark", {"name": json.loads(message.data)["mark"]["name"]})

    async def _say(self, event: str, content: dict[str, Any]) -> None:
        self._sequence += 1
        await self._socket.send_json(
            {
                "event": event,
                "sequenceNumber": str(self._sequence),
                event: content,
                "streamSid": self._stream_sid,
            }
        )


class MediaStreams:
    def __init__(self, interval_s: float, connect_timeout_s: float) -> None:
        self._interval_s = interval_s
        self._connect_timeout_s = connect_timeout_s
        self._session: aiohttp.ClientSession | None = None
        self.counts: Counter[str] = Counter()

    async def run(self, call: "Call", stream: Stream) -> None:
        """Returns when the agent closed the stream; cancelled when the other side hung up."""
        if "?" in stream.url:
            self.counts["refused"] += 1  # 31920: query strings are not supported
            return
        try:
            await self._talk(call, stream)
            self.counts["closed by the agent"] += 1
        except (aiohttp.ClientError, OSError, TimeoutError):
            self.counts["failed"] += 1

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _talk(self, call: "Call", stream: Stream) -> None:
        async with asyncio.timeout(self._connect_timeout_s) as connecting:
            async with self._opened().ws_connect(
                stream.url, headers=call.wire.stream_headers(call, stream.url), max_msg_size=1024 * 1024
            ) as socket:
                connecting.reschedule(None)
                self.counts["opened"] += 1
                await self._converse(_Socket(socket, call), stream)

    async def _converse(self, socket: _Socket, stream: Stream) -> None:
        await socket.greet(stream)
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
