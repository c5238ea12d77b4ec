"""The call router: what its clients and pods send, and its answers.

Responses have the documented fields, and after them the platform's additions. The router checks requests itself, with
the words that clients know; the limits here only describe them.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from trunkline.schema.fields import TextRule, about

# Kubernetes' rule for pod names.
POD_NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
# A carrier's id of a call: 34 characters at Twilio, 36 elsewhere. Spaces separate ids in Valkey.
CALL_SID = r"[!-~]{1,128}"
# A call gets another agent twice at most: its streams have the turns 0, 1 and 2.
TURN_MAX = 2
TEXT_MAX = 256
CALLS_MAX = 1000
SEQUENCE_MAX = 2**53
# No agent sends a thousand heartbeats a second, and the column's type cannot hold every number above 0.
INTERVAL_MIN_S, INTERVAL_MAX_S = 0.001, 3600
# Postgres stores no NUL, and no control character belongs in a name or an address.
_PLAIN = r"^[^\x00-\x1f\x7f]*$"


def _request(example: dict[str, Any], *required: str) -> dict[str, Any]:
    """The configuration of a request body. Its `required` fields have a default, so that the refusal of an empty one
    names the field. Unknown fields are ignored."""

    def complete(schema: dict[str, Any]) -> None:
        schema |= {"examples": [example], "required": [*required]}
        for name in required:
            del schema["properties"][name]["default"]

    return {"json_schema_extra": complete}


def _short(description: str, **rules: Any) -> dict[str, Any]:
    return about(description, max_length=TEXT_MAX, **{"pattern": _PLAIN} | rules)


def _calls(description: str) -> dict[str, Any]:
    return about(description, max_length=CALLS_MAX)


CallSid = Annotated[str, TextRule(f"^{CALL_SID}$")]

_CALL = about("The carrier's id of the call.", pattern=f"^{CALL_SID}$")
# Responses do not guarantee their form: a key that was written by hand is shown as it is.
_SOME_CALL = about("The carrier's id of the call.", examples=["CA123"])
_SOME_POD = about("The pod's name.", examples=["voice-agent-0"])
_TIER = about(
    "A tier: gold, standard, overflow, basic, `merchant:<id>` or one of the config.", examples=["standard"]
)
_POOL = about("The pool of the pod.", examples=["pool:standard"])
_SUCCESS = about("True.")
_HANGING = "Calls that have ended and whose handlers have not: each takes up one slot of the pod."
_CURSOR = about("Null at the end of the list.")


@dataclass(frozen=True, slots=True)
class AllocateCall:
    """A call that needs a pod."""

    __pydantic_config__ = _request({"call_sid": "CA123", "merchant_id": "acme-store"}, "call_sid")

    call_sid: str = field(default="", metadata=_CALL)
    merchant_id: str | None = field(
        default=None,
        metadata=_short("The merchant of the call; the router tries its tier first. Left out: standard."),
    )
    wait: bool = field(
        default=False,
        metadata=about(
            "Queue for a pod where ROUTER_HOLD_MAX allows it. The client repeats the request within `retry_after_s`."
        ),
    )


@dataclass(frozen=True, slots=True)
class ReleaseCall:
    """A call that needs its pod no more."""

    __pydantic_config__ = _request({"call_sid": "CA123", "pod_name": "voice-agent-0", "turn": 0}, "call_sid")

    call_sid: str = field(default="", metadata=_CALL)
    pod_name: str | None = field(
        default=None,
        metadata=about("Only if the pod itself releases the call.", pattern=f"^({POD_NAME})?$"),
    )
    turn: int | None = field(
        default=None,
        metadata=about(
            "Which of the call's streams the pod had. The release is ignored if another agent has the call now.",
            ge=0,
            le=TURN_MAX,
        ),
    )


@dataclass(frozen=True, slots=True)
class DrainPod:
    """A pod that shall get no new calls."""

    __pydantic_config__ = _request({"pod_name": "voice-agent-0"}, "pod_name")

    pod_name: str = field(default="", metadata=about("As Kubernetes names pods.", pattern=f"^{POD_NAME}$"))


@dataclass(frozen=True, slots=True)
class AgentHeartbeat:
    """A pod's report on itself."""

    __pydantic_config__ = _request(
        {
            "ip": "10.0.0.7",
            "port": 8081,
            "version": "1.4.0",
            "calls": ["CA123"],
            "boot_id": "b1",
            "sequence": 7,
        }
    )

    ip: str = field(default="", metadata=_short("The address for a proxy.", examples=["10.0.0.7"]))
    port: int = field(default=0, metadata=about("The port at that address.", ge=0, le=65_535))
    version: str = field(
        default="",
        metadata=_short(
            "The agent's version: in a rollout pods of the newest come first.", examples=["1.4.0"]
        ),
    )
    base_url: str = field(
        default="",
        metadata=_short(
            "Where carriers reach the pod; empty: VOICE_AGENT_BASE_URL of the platform.",
            examples=["wss://voice.example.com"],
            pattern=r"^(wss?://[^\x00-\x1f\x7f]*)?$",
        ),
    )
    calls: list[CallSid] = field(default_factory=list, metadata=_calls("The calls that the pod has now."))
    ended: list[CallSid] = field(
        default_factory=list, metadata=_calls("Recent calls of the pod that have ended.")
    )
    hanging: list[CallSid] = field(default_factory=list, metadata=_calls(_HANGING))
    handing_over: list[CallSid] = field(
        default_factory=list,
        metadata=_calls("Those of `calls` that the pod hands over to other pods, because it is leaving."),
    )
    boot_id: str = field(
        default="",
        metadata=_short("A new id at each start of the process; calls of the process before it have ended."),
    )
    sequence: int | None = field(
        default=None,
        metadata=about(
            "Counts the heartbeats of this boot, from 1. The router ignores one that a later one overtook. Without one "
            "the time of its arrival counts.",
            ge=0,
            lt=SEQUENCE_MAX,
        ),
    )
    draining: bool = field(
        default=False, metadata=about("The pod is leaving: it takes no new calls until it is gone.")
    )
    # 30 s is the interval of the agents of the router's guide, which send none.
    interval_s: float = field(
        default=30.0,
        metadata=about(
            "The heartbeat interval. After three of them without a heartbeat, and at least 15 s, the router reserves "
            "the pod for no dial.",
            ge=INTERVAL_MIN_S,
            le=INTERVAL_MAX_S,
        ),
    )


