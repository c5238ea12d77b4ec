"""Patterns of phone numbers and secrets in text. Pure; `redaction` applies them.

Three rules find numbers, from the surest to the weakest:

1. A plus sign (also as `%2B`, `\\u002B`, `&#43;`) and at least seven digits, with or without separators.
2. Digits after a word that announces a number: `to=919876543210`, `"phone": 4155550123`, `tel:4155550123`.
3. The shapes in which people write national numbers: `(415) 555-0123`, `98765 43210`, `020 7946 0958`.

A bare run of digits is none of these: it may be a timestamp, a size or an id. Nor is a UUID, a date or an IP address.
"""

import re
from collections.abc import Callable
from typing import Literal

Kind = Literal["secret", "phone", "maybe_phone"]

# `to` and `from` also name times, places and amounts, so they announce a number less surely than `phone` does.
_PHONE = r"phone|mobile|msisdn|tel|telephone|whatsapp|sip|(?:phone|mobile|cell|contact)_?number"
_MAYBE_PHONE = r"to|from|numbers?|caller|callee|called|calling|caller_?id|call_?to|call_?from|recipient"
_HIDDEN = (
    r"authorization|password|passwd|secret|token|sig|signature|cookie|credentials?"
    r"|(?:api|secret|admin|private|access)_?key"
)
_PERSON = (
    r"(?:first|last|full|customer|person|contact|callee)_?name|customer|email|payload|transcript|recording"
)

_KEY_KINDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("secret", re.compile(rf"(?:^|_)(?:{_HIDDEN})$")),
    ("phone", re.compile(rf"(?:^|_)(?:{_PHONE})$")),
    ("maybe_phone", re.compile(rf"(?:^|_)(?:{_MAYBE_PHONE})$")),
)
_PERSON_KEY = re.compile(rf"(?:^|_)(?:{_PERSON})$")

# Between a key and its value, in queries, headers, JSON (also inside JSON) and the messages of Postgres.
_LINK = r"""(?:[\\"')\]]{0,3}(?:\s?[:=]\s?|%3A|%3D)[\\"'(\[]{0,3})"""
# Between the digits of one number. A form-encoded space is a plus, but only before a short group: before a long one,
# or after a real space, a plus begins the next number.
_GAP = r"(?:[ .()/\-\u00a0\u2010-\u2014]|%20|%28|%29|(?<! )\+(?=(?:%28)?\d{1,5}(?!\d| \d))){1,3}"
_DIGITS = rf"\d(?:(?:{_GAP})?\d){{6,}}"
_SEVEN_DIGITS = re.compile(_DIGITS)
_NO_DIGIT = re.compile(r"\D+")

# One fast pass over the text finds candidates, and skips what certainly is no number: UUIDs, other ids of 32 hex
# digits, dates, IP addresses. Only the surroundings of a candidate are matched with the slow patterns below. It never
# backtracks (`{6,}+`), so a query of ten thousand plus signs costs no more than any other.
_HEX = "[0-9a-fA-F]"
_CANDIDATE = re.compile(
    rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}|{_HEX}{{32,}}"
    r"|(?:19|20)\d\d-[01]\d-[0-3]\d(?!\d)|(?<!%2[Bb])\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?![\d.])"
    r"|(?P<candidate>[+(\d](?:[-+\d .()/\u00a0\u2010-\u2014]|%2[089]){6,}+)"
)
# A word that announces a number, and what links them, fit into this many characters before it.
_REACH = 40

# Ten digits in a row are a whole number: what follows after a gap is something else. A country code never begins
# with 0, which tells a number from the offset of a timestamp.
_PLUS = re.compile(
    rf"(?:(?<!\d)\+|\+(?=\d{{7}}|\d+[ .()\-])|＋|%2B|%252B|\\u002B|&#43;)"
    rf"(?:{_GAP})?([1-9](?:\d{{9,}}|(?:(?:{_GAP})?\d){{6,}}))",
    re.IGNORECASE,
)
_ANNOUNCED = re.compile(
    rf"(?:(?P<phone>(?:{_PHONE})|\bnumber(?=\s))|(?:\b|_|(?-i:(?<=[a-z])(?=[A-Z])))(?:{_MAYBE_PHONE}))"
    rf"""(?:{_LINK}|(?(phone)\s["']?|(?!)))(?P<digits>\(?{_DIGITS})(?![\w-])""",
    re.IGNORECASE,
)
_NATIONAL = re.compile(
    r"(?:(?<![\w+.\-])|(?<=%[0-9A-F]{2})|(?<=\\[nrt]))(?P<digits>"
    r"(?:1[ .+\-])?\(?\d{3}\)?(?:[ .+\-]|%20){1,2}\d{3}(?:[ .+\-]|%20)\d{4}"  # (415) 555-0123, 1-415-555-0123
    r"|(?:\(|%28)\d{2,5}(?:\)|%29)(?:[ \-]|%20)?\d{3,4}(?:[ \-]|%20)?\d{3,5}"  # (020) 7946 0958
    r"|0\d{2,4}[ /\-](?:\d{6,8}|\d{3,4}[ \-]\d{3,4})"  # 0151 23456789, 020 7946 0958
    r"|0\d(?:[ .\-]\d\d){4}"  # 01 23 45 67 89
    r"|0?[6-9]\d{4}[ \-]\d{5}"  # 98765 43210
    r")(?![\w]|[-.]\w)",
    re.IGNORECASE,
)

