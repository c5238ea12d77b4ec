"""One call, as its handler sees it: what the person says comes in, what the agent says goes out."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping

from aiohttp import WSMsgType, web

from trunkline.agent import frames
from trunkline.agent.contract import Context, Contract, Outcome
from trunkline.agent.frames import Message, Start, Stop

# 30 s of audio at 50 frames a second. A handler that listens less loses the oldest: live audio does not wait.
UNREAD_MAX = 1500


class CallClosed(Exception):
    """The stream is over; nothing can be sent on it."""


class Call:
    """Iterate over it to hear the person. The iteration ends when the stream does."""

    def __init__(
        self,
        socket: web.WebSocketResponse,
        start: Start,
        parameters: Mapping[str, str],
        contract: Contract | None = None,
    ):
        self.call_sid = start.call_sid
        self.stream_sid = start.stream_sid
        self.media_format = start.media_format
        # What the platform gave the call along: `attempt` and whatever the answer document named.
        self.parameters = parameters
        self.dropped = 0
        self._contract = contract
        self._dialect = start.dialect
        self._socket = socket
        self._unread: deque[Message] = deque()
        self._news = asyncio.Event()
        self._over = False

    def __repr__(self) -> str:
        return f"Call({self.call_sid})"

    @property
    def over(self) -> bool:
        return self._over

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            while self._unread:
                yield self._unread.popleft()
            if self._over:
                return
            self._news.clear()
            await self._news.wait()

    async def send_media(self, payload: bytes) -> None:
        """Play audio, in the stream's media format, after what is still being played."""
        await self._send(frames.media(self.stream_sid, payload, self._dialect))

    async def send_mark(self, name: str) -> None:
        """Have a `Mark` come back when everything sent until now has been played."""
        await self._send(frames.mark(self.stream_sid, name, self._dialect))

    async def clear(self) -> None:
        """Stop playing and forget what was sent: the person interrupts."""
        await self._send(frames.clear(self.stream_sid, self._dialect))

    async def context(self) -> Context:
        """Whom it is about and what for: the lead, its payload, the direction."""
        return await self._platform.context()

    async def report(self, outcome: Outcome) -> None:
        """Tell the platform what came of the call: once, also when it is over already."""
        await self._platform.report(outcome)

    @property
    def _platform(self) -> Contract:
        if self._contract is None:
            raise RuntimeError("this call has no platform to ask")
        return self._contract

    async def hang_up(self) -> None:
        """Close the stream. The carrier goes on with what follows it in the answer document: nothing."""
        await self._socket.close()

    async def _send(self, frame: str) -> None:
        if self._over:
            raise CallClosed(self.call_sid)
        try:
            await self._socket.send_str(frame)
        except (ConnectionError, RuntimeError) as error:
            raise CallClosed(self.call_sid) from error

    async def listen(self) -> None:
        """Read the socket until the stream is over. The agent runs it beside the handler."""
        try:
            async for message in self._socket:
                if message.type is not WSMsgType.TEXT:
                    continue
                frame = frames.parse(message.data)
                if isinstance(frame, Stop):
                    return
                if frame is not None and not isinstance(frame, Start):
                    self._hear(frame)
        finally:
            self._over = True
            self._news.set()

    def _hear(self, message: Message) -> None:
        if len(self._unread) == UNREAD_MAX:
            self._unread.popleft()
            self.dropped += 1
        self._unread.append(message)
        self._news.set()
