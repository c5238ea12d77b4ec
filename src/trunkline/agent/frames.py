"""Parses and writes the frames of a media stream in the formats of Twilio, Plivo and Exotel.

The start frame shows which carrier it is. An unknown frame is `None`: the carrier may have added a new kind, and the
call goes on without it.
"""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Dialect = Literal["twilio", "plivo", "exotel"]


@dataclass(frozen=True, slots=True)
class Start:
    """The stream's start frame: the ids of stream and call, and the parameters of the answer document."""

    stream_sid: str
    call_sid: str
    parameters: Mapping[str, str] = field(repr=False)
    media_format: Mapping[str, Any]
    dialect: Dialect = "twilio"


@dataclass(frozen=True, slots=True)
class Media:
    """Inbound audio in the stream's media format: 20 ms of 8 kHz mu-law, or 100 ms of PCM at Exotel."""

    payload: bytes = field(repr=False)
    track: str
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Mark:
    """The carrier has played everything that was sent before this mark."""

    name: str


@dataclass(frozen=True, slots=True)
class Dtmf:
    digit: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The carrier ended the stream."""


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
    if "callId" in start:  # Plivo's parameters are in the address of the stream
        return Start(
            str(start["streamId"]), str(start["callId"]), {}, start.get("mediaFormat") or {}, "plivo"
        )
    if "call_sid" in start:
        format_ = start.get("media_format") or {}
        parameters = _texts(start.get("custom_parameters"))
        return Start(str(start["stream_sid"]), str(start["call_sid"]), parameters, format_, "exotel")
    parameters = _texts(start.get("customParameters"))
    return Start(str(start["streamSid"]), str(start["callSid"]), parameters, start.get("mediaFormat") or {})


def _texts(values: dict[str, Any] | None) -> dict[str, str]:
    return {str(name): str(value) for name, value in (values or {}).items()}


def _media(frame: dict[str, Any]) -> Media:
    media = frame["media"]
    payload = base64.b64decode(media["payload"], validate=True)
    return Media(payload, str(media.get("track", "inbound")), int(media.get("timestamp", 0)))


_PARSERS: dict[str, Callable[[dict[str, Any]], Frame]] = {
    "start": _start,
    "media": _media,
    "mark": lambda frame: Mark(str(frame["mark"]["name"])),
    "playedStream": lambda frame: Mark(str(frame["name"])),
    "dtmf": lambda frame: Dtmf(str(frame["dtmf"]["digit"])),
    "stop": lambda frame: Stop(),
}


def media(stream_sid: str, payload: bytes, dialect: Dialect = "twilio") -> str:
    encoded = base64.b64encode(payload).decode()
    if dialect == "plivo":
        audio = {"contentType": "audio/x-mulaw", "sampleRate": 8000, "payload": encoded}
        return json.dumps({"event": "playAudio", "media": audio})
    return json.dumps({"event": "media", _STREAM[dialect]: stream_sid, "media": {"payload": encoded}})


def mark(stream_sid: str, name: str, dialect: Dialect = "twilio") -> str:
    if dialect == "plivo":
        return json.dumps({"event": "checkpoint", "streamId": stream_sid, "name": name})
    return json.dumps({"event": "mark", _STREAM[dialect]: stream_sid, "mark": {"name": name}})


def clear(stream_sid: str, dialect: Dialect = "twilio") -> str:
    event = "clearAudio" if dialect == "plivo" else "clear"
    return json.dumps({"event": event, _STREAM[dialect]: stream_sid})


# The name of the stream's id in each format.
_STREAM: Mapping[Dialect, str] = {"twilio": "streamSid", "plivo": "streamId", "exotel": "stream_sid"}
