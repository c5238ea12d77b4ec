"""The bodies of requests to the router and of its responses: each field with its description for the OpenAPI document.

Responses have the documented fields, and after them the platform's additions. The schemas of requests do not validate:
the functions below do, with the words that clients know.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from trunkline.bus.router import Drained, PodView, RouterCall, RouterCounts
from trunkline.routing import Allocation, EndedAllocation, HeartbeatResult, PodHeartbeat
from trunkline.store.pods import Reset
from trunkline.telephony.callbacks import TURN_MAX

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
# No agent sends a thousand heartbeats a second, and the column's type cannot hold every number above 0.
INTERVAL_MIN_S, INTERVAL_MAX_S = 0.001, 3600
# Postgres stores no NUL, and no control character belongs in a name or an address.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PLAIN = r"^[^\x00-\x1f\x7f]*$"

Body = TypeVar("Body", bound=Struct)


class BadRequest(Exception):
    """The message is for the client; `field` names the wrong field, if it is one."""

    def __init__(self, message: str, field: str = ""):
        super().__init__(message)
        self.message = message
        self.field = field


def doc(description: str, example: object = None, **schema: Any) -> Meta:
    """A field in the OpenAPI document; `schema` has what is left to the functions below to validate."""
    examples = None if example is None else [example]
    return Meta(description=description, examples=examples, extra_json_schema=schema or None)


def short(description: str, example: object = None) -> Meta:
    return doc(description, example, maxLength=TEXT_MAX, pattern=_PLAIN)


CallSid = Annotated[str, doc("The carrier's id of the call.", "CA123", pattern=f"^{CALL_SID}$")]
PodName = Annotated[str, doc("As Kubernetes names pods.", "voice-agent-0", pattern=f"^{POD_NAME}$")]
# Responses do not guarantee their form: a key that was written by hand is shown as it is.
SomeCall = Annotated[str, doc("The carrier's id of the call.", "CA123")]
SomePod = Annotated[str, doc("The pod's name.", "voice-agent-0")]
SomeTier = Annotated[
    str, doc("A tier: gold, standard, overflow, basic, `merchant:<id>` or one of the config.", "standard")
]
Success = Annotated[bool, doc("True.", const=True)]
Numbers = dict[str, int]


class AllocateBody(Struct):
    call_sid: CallSid = ""
    merchant_id: Annotated[
        str | None, short("The merchant of the call; the router tries its tier first. Left out: standard.")
    ] = None
    wait: Annotated[
        bool,
        doc(
            "Queue for a pod where ROUTER_HOLD_MAX allows it. The client repeats the request within `retry_after_s`."
        ),
    ] = False


class ReleaseBody(Struct):
    call_sid: CallSid = ""
    pod_name: Annotated[
        str | None, doc("Only if the pod itself releases the call.", pattern=f"^({POD_NAME})?$")
    ] = None
    turn: Annotated[
        int | None,
        doc(
            "Which of the call's streams the pod had. The release is ignored if another agent has the call now.",
            minimum=0,
            maximum=TURN_MAX,
        ),
    ] = None


class DrainBody(Struct):
    pod_name: PodName = ""


def _calls(description: str) -> Meta:
    return doc(description, maxItems=CALLS_MAX)


class HeartbeatBody(Struct):
    ip: Annotated[str, short("The address for a proxy.", "10.0.0.7")] = ""
    port: Annotated[int, doc("The port at that address.", minimum=0, maximum=65_535)] = 0
    version: Annotated[
        str, short("The agent's version: in a rollout pods of the newest come first.", "1.4.0")
    ] = ""
    base_url: Annotated[
        str,
        doc(
            "Where carriers reach the pod; empty: VOICE_AGENT_BASE_URL of the platform.",
            "wss://voice.example.com",
            maxLength=TEXT_MAX,
            pattern=r"^(wss?://[^\x00-\x1f\x7f]*)?$",
        ),
    ] = ""
    calls: Annotated[list[CallSid], _calls("The calls that the pod has now.")] = []
    ended: Annotated[list[CallSid], _calls("Recent calls of the pod that have ended.")] = []
    hanging: Annotated[
        list[CallSid],
        _calls("Calls that have ended and whose handlers have not: each takes up one slot of the pod."),
    ] = []
    handing_over: Annotated[
        list[CallSid],
        _calls("Those of `calls` that the pod hands over to other pods, because it is leaving."),
    ] = []
    boot_id: Annotated[
        str, short("A new id at each start of the process; calls of the process before it have ended.")
    ] = ""
    sequence: Annotated[
        int | UnsetType,
        doc(
            "Counts the heartbeats of this boot, from 1. The router ignores one that a later one overtook.",
            minimum=0,
            exclusiveMaximum=SEQUENCE_MAX,
        ),
    ] = UNSET
    draining: Annotated[bool, doc("The pod is leaving: it takes no new calls until it is gone.")] = False
    # 30 s is the interval of the agents of the router's guide, which send none.
    interval_s: Annotated[
        float,
        doc(
            "The heartbeat interval. After three of them without a heartbeat, and at least 15 s, the router "
            "reserves the pod for no dial.",
            minimum=INTERVAL_MIN_S,
            maximum=INTERVAL_MAX_S,
        ),
    ] = 30.0


class AllocationBody(Struct):
    pod_name: SomePod
    ws_url: Annotated[
        str, doc("The URL of the stream.", "wss://voice.example.com/ws/pod/voice-agent-0/CA123")
    ]
    source_pool: Annotated[str, doc("The pool of the pod.", "pool:standard")]
    allocated_at: Annotated[
        str, doc("The time of the allocation, in UTC.", "2030-05-01T09:30:00Z", format="date-time")
    ]
    was_existing: Annotated[bool, doc("The pod was allocated to this call before.")]
    token: Annotated[str, doc("The stream's parameter `token`. The pod refuses a stream without it.")]

    @classmethod
    def of(cls, given: Allocation, url: str, token: str) -> "AllocationBody":
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(given.at_s or None))
        return cls(given.slot.pod, url, given.slot.source_pool, at, given.is_existing, token)


class AllocatedBody(Struct):
    success: Success
    allocation: AllocationBody


class ReleasedBody(Struct):
    success: Success
    pod_name: SomePod
    released_to_pool: Annotated[str, doc("The pool that the pod returned to.", "pool:standard")]
    was_draining: Annotated[bool, doc("The pod is draining, and still gets no new calls.")]

    @classmethod
    def of(cls, ended: EndedAllocation) -> "ReleasedBody":
        return cls(True, ended.pod or "", ended.source_pool, ended.was_draining)


class DrainedBody(Struct):
    success: Success
    pod_name: SomePod
    has_active_call: Annotated[bool, doc("The pod has a call, which goes on.")]
    message: Annotated[str, doc("What was done.", "Pod drained successfully")]
    is_draining: Annotated[bool, doc("The pod gets no new calls now.")]

    @classmethod
    def of(cls, pod: str, drained: Drained, message: str) -> "DrainedBody":
        return cls(True, pod, drained.has_active_call, message, drained.is_draining)


class HeardBody(Struct):
    success: Success
    pod_name: SomePod
    tier: SomeTier
    draining: Annotated[bool, doc("The pod gets no new calls, by its own request or by an operator's.")]
    call_sid: Annotated[str, doc("The first of `calls`, or empty.")]
    calls: Annotated[tuple[SomeCall, ...], doc("The calls allocated to this pod, connected or not.")]
    max_concurrent: Annotated[int, doc("The number of concurrent calls of a pod of its tier.", minimum=0)]
    again_in_s: Annotated[float, doc("When the router expects the next heartbeat; 0: as usual.", minimum=0)]
    call_time_limit_s: Annotated[
        float, doc("The platform's longest call: a leaving pod waits that long.", minimum=0)
    ]
    stream_secrets: Annotated[
        list[str], doc("The secrets that sign the tokens of this pod's streams, in hex.")
    ]

    @classmethod
    def of(cls, pod: str, reply: HeartbeatResult, limit_s: float, secrets: list[bytes]) -> "HeardBody":
        first = reply.calls[0] if reply.calls else ""
        known = (pod, reply.tier, reply.draining, first, reply.calls, reply.max_concurrent, reply.again_in_s)
        return cls(True, *known, limit_s, [secret.hex() for secret in secrets])


class ResetBody(Struct):
    success: Success
    pod_name: SomePod
    ended_calls: Annotated[list[SomeCall], doc("Calls whose allocation was ended.")]
    still_named: Annotated[
        list[SomeCall], doc("Calls that the pod's last heartbeat named: a person may be talking.")
    ]
    hanging: Annotated[
        list[SomeCall],
        doc("Calls that have ended and whose handlers have not: only a restart of the pod ends them."),
    ]
    status: Annotated[str, doc("The present state.", "available")]
    message: Annotated[str, doc("What was done, and what to check.")]

    @classmethod
    def of(cls, pod: str, done: Reset) -> "ResetBody":
        messages = []
        if done.still_named:
            messages.append(
                "Pod is free here, but its heartbeats still name a call: a person may be talking, or its agent "
                "hangs. Its agent may refuse calls until that call ends; if it does not, restart the pod."
            )
        if done.hanging:
            # The pod itself counts them, so no write of the router makes room for another call.
            messages.append(
                f"Handlers of {len(done.hanging)} calls that are over hang in the pod: it takes so many calls fewer "
                "until they end. A reset does not end them: restart the pod."
            )
        message = " ".join(messages) or "Pod is free"
        calls = ([*done.calls], [*done.still_named], [*done.hanging])
        return cls(True, pod, *calls, done.status, message)


class StatusBody(Struct):
    pools: Annotated[Numbers, doc("`<tier>:available` and `<tier>:assigned`, in pods.")]
    active_calls: Annotated[int, doc("Calls with an allocated pod.", minimum=0)]
    is_leader: Annotated[bool, doc("Whether the responding process runs the pool manager.")]
    status: Annotated[str, doc("`up`.", "up")]
    waiting: Annotated[int, doc("Calls that wait for a pod.", minimum=0)] = 0
    free: Annotated[Numbers, doc("Free slots, by tier.")] = {}
    kept: Annotated[int, doc("Slots reserved for dials that are not answered yet.", minimum=0)] = 0
    kept_by_tier: Annotated[Numbers, doc("Reserved slots, by tier.")] = {}

    @classmethod
    def of(cls, counts: RouterCounts, is_leader: bool) -> "StatusBody":
        pods: Numbers = {}
        for pool in counts.pools:
            pods |= {f"{pool.tier}:available": pool.available, f"{pool.tier}:assigned": pool.assigned}
        free = {pool.tier: pool.room for pool in counts.pools}
        kept = {pool.tier: pool.kept for pool in counts.pools}
        return cls(pods, counts.calls, is_leader, "up", counts.waiting, free, counts.kept, kept)


class PodBody(Struct):
    pod_name: SomePod
    tier: SomeTier
    is_draining: Annotated[bool, doc("The pod gets no new calls.")]
    has_active_lease: Annotated[bool, doc("A call is allocated to the pod.")]
    lease_call_sid: Annotated[str, doc("The call; empty for none.")]
    status: Annotated[
        str,
        doc("`available`, `kept`, `allocated`, `ending`, `draining`, `unready` or `unknown`.", "available"),
    ]
    calls: Annotated[tuple[SomeCall, ...], doc("The calls allocated to the pod.")]
    ip: Annotated[str, doc("The address for a proxy.")]
    port: Annotated[int, doc("The port at that address.", minimum=0)]
    version: Annotated[str, doc("The agent's version.")]
    hanging: Annotated[
        tuple[SomeCall, ...],
        doc("Calls that have ended and whose handlers have not: each takes up one slot of the pod."),
    ]
    handing_over: Annotated[
        tuple[SomeCall, ...], doc("Calls that the pod hands over to other pods, because it is leaving.")
    ]

    @classmethod
    def of(cls, pod: PodView) -> "PodBody":
        lease = pod.lease or (pod.calls[0] if pod.calls else "")
        place = (pod.ip, pod.port, pod.version, pod.hanging, pod.handing_over)
        return cls(pod.name, pod.tier, pod.draining, lease != "", lease, pod.status, pod.calls, *place)


class CallBody(Struct):
    call_sid: SomeCall
    pod_name: SomePod
    source_pool: Annotated[str, doc("The pool of the pod.", "pool:standard")]
    merchant_id: Annotated[str, doc("The merchant of the call.")]
    allocated_at: Annotated[int, doc("In seconds since 1970.", minimum=0)]

    @classmethod
    def of(cls, call: RouterCall) -> "CallBody":
        return cls(call.call_sid, call.pod, call.source_pool, call.merchant_id, call.allocated_at_s)


NextCursor = Annotated[str | None, doc("Null at the end of the list.")]


class PodsPage(Struct):
    items: list[PodBody]
    next_cursor: NextCursor


class CallsPage(Struct):
    items: list[CallBody]
    next_cursor: NextCursor


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
    if not INTERVAL_MIN_S <= body.interval_s <= INTERVAL_MAX_S:
        raise BadRequest(f"interval_s must be from {INTERVAL_MIN_S} to {INTERVAL_MAX_S}", "interval_s")
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
        leaving=body.draining,
        interval_s=body.interval_s,
        ended=tuple(call_sid(call) for call in body.ended),
        hanging=tuple(sorted({call_sid(call) for call in body.hanging})),
        handing_over=tuple(call_sid(call) for call in body.handing_over),
    )


def _short(text: str, field: str) -> str:
    if len(text) > TEXT_MAX:
        raise BadRequest(f"{field} must be at most {TEXT_MAX} characters", field)
    if _CONTROL.search(text):
        raise BadRequest(f"{field} must have no control characters", field)
    return text
