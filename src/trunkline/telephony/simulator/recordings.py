"""Recordings of the simulated carriers: a second of silence at a secret URL.

Vapi sends that URL itself. Twilio sends another one, which requires the account's credentials and redirects.
"""

import struct

from aiohttp import web

_RATE_HZ = 8000
# One second of μ-law silence, the format of telephony.
_SILENCE = b"\xff" * _RATE_HZ
_FORMAT = struct.pack("<4sIHHIIHH", b"fmt ", 16, 7, 1, _RATE_HZ, _RATE_HZ, 1, 8)
_CHUNKS = _FORMAT + struct.pack("<4sI", b"data", len(_SILENCE)) + _SILENCE
WAV = struct.pack("<4sI4s", b"RIFF", 4 + len(_CHUNKS), b"WAVE") + _CHUNKS


def routes() -> list[web.RouteDef]:
    return [web.get("/recordings/{recording}.wav", _serve)]


async def _serve(_request: web.Request) -> web.Response:
    return web.Response(body=WAV, content_type="audio/x-wav")
