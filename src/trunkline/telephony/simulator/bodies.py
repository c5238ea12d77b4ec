"""Bodies of the simulated carriers: JSON replies, and the XML and forms of Twilio and Plivo."""

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import quote_plus
from xml.etree import ElementTree

import msgspec
from aiohttp import web

BYTES_MAX = 64 * 1024


def read_xml(body: bytes) -> ElementTree.Element:
    """The `Response`, or ValueError."""
    if len(body) > BYTES_MAX or b"<!DOCTYPE" in body:
        raise ValueError("too long, or with a DOCTYPE")
    try:
        root = ElementTree.fromstring(body)  # noqa: S314 - entities need a DOCTYPE, refused above
    except ElementTree.ParseError as error:
        raise ValueError("not XML") from error
    if root.tag != "Response":
        raise ValueError("no Response")
    return root


def json_reply(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    typed = {"Content-Type": "application/json; charset=utf-8", **(headers or {})}
    return web.Response(body=msgspec.json.encode(value), status=status, headers=typed)


# The webhooks of a call have mostly the same values, so quoted values are cached.
_quoted = lru_cache(maxsize=8192)(quote_plus)


def form_of(fields: Mapping[str, str]) -> str:
    """As `urlencode`, for names that need no quoting."""
    return "&".join([f"{name}={_quoted(value)}" for name, value in fields.items()])
