"""One call, as its handler sees it: inbound audio, and the audio that the agent sends."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from aiohttp import WSMsgType, web

from trunkline.agent import frames
from trunkline.agent.contract import Context, Contract, Outcome
from trunkline.agent.frames import Message, Start, Stop

# 30 s of audio at 50 frames per second. A slower handler loses the oldest frames: live audio does not wait.
UNREAD_MAX = 1500
# Close codes of a stream that the carrier ended: 1000, or none at all. With another code, or without a close frame, the
# stream was lost.
_ENDED_CODES = (0, 1000, 1005)


class CallClosed(Exception):
    """The stream is over; nothing can be sent on it."""


class Call:
    """Iterate over it to receive audio and events. The iteration ends when the stream does."""

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
        # The stream's parameters of the platform: `attempt` and those of the answer document.
        self.parameters = parameters
        self.dropped = 0
        # How many agents the call had before this stream.
        self.turn = turn
        self.allocation_id = allocation_id
        # The stream broke: the person may still be there, and the carrier requests another agent.
        self.lost = False
        self._contract = contract
        self._release = release
        self._is_released = False
        self._dialect = start.dialect
        self._socket = socket
        self._unread: deque[Message] = deque()
        self._has_messages = asyncio.Event()
        self._over = False

    def __repr__(self) -> str:
        return f"Call({self.call_sid})"

    @property
    def over(self) -> bool:
        return self._over

    @property
    def resumed(self) -> bool:
        """Whether an agent before this one had the call and was lost. `context()` has the state that it stored."""
        return self.turn > 0

    @property
    def is_resumable(self) -> bool:
        """Whether the carrier requests another agent when the stream closes and the call was not released."""
        return self._dialect != "exotel" and {"attempt", "key"} <= self.parameters.keys()

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            while self._unread:
                yield self._unread.popleft()
            if self._over:
                return
            self._has_messages.clear()
            await self._has_messages.wait()

    async def send_media(self, payload: bytes) -> None:
        """Play audio, in the stream's media format, after the audio sent before."""
        await self._send(frames.media(self.stream_sid, payload, self._dialect))

    async def send_mark(self, name: str) -> None:
        """The carrier returns a `Mark` when it has played everything sent until now."""
        await self._send(frames.mark(self.stream_sid, name, self._dialect))

    async def clear(self) -> None:
        """Stop playing and discard what was sent, for example when the person interrupts."""
        await self._send(frames.clear(self.stream_sid, self._dialect))

    async def context(self) -> Context:
        """The lead, its payload, the direction and the numbers of the call."""
        return await self._platform.context()

    async def save_state(self, state: Mapping[str, Any]) -> None:
        """Store the state that another agent needs to resume the call, at most 64 KiB of JSON. The last one counts."""
        await self._platform.save_state(state)

    async def report(self, outcome: Outcome) -> None:
        """Report the outcome of the call to the platform: once, also after its end."""
        await self._platform.report(outcome)

    @property
    def _platform(self) -> Contract:
        if self._contract is None:
            raise RuntimeError("this call has no platform URL")
        return self._contract

    async def hang_up(self) -> None:
        """End the call. It is released first: a stream that closes before its call is released has lost its agent."""
        await self.release()
        await self.close()

    async def release(self) -> None:
        """Release the call at the router, once."""
        if self._release is not None and not self._is_released:
            self._is_released = True
            await self._release(self)

    async def close(self, code: int = 1000) -> None:
        """Close the stream only. If the call was not released, the carrier requests another agent."""
        await self._socket.close(code=code)

    async def _send(self, frame: str) -> None:
        if self._over:
            raise CallClosed(self.call_sid)
        try:
            await self._socket.send_str(frame)
        except (ConnectionError, RuntimeError) as error:
            raise CallClosed(self.call_sid) from error

    async def listen(self) -> None:
        """Read the socket until the stream ends. The agent runs it beside the handler."""
        try:
            async for message in self._socket:
                if message.type is not WSMsgType.TEXT:
                    continue
                frame = frames.parse(message.data)
                if isinstance(frame, Stop):
                    return
                if frame is not None and not isinstance(frame, Start):
                    self._enqueue(frame)
            self.lost = self._socket.close_code not in _ENDED_CODES
        except ConnectionError:
            self.lost = True
        finally:
            self._over = True
            self._has_messages.set()

    def _enqueue(self, message: Message) -> None:
        if len(self._unread) == UNREAD_MAX:
            self._unread.popleft()
            self.dropped += 1
        self._unread.append(message)
        self._has_messages.set()
