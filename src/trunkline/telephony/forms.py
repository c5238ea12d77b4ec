"""Parses what carriers send: bodies into fields (forms, multipart forms and flat JSON), and the counts, the costs and
the words for states and kinds in them. Pure and bounded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from email.errors import MessageError
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any
from urllib.parse import parse_qsl, quote_plus, unquote_to_bytes, urlsplit

import msgspec

from trunkline.telephony.carrier import (
    CallbackTag,
    CallState,
    CarrierCost,
    EndReason,
    EventKind,
    Unreadable,
    WebhookRequest,
)

FORM = "application/x-www-form-urlencoded"
JSON = "application/json"

FIELDS_MAX = 200
# No call costs a million.
UNITS_MAX = 1_000_000
MICROS = 1_000_000

Fields = Sequence[tuple[str, str]]

_QUOTED = {code: quote_plus(chr(code)) for code in range(128)}

KINDS: Mapping[CallState, EventKind] = {
    "queued": "initiated",
    "ringing": "ringing",
    "answered": "answered",
    "ended": "ended",
}


@dataclass(frozen=True, slots=True)
class Statuses:
    """A carrier's words for the states of a call."""

    live: Mapping[str, CallState]
    ended: Mapping[str, EndReason]

    def state(self, status: str) -> CallState | None:
        return "ended" if status in self.ended else self.live.get(status)


@dataclass(frozen=True, slots=True)
class EventFields:
    """The fields by which Twilio and Plivo say what a webhook is about."""

    statuses: Statuses
    # Webhooks about recordings have this one, whatever their URL.
    recording: str
    stream: str
    stream_kinds: Mapping[str, EventKind]
    # What distinguishes events of one kind, by callback. `status` is for all others.
    marks: Mapping[str, tuple[str, ...]]

    def identify(
        self, call_id: str, fields: Mapping[str, str], tag: CallbackTag
    ) -> tuple[EventKind, str] | Unreadable:
        """The kind of the event, and the key that its repeats have too."""
        about = "recording" if self.recording in fields else tag.kind
        kind: EventKind | None
        match about:
            case "recording" | "machine":
                kind = about
            case "stream":
                kind = self.stream_kinds.get(fields.get(self.stream, ""))
            case _:
                state = self.statuses.state(fields.get("CallStatus", ""))
                kind = KINDS[state] if state else None
        if kind is None:
            return Unreadable("stream event unknown" if about == "stream" else "call status unknown")
        marks = [fields.get(name, "") for name in self.marks.get(about) or self.marks["status"]]
        return kind, f"{call_id}:{tag.kind}:{kind}:{':'.join(marks)}"


def fields_of(request: WebhookRequest) -> Fields | None:
    """The fields of a query or of a body; None for a body that does not match its content type."""
    if request.method != "POST":
        return read_query(request.url)
    return read_fields(request.headers.get("content-type", ""), request.body)


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def read_fields(content_type: str, body: bytes) -> Fields | None:
    """The fields of a body, or None if it does not match its content type."""
    match media_type(content_type):
        case "application/x-www-form-urlencoded":
            return read_form(body)
        case "multipart/form-data":
            return _multipart(content_type, body)
        case "application/json":
            return _flat(json_object(body))
        case _:
            return None


def read_form(body: bytes) -> Fields | None:
    """As `parse_qsl`, three times as fast: most of the thirty values have nothing to unquote."""
    fields: list[tuple[str, str]] = []
    try:
        # Every plus is a space: a literal plus is quoted.
        for part in body.decode().replace("+", " ").split("&"):
            name, _, value = part.partition("=")
            if "%" in part:
                fields.append((unquote_to_bytes(name).decode(), unquote_to_bytes(value).decode()))
            elif part:
                fields.append((name, value))
    except ValueError:
        return None
    return fields if len(fields) <= FIELDS_MAX else None


def write_form(fields: Fields) -> bytes:
    """As `urlencode`, for names that need no quoting, three times as fast: one pass per value instead of a check of
    every character."""
    written = []
    for name, value in fields:
        quoted = value.translate(_QUOTED) if value.isascii() else quote_plus(value)
        written.append(f"{name}={quoted}")
    return "&".join(written).encode()


def read_query(url: str) -> Fields:
    return parse_qsl(urlsplit(url).query, keep_blank_values=True)


def json_object(body: bytes) -> dict[str, Any]:
    """Anything but an object becomes an empty one: its fields are missing."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def whole(value: object) -> int | None:
    """A count that is not negative. Carriers send numbers as numbers or as strings."""
    match value:
        case bool():
            return None
        case int() if value >= 0:
            return value
        case float() if value >= 0 and value.is_integer():
            return int(value)
        case str() if value.isascii() and value.isdecimal() and len(value) < 19:
            return int(value)
        case _:
            return None


def cost_of(amount: object, currency: object = "USD") -> CarrierCost | None:
    """From a number, or a text with one. Some carriers write charges with a minus."""
    if isinstance(amount, bool) or not isinstance(amount, str | int | float):
        return None
    try:
        units = abs(Decimal(str(amount)))
    except InvalidOperation:
        return None
    is_currency = (
        isinstance(currency, str) and len(currency) == 3 and currency.isalpha() and currency.isascii()
    )
    if not units.is_finite() or units >= UNITS_MAX or not is_currency:
        return None
    return CarrierCost(round(units * MICROS), str(currency).upper())


def _flat(values: dict[str, Any]) -> Fields | None:
    """Top-level values as text. The carrier's own parser reads nested ones."""
    plain = [
        (name, "" if value is None else str(value))
        for name, value in values.items()
        if not isinstance(value, dict | list)
    ]
    return plain if 0 < len(plain) <= FIELDS_MAX else None


def _multipart(content_type: str, body: bytes) -> Fields | None:
    head = f"Content-Type: {content_type}\r\n\r\n".encode("latin-1", "replace")
    try:
        message = BytesParser(policy=HTTP).parsebytes(head + body)
        parts = [*message.iter_parts()]
        fields = [(str(part["content-disposition"].params["name"]), part.get_content()) for part in parts]
    except (MessageError, LookupError, ValueError, KeyError, AttributeError, TypeError):
        return None
    if not message.is_multipart() or not 0 < len(fields) <= FIELDS_MAX:
        return None
    return [(name, value.rstrip("\r\n")) for name, value in fields if isinstance(value, str)]
