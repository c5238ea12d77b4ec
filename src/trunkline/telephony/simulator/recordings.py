"""Recordings as carriers keep them: a second of silence at an address that is a secret.

Vapi gives that address away. Twilio gives another one, which asks for the account's credentials and sends on.
"""

import struct

from aiohttp import web

_RATE_HZ = 8000
# A μ-law silence of one second, as the carriers' telephone side has it.
_SILENCE = b"\xff" * _RATE_HZ
_FORMAT = struct.pack("<4sIHHIIHH", b"fmt ", 16, 7, 1, _RATE_HZ, _RATE_HZ, 1, 8)
_CHUNKS = _FORMAT + struct.pack("<4sI", b"data", len(_SILENCE)) + _SILENCE
WAV = struct.pack("<4sI4s", b"RIFF", 4 + len(_CHUNKS), b"WAVE") + _CHUNKS


def routes() -> list[web.RouteDef]:
    return [web.get("/recordings/{recording}.wav", _serve)]


async def _serve(_request: web.Request) -> web.Response:
    return web.Response(body=WAV, content_type="audio/x-wav")
