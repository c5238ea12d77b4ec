"""Checks the requests to the router, with the words that clients know. Their shapes are in `schema/router.py`."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from trunkline.routing import PodHeartbeat
from trunkline.schema.router import (
    CALL_SID,
    CALLS_MAX,
    INTERVAL_MAX_S,
    INTERVAL_MIN_S,
    POD_NAME,
    SEQUENCE_MAX,
    TEXT_MAX,
    AgentHeartbeat,
)

_POD_NAME = re.compile(POD_NAME)
# A key of the router has this name.
_RESERVED = frozenset({"metadata"})
_CALL_SID = re.compile(CALL_SID)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
PAGE_MAX = 1000

Body = TypeVar("Body")


class BadRequest(Exception):
    """The message is for the client; `field` names the wrong field, if it is one."""

    def __init__(self, message: str, field: str = ""):
        super().__init__(message)
        self.message = message
        self.field = field


@dataclass(frozen=True, slots=True)
class Page:
    first: int
    count: int

    def following(self, found: int) -> str | None:
        """The cursor of the next page, None at the end. Pods and calls that come and go meanwhile may be missed."""
        return str(self.first + self.count) if found == self.count else None


def decode(body: bytes, shape: type[Body]) -> Body:
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        raise BadRequest(str(error)) from error
    except msgspec.DecodeError as error:
        raise BadRequest("the body is not JSON") from error


def call_sid(text: str) -> str:
    if not text:
        raise BadRequest("call_sid is required", "call_sid")
    if not _CALL_SID.fullmatch(text):
        raise BadRequest("call_sid must be 1 to 128 printable characters without spaces", "call_sid")
    return text


def short(text: str | None, field: str) -> str:
    if text and len(text) > TEXT_MAX:
        raise BadRequest(f"{field} must be at most {TEXT_MAX} characters", field)
    if text and _CONTROL.search(text):
        raise BadRequest(f"{field} must have no control characters", field)
    return text or ""


def pod_name(text: str) -> str:
    if not text:
        raise BadRequest("pod_name is required", "pod_name")
    if not _POD_NAME.fullmatch(text) or text in _RESERVED:
        raise BadRequest("pod_name must be lower-case letters, digits, '-' and '.'", "pod_name")
    return text


def page(query: Mapping[str, str]) -> Page:
    """`?limit=` and `?cursor=`, the index of the first item."""
    return Page(_whole(query, "cursor", 0, 10_000_000), _whole(query, "limit", 50, PAGE_MAX, least=1))


def _whole(query: Mapping[str, str], name: str, default: int, most: int, least: int = 0) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not least <= int(text) <= most:
        raise BadRequest(f"{name} must be a whole number from {least} to {most}", name)
    return int(text)


def heartbeat(pod: str, body: AgentHeartbeat) -> PodHeartbeat:
    calls: dict[str, tuple[str, ...]] = {}
    for field in ("calls", "ended", "hanging", "handing_over"):
        calls[field] = tuple(map(call_sid, getattr(body, field)))
        if len(calls[field]) > CALLS_MAX:
            raise BadRequest(f"{field} must be at most {CALLS_MAX}", field)
    if body.base_url and not body.base_url.startswith(("ws://", "wss://")):
        raise BadRequest("base_url must begin with ws:// or wss://", "base_url")
    if not 0 <= body.port <= 65535:
        raise BadRequest("port must be 0 to 65535", "port")
    if not INTERVAL_MIN_S <= body.interval_s <= INTERVAL_MAX_S:
        raise BadRequest(f"interval_s must be from {INTERVAL_MIN_S} to {INTERVAL_MAX_S}", "interval_s")
    # Heartbeats without a sequence are ordered by the time at which they come in.
    sequence = time.time_ns() // 1_000_000 if body.sequence is None else body.sequence
    if not 0 <= sequence < SEQUENCE_MAX:
        raise BadRequest("sequence must be 0 or more, and less than 2^53", "sequence")
    return PodHeartbeat(
        pod=pod_name(pod),
        boot_id=short(body.boot_id, "boot_id"),
        sequence=sequence,
        ip=short(body.ip, "ip"),
        port=body.port,
        version=short(body.version, "version"),
        base_url=short(body.base_url, "base_url"),
        calls=calls["calls"],
        leaving=body.draining,
        interval_s=body.interval_s,
        ended=calls["ended"],
        hanging=tuple(sorted(set(calls["hanging"]))),
        handing_over=calls["handing_over"],
    )
