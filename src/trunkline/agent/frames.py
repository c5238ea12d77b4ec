"""The frames of a Twilio media stream, read and written.

A frame that is not understood is `None`: the carrier may have learnt a new word, and the call goes on without it.
"""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Start:
    """The stream's first frame that matters: whose call it is, and what our answer document gave it along."""

    stream_sid: str
    call_sid: str
    parameters: Mapping[str, str] = field(repr=False)
    media_format: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Media:
    """About 20 ms of what the person says, as the stream's media format has it: 8 kHz mu-law."""

    payload: bytes = field(repr=False)
    track: str
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Everything that was sent before this mark has been played."""

    name: str


@dataclass(frozen=True, slots=True)
class Dtmf:
    digit: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The carrier ends the stream."""


Message = Media | Mark | Dtmf
Frame = Start | Message | Stop


def parse(text: str) -> Frame | None:
    try:
        frame = json.loads(text)
        return _PARSERS[frame["event"]](frame)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _start(frame: dict[str, Any]) -> Start:
    start = frame["start"]
    parameters = {str(name): str(value) for name, value in (start.get("customParameters") or {}).items()}
    return Start(str(start["streamSid"]), str(start["callSid"]), parameters, start.get("mediaFormat") or {})


def _media(frame: dict[str, Any]) -> Media:
    media = frame["media"]
    payload = base64.b64decode(media["payload"], validate=True)
    return Media(payload, str(media.get("track", "inbound")), int(media.get("timestamp", 0)))


_PARSERS: dict[str, Callable[[dict[str, Any]], Frame]] = {
    "start": _start,
    "media": _media,
    "mark": lambda frame: Mark(str(frame["mark"]["name"])),
    "dtmf": lambda frame: Dtmf(str(frame["dtmf"]["digit"])),
    "stop": lambda frame: Stop(),
}


def media(stream_sid: str, payload: bytes) -> str:
    encoded = base64.b64encode(payload).decode()
    return json.dumps({"event": "media", "streamSid": stream_sid, "media": {"payload": encoded}})


def mark(stream_sid: str, name: str) -> str:
    return json.dumps({"event": "mark", "streamSid": stream_sid, "mark": {"name": name}})


def clear(stream_sid: str) -> str:
    return json.dumps({"event": "clear", "streamSid": stream_sid})
