"""Media socket messages of Twilio, Plivo and Exotel. Each numbers its messages in its own way."""

import json
from abc import ABC, abstractmethod
from base64 import b64encode
from itertools import count
from secrets import token_hex
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from trunkline.telephony.simulator.calls import SimulatedCall
from trunkline.telephony.simulator.wire import StreamOrder

# 20 ms of silence in 8 kHz mu-law, and 100 ms of it in 8 kHz 16-bit samples.
_MULAW = b64encode(b"\xff" * 160).decode()
_PCM = b64encode(bytes(1600)).decode()


def mark_of(text: str, event: str, *path: str) -> str | None:
    """The name of a mark in a message of the agent."""
    if event not in text:
        return None
    try:
        value: Any = json.loads(text)
        if value["event"] != event:
            return None
        for name in path:
            value = value[name]
        return str(value)
    except (ValueError, TypeError, KeyError):
        return None


class Frames(ABC):
    """The messages of one media socket, numbered as the carrier numbers them."""

    first_number = 1

    def __init__(self, call: SimulatedCall, stream: StreamOrder) -> None:
        self._call = call
        self._stream = stream
        self._sequence = count(self.first_number)
        self._chunk = count(1)

    @abstractmethod
    def opening(self) -> list[str]: ...

    @abstractmethod
    def media(self, elapsed_ms: int) -> str: ...

    @abstractmethod
    def stop(self) -> str: ...

    def reply(self, text: str) -> str | None:
        """The carrier's reply to a message of the agent: that a mark has been played."""
        name = mark_of(text, "mark", "mark", "name")
        return None if name is None else self._say("mark", {"name": name})

    @abstractmethod
    def _say(self, event: str, content: dict[str, Any]) -> str: ...


class TwilioFrames(Frames):
    def opening(self) -> list[str]:
        start = {
            "streamSid": self._stream.id,
            "accountSid": self._call.account.sid,
            "callSid": self._call.sid,
            "tracks": ["inbound"],
            "customParameters": dict(self._stream.parameters),
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
        }
        return ['{"event":"connected","protocol":"Call","version":"1.0.0"}', self._say("start", start)]

    def media(self, elapsed_ms: int) -> str:
        chunk, timestamp = str(next(self._chunk)), str(elapsed_ms)
        content = {"track": "inbound", "chunk": chunk, "timestamp": timestamp, "payload": _MULAW}
        return self._say("media", content)

    def stop(self) -> str:
        return self._say("stop", {"accountSid": self._call.account.sid, "callSid": self._call.sid})

    def _say(self, event: str, content: dict[str, Any]) -> str:
        number = str(next(self._sequence))
        return json.dumps(
            {"event": event, "sequenceNumber": number, event: content, "streamSid": self._stream.id}
        )


class PlivoFrames(Frames):
    first_number = 0

    def opening(self) -> list[str]:
        start = {
            "callId": self._call.sid,
            "streamId": self._stream.id,
            "accountId": self._call.account.sid,
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000},
        }
        return [self._say("start", {"start": start, "extra_headers": "{}"})]

    def media(self, elapsed_ms: int) -> str:
        chunk, timestamp = next(self._chunk), str(elapsed_ms)
        content = {"track": "inbound", "timestamp": timestamp, "chunk": chunk, "payload": _MULAW}
        return self._say("media", {"media": content, "streamId": self._stream.id, "extra_headers": "{}"})

    def stop(self) -> str:
        return self._say("stop", {"stop": {"callId": self._call.sid}, "streamId": self._stream.id})

    def reply(self, text: str) -> str | None:
        name = mark_of(text, "checkpoint", "name")
        played = {"streamId": self._stream.id, "name": name}
        return None if name is None else self._say("playedStream", played)

    def _say(self, event: str, content: dict[str, Any]) -> str:
        return json.dumps({"sequenceNumber": next(self._sequence), "event": event, **content})


class ExotelFrames(Frames):
    def __init__(self, call: SimulatedCall, stream: StreamOrder) -> None:
        super().__init__(call, stream)
        self._stream_sid = token_hex(16)

    def opening(self) -> list[str]:
        start = {
            "stream_sid": self._stream_sid,
            "call_sid": self._call.sid,
            "account_sid": self._call.account.sid,
            "from": self._call.order.to,
            "to": self._call.order.from_,
            "custom_parameters": dict(parse_qsl(urlsplit(self._stream.url).query)),
            "media_format": {"encoding": "raw", "sample_rate": "8000", "bit_rate": "128"},
        }
        return ['{"event":"connected"}', self._say("start", start)]

    def media(self, elapsed_ms: int) -> str:
        content = {"chunk": next(self._chunk), "timestamp": str(elapsed_ms), "payload": _PCM}
        return self._say("media", content)

    def stop(self) -> str:
        content = {"call_sid": self._call.sid, "account_sid": self._call.account.sid, "reason": "callended"}
        return self._say("stop", content)

    def _say(self, event: str, content: dict[str, Any]) -> str:
        number = next(self._sequence)
        return json.dumps(
            {"event": event, "sequence_number": number, "stream_sid": self._stream_sid, event: content}
        )
