"""One call, as its handler sees it: what the person says comes in, what the agent says goes out."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from aiohttp import WSMsgType, web

from trunkline.agent import frames
from trunkline.agent.contract import Context, Contract, Outcome
from trunkline.agent.frames import Message, Start, Stop

# 30 s of audio at 50 frames a second. A handler that listens less loses the oldest: live audio does not wait.
UNREAD_MAX = 1500
# How a carrier closes a stream that it has ended: with 1000, or with no code at all. With another one, or none of its
# frames, the stream was lost.
_ENDED_CODES = (0, 1000, 1005)


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
        *,
        allocation_id: str = "",
        turn: int = 0,
        release: Callable[["Call"], Awaitable[None]] | None = None,
    ):
        self.call_sid = start.call_sid
        self.stream_sid = start.stream_sid
        self.media_format = start.media_format
        # What the platform gave the call along: `attempt` and whatever the answer document named.
        self.parameters = parameters
        self.dropped = 0
        # How often the call was given another agent before this stream.
        self.turn = turn
        self.allocation_id = allocation_id
        # The stream broke: the person may still be there, and the carrier asks for another agent.
        self.lost = False
        self._contract = contract
        self._release = release
        self._is_released = False
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

    @property
    def resumed(self) -> bool:
        """Whether an agent before this one had the call and was lost. `context()` has what that one had stored."""
        return self.turn > 0

    @property
    def is_resumable(self) -> bool:
        """Whether the carrier asks for another agent when the stream closes and the call was not released."""
        return self._dialect != "exotel" and {"attempt", "key"} <= self.parameters.keys()

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

    async def save_state(self, state: Mapping[str, Any]) -> None:
        """Store what another agent would need to go on with the call, at most 64 KiB of JSON. The last one counts."""
        await self._platform.save_state(state)

    async def report(self, outcome: Outcome) -> None:
        """Tell the platform what came of the call: once, also when it is over already."""
        await self._platform.report(outcome)

    @property
    def _platform(self) -> Contract:
        if self._contract is None:
            raise RuntimeError("this call has no platform to ask")
        return self._contract

    async def hang_up(self) -> None:
        """End the call. It is released first: a stream that closes before its call is released has lost its agent."""
        await self.release()
        await self.close()

    async def release(self) -> None:
        """Tell the router, once, that this agent is through with the call."""
        if self._release is not None and not self._is_released:
            self._is_released = True
            await self._release(self)

    async def close(self, code: int = 1000) -> None:
        """Close the stream only. Of a call that was not released the carrier asks for another agent."""
        await self._socket.close(code=code)

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
            self.lost = self._socket.close_code not in _ENDED_CODES
        except ConnectionError:
            self.lost = True
        finally:
            self._over = True
            self._news.set()

    def _hear(self, message: Message) -> None:
        if len(self._unread) == UNREAD_MAX:
            self._unread.popleft()
            self.dropped += 1
        self._unread.append(message)
        self._news.set()