@dataclass(frozen=True, slots=True)
class PodAllocation:
    """The pod of a call. The stream goes to `ws_url` and carries `token` as its parameter."""

    pod_name: str = field(metadata=_SOME_POD)
    ws_url: str = field(
        metadata=about(
            "The URL of the stream.", examples=["wss://voice.example.com/ws/pod/voice-agent-0/CA123"]
        )
    )
    source_pool: str = field(metadata=_POOL)
    allocated_at: str = field(
        metadata=about(
            "The time of the allocation, in UTC.",
            examples=["2030-05-01T09:30:00Z"],
            json_schema_extra={"format": "date-time"},
        )
    )
    was_existing: bool = field(metadata=about("The pod was allocated to this call before."))
    token: str = field(
        default="",
        repr=False,
        metadata=about("The stream's parameter `token`. The pod refuses a stream without it."),
    )


@dataclass(frozen=True, slots=True)
class AllocatedCall:
    """A call got a pod."""

    success: Literal[True] = field(metadata=_SUCCESS)
    allocation: PodAllocation = field(metadata=about("The pod of the call."))


@dataclass(frozen=True, slots=True)
class NoPod:
    """A call got no pod now."""

    success: Literal[False] = field(metadata=about("False."))
    error: str = field(metadata=about("What went wrong, for people.", examples=["no pods available"]))
    code: str = field(metadata=about("What went wrong, for programs.", examples=["hold"]))
    request_id: str = field(metadata=about("The id under which the logs have the request."))
    waiting_before: int = field(
        default=0, metadata=about("With `hold`: how many calls are ahead in the queue.", ge=0)
    )
    retry_after_s: int = field(
        default=0,
        metadata=about(
            "With `hold`: repeat the request within this time, or lose the place in the queue.", ge=0
        ),
    )


@dataclass(frozen=True, slots=True)
class ReleasedCall:
    """A call needs its pod no more."""

    success: Literal[True] = field(metadata=_SUCCESS)
    pod_name: str = field(metadata=_SOME_POD)
    released_to_pool: str = field(
        metadata=about("The pool that the pod returned to.", examples=["pool:standard"])
    )
    was_draining: bool = field(metadata=about("The pod is draining, and still gets no new calls."))


@dataclass(frozen=True, slots=True)
class DrainedPod:
    """A pod whose drain began or ended."""

    success: Literal[True] = field(metadata=_SUCCESS)
    pod_name: str = field(metadata=_SOME_POD)
    has_active_call: bool = field(metadata=about("The pod has a call, which goes on."))
    message: str = field(metadata=about("What was done.", examples=["Pod drained successfully"]))
    is_draining: bool = field(metadata=about("The pod gets no new calls now."))


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The router's record of a pod."""

    success: Literal[True] = field(metadata=_SUCCESS)
    pod_name: str = field(metadata=_SOME_POD)
    tier: str = field(metadata=_TIER)
    draining: bool = field(
        metadata=about("The pod gets no new calls, by its own request or by an operator's.")
    )
    call_sid: str = field(metadata=about("The first of `calls`, or empty."))
    calls: list[str] = field(metadata=about("The calls allocated to this pod, connected or not."))
    max_concurrent: int = field(metadata=about("The number of concurrent calls of a pod of its tier.", ge=0))
    again_in_s: float = field(
        metadata=about("When the router expects the next heartbeat; 0: as usual.", ge=0)
    )
    call_time_limit_s: float = field(
        metadata=about("The platform's longest call: a leaving pod waits that long.", ge=0)
    )
    stream_secrets: list[str] = field(
        repr=False, metadata=about("The secrets that sign the tokens of this pod's streams, in hex.")
    )