_URL_PASSWORD = re.compile(r"(?<=://)([^\s/:@]*):[^\s/]+@")
_SECRET_VALUE = re.compile(
    rf"""((?:\b|_|(?<=%[0-9A-F]{{2}}))(?:{_HIDDEN}){_LINK}(?:(?:bearer|basic)\s+)?)"""
    r"""[^\s&"',;<>(){}\[\]\\]+""",
    re.IGNORECASE,
)
_SECRET_HINTS = ("auth", "passw", "secret", "token", "sig", "cookie", "credential", "key")
_CREDENTIALS = re.compile(r"\b(bearer|basic)\s+(?=\S*[\d=])[\w.~+/=\-]{8,}", re.IGNORECASE)


def kind_of_key(key: str) -> Kind | None:
    """The kind of value that a key announces."""
    key = _snake(key)
    return next((kind for kind, pattern in _KEY_KINDS if pattern.search(key)), None)


def names_a_person(key: str) -> bool:
    """Whether a key names personal data or a secret."""
    return kind_of_key(key) is not None or _PERSON_KEY.search(_snake(key)) is not None


def _snake(key: str) -> str:
    """`customerMobileNumber` and `X-Twilio-Signature` as `customer_mobile_number` and `x_twilio_signature`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[-. ]", "_", key).lower()


def replace_phones(text: str, replacement: Callable[[str], str], kind: Kind | None = None) -> str:
    """Replace every phone number in the text by `replacement(its text)`. `kind` is what the text's key announces."""
    if kind == "maybe_phone":
        return replace_phones("to=" + text, replacement).removeprefix("to=")
    pieces: list[str] = []
    done = known = 0
    for found in _CANDIDATE.finditer(text):
        if not found["candidate"]:
            known = found.end()
        elif len(_NO_DIGIT.sub("", found[0])) >= 7:
            start, end = max(done, known, found.start() - _REACH), found.end()
            pieces += text[done:start], _replace_near(text[start:end], text[end : end + 2], replacement, kind)
            done = end
    return "".join(pieces) + text[done:] if pieces else text


def _replace_near(text: str, following: str, replacement: Callable[[str], str], kind: Kind | None) -> str:
    """`following` is context only: what follows decides whether a run of digits is a number."""
    text = _PLUS.sub(lambda found: replacement(found[1]), text + following)
    if kind == "phone":
        text = _SEVEN_DIGITS.sub(lambda found: replacement(found[0]), text)
    text = _ANNOUNCED.sub(lambda found: _replace_announced(found, replacement), text)
    text = _NATIONAL.sub(lambda found: replacement(found["digits"]), text)
    return text.removesuffix(following)


def _replace_announced(found: re.Match[str], replacement: Callable[[str], str]) -> str:
    digits = found["digits"]
    if not found["phone"] and not could_be_phone(digits):
        return found[0]
    return found[0].removesuffix(digits) + replacement(digits)


def could_be_phone(text: str) -> bool:
    """Whether a weakly announced run is plausible: 7 to 15 digits, and no timestamp.

    Country code 1 has eleven digits, always. That tells Unix seconds (ten) and milliseconds (thirteen) from numbers.
    """
    digits = _NO_DIGIT.sub("", text)
    return 7 <= len(digits) <= 15 and (len(digits) == 11 or digits[0] != "1")


def hide_secrets(text: str, mask: str) -> str:
    """Hide passwords in URLs, credentials in headers, and the values of `token=`, `sig=` and their like."""
    if "://" in text:
        text = _URL_PASSWORD.sub(rf"\1:{mask}@", text)
    if "=" in text or ":" in text or " " in text:
        lowered = text.lower()
        if any(hint in lowered for hint in _SECRET_HINTS):
            text = _SECRET_VALUE.sub(rf"\1{mask}", text)
        if "basic " in lowered or "bearer " in lowered:
            text = _CREDENTIALS.sub(rf"\1 {mask}", text)
    return text
