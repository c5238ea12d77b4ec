"""Which payloads of leads are allowed. They are stored as jsonb and come back unchanged."""

import math
from typing import Any

import msgspec

DEPTH_MAX = 32
_INT_MAX = 2**63 - 1

# Sorted keys: two spellings of one object have one encoding, as a fingerprint needs.
encode = msgspec.json.Encoder(order="deterministic").encode


def problem(payload: dict[str, Any], *, bytes_max: int) -> str | None:
    """The first reason why a payload cannot be stored, or None."""
    reason = None if _is_plain(payload) else _value_problem(payload, DEPTH_MAX)
    if reason is None and (size := len(encode(payload))) > bytes_max:
        reason = f"The payload has {size} bytes. At most {bytes_max} are allowed."
    return reason


def _is_plain(payload: dict[str, Any]) -> bool:
    """Names with ASCII texts and numbers, as in most payloads: these need no further check."""
    return all(
        name.isascii()
        and "\x00" not in name
        and (
            (type(value) is str and value.isascii() and "\x00" not in value)
            or (type(value) is int and abs(value) <= _INT_MAX)
        )
        for name, value in payload.items()
    )


def _value_problem(value: Any, depth_left: int) -> str | None:
    match value:
        case str():
            return _text_problem(value)
        case bool() | None:
            return None
        case int():
            return None if abs(value) <= _INT_MAX else "A number is too large. Send it as a string."
        case float():
            return None if math.isfinite(value) else "NaN and Infinity are not JSON. Send null or a string."
        case _ if depth_left == 0:
            return f"The payload is nested more than {DEPTH_MAX} levels deep."
        case list():
            return next(filter(None, (_value_problem(item, depth_left - 1) for item in value)), None)
        case dict():
            parts = (part for pair in value.items() for part in pair)
            return next(filter(None, (_value_problem(part, depth_left - 1) for part in parts)), None)
        case _:
            return "Only JSON values can be stored."


def _text_problem(text: str) -> str | None:
    if "\x00" in text:
        return "A text contains the NUL character, which cannot be stored."
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        return "A text contains half a character (a lone surrogate), which cannot be stored."
    return None
