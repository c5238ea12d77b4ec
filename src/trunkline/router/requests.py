"""The bodies of requests to the router, and their validation."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from trunkline.router.pods import PodHeartbeat

# Kubernetes' rule for pod names. `metadata` is reserved: a key of the router has that name.
POD_NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_POD_NAME = re.compile(POD_NAME)
_RESERVED = frozenset({"metadata"})
PAGE_MAX = 1000
# A carrier's id of a call: 34 characters at Twilio, 36 elsewhere. Spaces separate ids in Valkey.
CALL_SID = r"[!-~]{1,128}"
_CALL_SID = re.compile(CALL_SID)
TEXT_MAX = 256
CALLS_MAX = 1000
SEQUENCE_MAX = 2**53
INTERVAL_MAX_S = 3600
# Postgres stores no NUL, and no control character belongs in a name or an address.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

Body = TypeVar("Body", bound=msgspec.Struct)


class BadRequest(Exception):
    """The message is for the client; `field` names the wrong field, if it is one."""

    def __init__(self, message: str, field: str = ""):
        super().__init__(message)
        self.message = message
        self.field = field


class AllocateBody(msgspec.Struct):
    call_sid: str = ""
    merchant_id: str | None = None
    # By policy (ROUTER_HOLD_MAX): queue for a pod instead of being refused.
    wait: bool = False


class DrainBody(msgspec.Struct):
    pod_name: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    first: int
    count: int


class ReleaseBody(msgspec.Struct):
    call_sid: str = ""
    # Only a pod that releases its own call sends its name.
    pod_name: str | None = None
    # Which of the call's streams the pod had. Without one: the call's present stream.
    turn: int | None = None


class HeartbeatBody(msgspec.Struct):
    ip: str = ""
    port: int = 0
    version: str = ""
    calls: list[str] = []
    # Calls that ended in this pod lately.
    ended: list[str] = []
    # Ended calls whose handlers still run.
    hanging: list[str] = []
    # Those of `calls` that it is about to hand over to other pods.
    handing_over: list[str] = []
    boot_id: str = ""
    sequence: int | UnsetType = UNSET
    draining: bool = False
    base_url: str = ""
    # The interval of its heartbeats. 30 s is that of the agents of the router's guide, which send none.
    interval_s: float = 30.0


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


def merchant_id(text: str | None) -> str:
    return _short(text or "", "merchant_id")


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


def pod_name(text: str) -> str:
    if not text:
        raise BadRequest("pod_name is required", "pod_name")
    if not _POD_NAME.fullmatch(text) or text in _RESERVED:
        raise BadRequest("pod_name must be lower-case letters, digits, '-' and '.'", "pod_name")
    return text


def heartbeat(pod: str, body: HeartbeatBody) -> PodHeartbeat:
    for field in ("calls", "ended", "hanging", "handing_over"):
        if len(getattr(body, field)) > CALLS_MAX:
            raise BadRequest(f"{field} must be at most {CALLS_MAX}", field)
    if body.base_url and not body.base_url.startswith(("ws://", "wss://")):
        raise BadRequest("base_url must begin with ws:// or wss://", "base_url")
    if not 0 <= body.port <= 65535:
        raise BadRequest("port must be 0 to 65535", "port")
    if not 0 < body.interval_s <= INTERVAL_MAX_S:
        raise BadRequest(f"interval_s must be more than 0 and at most {INTERVAL_MAX_S}", "interval_s")
    # Heartbeats without a sequence are ordered by the time at which they come in.
    sequence = time.time_ns() // 1_000_000 if body.sequence is UNSET else body.sequence
    if not 0 <= sequence < SEQUENCE_MAX:
        raise BadRequest("sequence must be 0 or more, and less than 2^53", "sequence")
    return PodHeartbeat(
        pod=pod_name(pod),
        boot_id=_short(body.boot_id, "boot_id"),
        sequence=sequence,
        ip=_short(body.ip, "ip"),
        port=body.port,
        version=_short(body.version, "version"),
        base_url=_short(body.base_url, "base_url"),
        calls=tuple(call_sid(call) for call in body.calls),
        ended=tuple(call_sid(call) for call in body.ended),
        draining=body.draining,
        interval_s=body.interval_s,
        hanging=tuple(sorted({call_sid(call) for call in body.hanging})),
        handing_over=tuple(call_sid(call) for call in body.handing_over),
    )


def _short(text: str, field: str) -> str:
    if len(text) > TEXT_MAX:
        raise BadRequest(f"{field} must be at most {TEXT_MAX} characters", field)
    if _CONTROL.search(text):
        raise BadRequest(f"{field} must have no control characters", field)
    return text
