"""JSON as every simulated carrier answers with it."""

from collections.abc import Mapping

import msgspec
from aiohttp import web


def json_reply(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    typed = {"Content-Type": "application/json; charset=utf-8", **(headers or {})}
    return web.Response(body=msgspec.json.encode(value), status=status, headers=typed)
