"""Media socket messages of Twilio, Plivo and Exotel. Each numbers its messages in its own way."""

import json
from base64 import b64encode
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


class TwilioFrames:
    def __init__(self, call: SimulatedCall, stream: StreamOrder) -> None:
        self._call = call
        self._stream = stream
        self._stream_sid = stream.id
        self._sequence = 0
        self._chunk = 0

    def opening(self) -> list[str]:
        start = {
            "streamSid": self._stream_sid,
            "accountSid": self._call.account.sid,
            "callSid": self._call.sid,
            "tracks": ["inbound"],
            "customParameters": dict(self._stream.parameters),
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
        }
        return ['{"event":"connected","protocol":"Call","version":"1.0.0"}', self._say("start", start)]

    def media(self, elapsed_ms: int) -> str:
        self._chunk += 1
        content = {
            "track": "inbound",
            "chunk": str(self._chunk),
            "timestamp": str(elapsed_ms),
            "payload": _MULAW,
        }
        return self._say("media", content)

    def stop(self) -> str:
        return self._say("stop", {"accountSid": self._call.account.sid, "callSid": self._call.sid})

    def reply(self, text: str) -> str | None:
        name = mark_of(text, "mark", "mark", "name")
        return None if name is None else self._say("mark", {"name": name})

    def _say(self, event: str, content: dict[str, Any]) -> str:
        self._sequence += 1
        message = {
            "event": event,
            "sequenceNumber": str(self._sequence),
            event: content,
            "streamSid": self._stream_sid,
        }
        return json.dumps(message)


class PlivoFrames:
    def __init__(self, call: SimulatedCall, stream: StreamOrder) -> None:
        self._call = call
        self._stream_id = stream.id
        self._sequence = -1
        self._chunk = 0

    def opening(self) -> list[str]:
        start = {
            "callId": self._call.sid,
            "streamId": self._stream_id,
            "accountId": self._call.account.sid,
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000},
        }
        return [self._say("start", start=start, extra_headers="{}")]

    def media(self, elapsed_ms: int) -> str:
        self._chunk += 1
        content = {"track": "inbound", "timestamp": str(elapsed_ms), "chunk": self._chunk, "payload": _MULAW}
        return self._say("media", media=content, streamId=self._stream_id, extra_headers="{}")

    def stop(self) -> str:
        return self._say("stop", stop={"callId": self._call.sid}, streamId=self._stream_id)

    def reply(self, text: str) -> str | None:
        name = mark_of(text, "checkpoint", "name")
        return None if name is None else self._say("playedStream", streamId=self._stream_id, name=name)

    def _say(self, event: str, **content: object) -> str:
        self._sequence += 1
        return json.dumps({"sequenceNumber": self._sequence, "event": event, **content})


class ExotelFrames:
    def __init__(self, call: SimulatedCall, stream: StreamOrder) -> None:
        self._call = call
        self._query = dict(parse_qsl(urlsplit(stream.url).query))
        self._stream_sid = token_hex(16)
        self._sequence = 0
        self._chunk = 0

    def opening(self) -> list[str]:
        start = {
            "stream_sid": self._stream_sid,
            "call_sid": self._call.sid,
            "account_sid": self._call.account.sid,
            "from": self._call.order.to,
            "to": self._call.order.from_,
            "custom_parameters": self._query,
            "media_format": {"encoding": "raw", "sample_rate": "8000", "bit_rate": "128"},
        }
        return ['{"event":"connected"}', self._say("start", start)]

    def media(self, elapsed_ms: int) -> str:
        self._chunk += 1
        return self._say("media", {"chunk": self._chunk, "timestamp": str(elapsed_ms), "payload": _PCM})

    def stop(self) -> str:
        content = {"call_sid": self._call.sid, "account_sid": self._call.account.sid, "reason": "callended"}
        return self._say("stop", content)

    def reply(self, text: str) -> str | None:
        name = mark_of(text, "mark", "mark", "name")
        return None if name is None else self._say("mark", {"name": name})

    def _say(self, event: str, content: dict[str, Any]) -> str:
        self._sequence += 1
        message = {
            "event": event,
            "sequence_number": self._sequence,
            "stream_sid": self._stream_sid,
            event: content,
        }
        return json.dumps(message)
