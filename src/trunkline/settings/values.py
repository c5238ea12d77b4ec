"""The types of values of variables, each with a description of what is allowed."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, StringConstraints

from trunkline.settings.tiers import parse_tiers


@dataclass(frozen=True)
class Allowed:
    """What a field accepts, in words. Shown in the documentation and when a value is refused."""

    text: str


_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")


def parse_duration_s(value: object) -> object:
    """`1m30s`, `200ms` or plain seconds, as seconds. The type check refuses other values."""
    if isinstance(value, str) and _DURATION.fullmatch(value):
        return sum(float(amount) * _UNIT_S[unit] for amount, unit in _PART.findall(value))
    return value


def split_list(value: object) -> object:
    """`a, b` as two values. Values that are no text stay as they are."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _url(*schemes: str) -> Callable[[str], str]:
    def check(url: str) -> str:
        parts = urlsplit(url)
        _ = parts.port  # raises on a port that is none
        if parts.scheme not in schemes or not (parts.netloc or parts.path or parts.query):
            raise ValueError("no such URL")
        return url

    return check


def _base_url(*schemes: str) -> Callable[[str], str]:
    def check(url: str) -> str:
        parts = urlsplit(_url(*schemes)(url))
        if not parts.hostname or parts.query or parts.fragment:
            raise ValueError("no base URL")
        return url.rstrip("/")

    return check


def _secret_url(secret: SecretStr) -> SecretStr:
    """A URL whose path or query is as sensitive as a password."""
    if not urlsplit(_url("http", "https")(secret.get_secret_value())).hostname:
        raise ValueError("no such URL")
    return secret


Seconds = Annotated[
    float,
    BeforeValidator(parse_duration_s),
    Field(gt=0, allow_inf_nan=False),
    Allowed("a duration above 0: `5s`, `200ms`, `2m`, `24h`, or plain seconds"),
]
Rate = Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False), Allowed("a number above 0, up to 10000")]
Port = Annotated[int, Field(ge=0, le=65535), Allowed("a port, 0 to 65535; 0 takes a free one")]
Switch = Annotated[bool, Allowed("`true` or `false`")]
Name = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"),
    Allowed("up to 63 letters, digits, dots, dashes and underscores"),
]
Text = Annotated[
    str, StringConstraints(min_length=1, max_length=255), Allowed("text of up to 255 characters")
]


def _tiers(text: str) -> str:
    parse_tiers(text)
    return text


TierText = Annotated[
    str,
    StringConstraints(max_length=100_000),
    AfterValidator(_tiers),
    Allowed('tiers as JSON: `{"gold": {"type": "exclusive", "target": 1}}`, types `exclusive` and `shared`'),
]


def split_networks(value: object) -> object:
    """`10.0.0.0/8, 127.0.0.1` as networks. An address alone is a network of one."""
    parts = split_list(value)
    if isinstance(parts, tuple):
        return tuple(ip_network(part, strict=False) if isinstance(part, str) else part for part in parts)
    return parts


Networks = Annotated[
    tuple[IPv4Network | IPv6Network, ...],
    BeforeValidator(split_networks),
    Allowed("addresses and networks such as `10.0.0.0/8`, with commas between"),
]
Modules = Annotated[
    tuple[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")], ...],
    BeforeValidator(split_list),
    Allowed("names of Python modules such as `acme.jobs`, with commas between"),
]
Folder = Annotated[Path, Allowed("a path")]
Secret = Annotated[SecretStr, Allowed("text")]
LongSecret = Annotated[SecretStr, Field(min_length=16), Allowed("at least 16 characters")]
SecretKeys = Annotated[
    tuple[Annotated[SecretStr, Field(min_length=32)], ...],
    BeforeValidator(split_list),
    Field(max_length=2),
    Allowed("at least 32 characters; while rotating two of them, the new one first, with a comma between"),
]
PostgresUrl = Annotated[
    str, AfterValidator(_url("postgresql", "postgres")), Allowed("a `postgresql://…` URL")
]
RedisUrl = Annotated[
    str,
    AfterValidator(_url("redis", "rediss", "unix")),
    Allowed("a `redis://…`, `rediss://…` or `unix://…` URL"),
]
HttpUrl = Annotated[
    str, AfterValidator(_base_url("http", "https")), Allowed("an `http://…` or `https://…` URL")
]
SecretUrl = Annotated[SecretStr, AfterValidator(_secret_url), Allowed("an `http://…` or `https://…` URL")]


def _answer_url(url: str) -> str:
    scheme, _, rest = url.partition(":")
    if scheme in ("tel", "sip", "sips"):
        if not re.fullmatch(r"\+[1-9]\d{6,14}" if scheme == "tel" else r"[^\s@]+@[^\s@]+", rest):
            raise ValueError("nobody to dial")
        return url
    if not urlsplit(_url("https", "http", "wss", "ws")(url)).hostname:
        raise ValueError("no such URL")
    return url


# The fallback of an answered call that gets no pod.
AnswerUrl = Annotated[
    str,
    AfterValidator(_answer_url),
    Allowed("an `https://…` or `wss://…` URL, `tel:+14155550100`, or `sip:…@…`"),
]
SocketUrl = Annotated[str, AfterValidator(_base_url("ws", "wss")), Allowed("a `ws://…` or `wss://…` URL")]
