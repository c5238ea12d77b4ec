import json

import pytest

from trunkline.agent import frames
from trunkline.agent.frames import Dtmf, Mark, Media, Start, Stop


def test_a_start_frame_is_parsed_with_call_id_and_parameters() -> None:
    text = json.dumps(
        {
            "event": "start",
            "sequenceNumber": "1",
            "start": {
                "accountSid": "AC1",
                "streamSid": "MZ1",
                "callSid": "CA1",
                "tracks": ["inbound"],
                "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
                "customParameters": {"token": "t", "attempt": "a"},
            },
            "streamSid": "MZ1",
        }
    )

    assert frames.parse(text) == Start(
        "MZ1",
        "CA1",
        {"token": "t", "attempt": "a"},
        {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
    )


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (
            {"event": "media", "media": {"track": "inbound", "timestamp": "40", "payload": "AAH/"}},
            Media(b"\x00\x01\xff", "inbound", 40),
        ),
        ({"event": "mark", "mark": {"name": "hello"}}, Mark("hello")),
        ({"event": "dtmf", "dtmf": {"track": "inbound_track", "digit": "5"}}, Dtmf("5")),
        ({"event": "stop", "stop": {"callSid": "CA1"}}, Stop()),
    ],
)
def test_frames_of_a_live_stream_are_read(frame: object, message: object) -> None:
    assert frames.parse(json.dumps(frame)) == message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "7",
        "{}",
        '{"event": "connected", "protocol": "Call"}',
        '{"event": "a new word"}',
        '{"event": []}',
        '{"event": "start"}',
        '{"event": "start", "start": {"streamSid": "MZ1"}}',
        '{"event": "start", "start": {"streamSid": "MZ1", "callSid": "CA1", "customParameters": 7}}',
        '{"event": "media", "media": {"payload": "not base64!"}}',
        '{"event": "media", "media": {"payload": "AAAA", "timestamp": "soon"}}',
    ],
)
def test_an_unknown_frame_is_ignored(text: str) -> None:
    assert frames.parse(text) is None


def test_sent_frames_have_twilios_format() -> None:
    assert json.loads(frames.media("MZ1", b"\x00\x01\xff")) == {
        "event": "media",
        "streamSid": "MZ1",
        "media": {"payload": "AAH/"},
    }
    assert json.loads(frames.mark("MZ1", "hello")) == {
        "event": "mark",
        "streamSid": "MZ1",
        "mark": {"name": "hello"},
    }
    assert json.loads(frames.clear("MZ1")) == {"event": "clear", "streamSid": "MZ1"}
