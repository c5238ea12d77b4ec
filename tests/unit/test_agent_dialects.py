"""The frames of Plivo's and Exotel's streams, as their documentation shows them."""

import base64
import json
from typing import Any

import pytest

from trunkline.agent import frames
from trunkline.agent.frames import Dialect, Dtmf, Mark, Media, Start, Stop

PAYLOAD = base64.b64encode(b"\xff" * 160).decode()


def test_plivos_start_names_the_call_and_has_no_parameters() -> None:
    start: dict[str, Any] = {
        "callId": "call",
        "streamId": "stream",
        "accountId": "MA1",
        "tracks": ["inbound"],
        "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000},
    }
    frame = frames.parse(
        json.dumps({"sequenceNumber": 0, "event": "start", "start": start, "extra_headers": "{}"})
    )
    assert frame == Start("stream", "call", {}, start["mediaFormat"], "plivo")


def test_exotels_start_names_the_call_and_its_parameters() -> None:
    start: dict[str, Any] = {
        "stream_sid": "stream",
        "call_sid": "call",
        "account_sid": "exo",
        "custom_parameters": {"attempt": "1"},
        "media_format": {"encoding": "raw", "sample_rate": "8000", "bit_rate": "128"},
    }
    frame = frames.parse(
        json.dumps({"event": "start", "sequence_number": 1, "stream_sid": "stream", "start": start})
    )
    assert frame == Start("stream", "call", {"attempt": "1"}, start["media_format"], "exotel")


@pytest.mark.parametrize(
    ("message", "frame"),
    [
        (
            {"event": "media", "media": {"chunk": 2, "timestamp": "10", "payload": PAYLOAD}},
            Media(b"\xff" * 160, "inbound", 10),
        ),
        ({"event": "playedStream", "streamId": "s", "name": "greeting"}, Mark("greeting")),
        ({"event": "mark", "stream_sid": "s", "mark": {"name": "greeting"}}, Mark("greeting")),
        ({"event": "dtmf", "stream_sid": "s", "dtmf": {"duration": "200", "digit": "5"}}, Dtmf("5")),
        ({"event": "stop", "stream_sid": "s", "stop": {"reason": "callended"}}, Stop()),
        ({"event": "connected"}, None),
    ],
)
def test_frames_after_the_start_are_read_alike_in_every_dialect(
    message: dict[str, object], frame: object
) -> None:
    assert frames.parse(json.dumps(message)) == frame


@pytest.mark.parametrize(
    ("dialect", "media", "mark", "clear"),
    [
        (
            "plivo",
            {
                "event": "playAudio",
                "media": {"contentType": "audio/x-mulaw", "sampleRate": 8000, "payload": PAYLOAD},
            },
            {"event": "checkpoint", "streamId": "s", "name": "m"},
            {"event": "clearAudio", "streamId": "s"},
        ),
        (
            "exotel",
            {"event": "media", "stream_sid": "s", "media": {"payload": PAYLOAD}},
            {"event": "mark", "stream_sid": "s", "mark": {"name": "m"}},
            {"event": "clear", "stream_sid": "s"},
        ),
    ],
)
def test_sent_frames_are_written_in_the_streams_dialect(
    dialect: Dialect, media: object, mark: object, clear: object
) -> None:
    assert json.loads(frames.media("s", b"\xff" * 160, dialect)) == media
    assert json.loads(frames.mark("s", "m", dialect)) == mark
    assert json.loads(frames.clear("s", dialect)) == clear
