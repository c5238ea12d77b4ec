"""Removes phone numbers and secrets from log lines and spans.

A number becomes a pseudonym, `phone:kcfpahgb*42`: eight letters of an HMAC and its last two digits. The same number
gives the same pseudonym, so that a person's calls can be followed without their number. `patterns` has the patterns;
this module walks a log event and replaces matches before the line is rendered.
"""

import hmac
import secrets
from collections.abc import Iterable, Mapping, Set
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from uuid import UUID

from trunkline.telemetry.patterns import Kind, could_be_phone, hide_secrets, kind_of_key, replace_phones

MASK = "***"

# Deeper structures become text, which also ends cycles.
_DEPTH_MAX = 6
# Letters only, so that a pseudonym can never look like a number and be masked again.
_LETTERS = str.maketrans("0123456789", "ghijklmnop")

# By their type no phone number, whatever their digits.
_NEVER_PERSONAL = (date, UUID, Decimal)

_kind_of_key = lru_cache(maxsize=1024)(kind_of_key)


class Pseudonyms:
    """Pseudonyms of numbers under a key. By default the key is random, so they are valid for this process only."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def use_key(self, secret: bytes) -> None:
        # Derived, so that a log line never contains a signature under the key that signs URLs.
        self._key = hmac.digest(secret, b"trunkline log pseudonyms", "sha256")

    def of(self, number: str) -> str:
        """The last ten digits decide: +1 415 555 0123 and (415) 555-0123 are one person."""
        digits = "".join(str(int(character)) for character in number if character.isdecimal())
        letters = hmac.digest(self._key, digits[-10:].encode(), "sha256").hex()[:8].translate(_LETTERS)
        return f"phone:{letters}*{digits[-2:]}"


pseudonyms = Pseudonyms()


def mask_text(text: str, kind: Kind | None = None) -> str:
    """The text without phone numbers and secrets. A plain word, as most values are, skips all patterns."""
    if text.isalpha() or len(text) < 5:
        return text
    return replace_phones(hide_secrets(text, MASK), pseudonyms.of, kind)


def mask_value(value: object, key: str = "", depth: int = 0) -> object:
    """The value as plain data without phone numbers and secrets, whatever its shape. `key` announces its kind."""
    if value is None or isinstance(value, bool | float):
        return value
    kind = _kind_of_key(key) if key else None
    if isinstance(value, str) and not isinstance(value, Enum):
        return MASK if kind == "secret" else mask_text(value, kind)
    if isinstance(value, int):
        return _mask_integer(int(value), kind)
    if kind == "secret":
        return MASK
    if depth < _DEPTH_MAX:
        if isinstance(value, Mapping):
            return {
                mask_text(_text(name)): mask_value(item, _text(name), depth + 1)
                for name, item in value.items()
            }
        if isinstance(value, list | tuple | Set):
            return _mask_items(value, key, depth + 1)
    return _text(value) if isinstance(value, _NEVER_PERSONAL) else mask_text(_text(value), kind)


def _mask_integer(value: int, kind: Kind | None) -> int | str:
    """A number is rarely an integer, and `to=20971520` is a size: only a sure key or ten digits count."""
    text = str(abs(value))
    is_phone = len(text) >= 7 if kind == "phone" else len(text) >= 10 and could_be_phone(text)
    return pseudonyms.of(text) if is_phone and kind in ("phone", "maybe_phone") else value


def _mask_items(items: Iterable[object], key: str, depth: int) -> list[object]:
    """A pair may be a header, `("authorization", "Basic …")`: then its first item is the key of its second."""
    match list(items):
        case [str() | bytes() as name, value] if _kind_of_key(_text(name)):
            return [_text(name), mask_value(value, _text(name), depth)]
        case listed:
            return [mask_value(item, key, depth) for item in listed]


def _text(value: object) -> str:
    """The value as text. A log line must never fail because of its values."""
    try:
        match value:
            case Enum():
                return str(value.value)
            case str() | UUID() | PurePath() | Decimal():
                return str(value)
            case bytes() | bytearray():
                return value.decode("utf-8", "backslashreplace")
            case date():
                return value.isoformat()
            case BaseException():
                return f"{type(value).__name__}: {value}"
            case _:
                return repr(value)
    except Exception:
        return f"<unprintable {type(value).__name__}>"
