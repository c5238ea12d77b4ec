"""Bodies of the simulated carriers: JSON replies, and the XML and forms of Twilio and Plivo."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import quote_plus
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import msgspec
from aiohttp import web

from trunkline.telephony.simulator.webhooks import Letter, Outgoing, WebhookRetryRule
from trunkline.telephony.simulator.wire import Verb

BYTES_MAX = 64 * 1024

Fields = Mapping[str, str]
# By tag, the verbs of an element. Others are left out.
VerbReaders = Mapping[str, Callable[[Element], Iterable[Verb]]]


def read_verbs(body: bytes, readers: VerbReaders) -> list[Verb]:
    """The verbs of a `Response`, or ValueError."""
    if len(body) > BYTES_MAX or b"<!DOCTYPE" in body:
        raise ValueError("too long, or with a DOCTYPE")
    try:
        root = ElementTree.fromstring(body)  # noqa: S314 - entities need a DOCTYPE, refused above
    except ElementTree.ParseError as error:
        raise ValueError("not XML") from error
    if root.tag != "Response":
        raise ValueError("no Response")
    return [verb for element in root if element.tag in readers for verb in readers[element.tag](element)]


def text_of(element: Element) -> str:
    return (element.text or "").strip()


def json_reply(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    typed = {"Content-Type": "application/json; charset=utf-8", **(headers or {})}
    return web.Response(body=msgspec.json.encode(value), status=status, headers=typed)


# The webhooks of a call have mostly the same values, so quoted values are cached.
_quoted = lru_cache(maxsize=8192)(quote_plus)


def form_letter(
    method: str,
    url: str,
    fields: Fields,
    headers: Callable[[str, Fields], tuple[tuple[str, str], ...]],
    rule: WebhookRetryRule,
) -> Letter:
    """A form as a body, or in the query of a GET. The fragment holds retry orders; it is neither sent nor signed.
    `headers` signs the URL and the fields of the body."""
    target, _, fragment = url.partition("#")
    # As `urlencode`, for names that need no quoting.
    form = "&".join([f"{name}={_quoted(value)}" for name, value in fields.items()])
    is_post = method == "POST"
    if method == "GET":
        target += ("&" if "?" in target else "?") + form
    signed = headers(target, fields if is_post else {})
    request = Outgoing(
        method, f"{target}#{fragment}" if fragment else target, signed, form.encode() if is_post else b""
    )
    return Letter(request, rule.ordered_by(url))


def moment(instant: float) -> datetime:
    return datetime.fromtimestamp(instant, UTC)