@dataclass(frozen=True, slots=True)
class PodReset:
    """A pod that an operator freed."""

    success: Literal[True] = field(metadata=_SUCCESS)
    pod_name: str = field(metadata=_SOME_POD)
    ended_calls: list[str] = field(metadata=about("Calls whose allocation was ended."))
    still_named: list[str] = field(
        metadata=about("Calls that the pod's last heartbeat named: a person may be talking.")
    )
    hanging: list[str] = field(
        metadata=about(
            "Calls that have ended and whose handlers have not: only a restart of the pod ends them."
        )
    )
    status: str = field(metadata=about("The present state.", examples=["available"]))
    message: str = field(metadata=about("What was done, and what to check.", examples=["Pod is free"]))


@dataclass(frozen=True, slots=True)
class RouterStatus:
    """Pools and calls of the whole router in numbers."""

    pools: dict[str, int] = field(
        metadata=about(
            "`<tier>:available` and `<tier>:assigned`, in pods.", examples=[{"standard:available": 3}]
        )
    )
    active_calls: int = field(metadata=about("Calls with an allocated pod.", ge=0))
    is_leader: bool = field(metadata=about("Whether the responding process runs the pool manager."))
    status: Literal["up"] = field(metadata=about("`up`."))
    waiting: int = field(metadata=about("Calls that wait for a pod.", ge=0))
    free: dict[str, int] = field(metadata=about("Free slots, by tier.", examples=[{"standard": 3}]))
    kept: int = field(metadata=about("Slots reserved for dials that are not answered yet.", ge=0))
    kept_by_tier: dict[str, int] = field(
        metadata=about("Reserved slots, by tier.", examples=[{"standard": 1}])
    )


@dataclass(frozen=True, slots=True)
class RouterPod:
    """A pod that the router knows."""

    pod_name: str = field(metadata=_SOME_POD)
    tier: str = field(metadata=_TIER)
    is_draining: bool = field(metadata=about("The pod gets no new calls."))
    has_active_lease: bool = field(metadata=about("A call is allocated to the pod."))
    lease_call_sid: str = field(metadata=about("The call; empty for none."))
    status: str = field(
        metadata=about(
            "`available`, `kept`, `allocated`, `ending`, `draining`, `unready` or `unknown`.",
            examples=["available"],
        )
    )
    calls: list[str] = field(metadata=about("The calls allocated to the pod."))
    ip: str = field(metadata=about("The address for a proxy.", examples=["10.0.0.7"]))
    port: int = field(metadata=about("The port at that address.", ge=0))
    version: str = field(metadata=about("The agent's version.", examples=["1.4.0"]))
    hanging: list[str] = field(metadata=about(_HANGING))
    handing_over: list[str] = field(
        metadata=about("Calls that the pod hands over to other pods, because it is leaving.")
    )


@dataclass(frozen=True, slots=True)
class RouterCall:
    """A call that has a pod."""

    call_sid: str = field(metadata=_SOME_CALL)
    pod_name: str = field(metadata=_SOME_POD)
    source_pool: str = field(metadata=_POOL)
    merchant_id: str = field(metadata=about("The merchant of the call."))
    allocated_at: int = field(metadata=about("In seconds since 1970.", ge=0))


@dataclass(frozen=True, slots=True)
class RouterPodPage:
    """A page of the pods."""

    items: list[RouterPod] = field(metadata=about("In the order of the list."))
    next_cursor: str | None = field(metadata=_CURSOR)


@dataclass(frozen=True, slots=True)
class RouterCallPage:
    """A page of the calls that have a pod."""

    items: list[RouterCall] = field(metadata=about("Oldest first."))
    next_cursor: str | None = field(metadata=_CURSOR)


@dataclass(frozen=True, slots=True)
class MerchantTier:
    """The tier of a merchant's calls."""

    merchant_id: str = field(metadata=about("The merchant.", examples=["acme-store"]))
    tier: str = field(metadata=about("The tier that the router tries first.", examples=["gold"]))
    pool: str = field(metadata=about("With the tier `dedicated`: the name of the pool; empty otherwise."))


@dataclass(frozen=True, slots=True)
class NewMerchantTier:
    """The tier that a merchant's calls shall have."""

    __pydantic_config__ = _request({"tier": "gold"}, "tier")

    tier: str = field(
        default="", metadata=about("The tier that the router tries first.", min_length=1, max_length=64)
    )
    pool: str = field(
        default="",
        metadata=about(
            "With the tier `dedicated`: the name of the pool. Left out: the merchant's id.", max_length=64
        ),
    )


@dataclass(frozen=True, slots=True)
class MerchantTiers:
    """All merchants with a tier of their own."""

    items: list[MerchantTier] = field(metadata=about("In no order."))


@dataclass(frozen=True, slots=True)
class RouterUrls:
    """The router's URLs for carriers."""

    urls: dict[str, str] = field(
        metadata=about(
            "By carrier that has this account, the URL to enter there.",
            examples=[{"twilio": "https://calls.example.com/api/v1/twilio/allocate"}],
        )
    )
