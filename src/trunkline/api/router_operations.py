"""The router's endpoints in the OpenAPI document: their requests, responses and errors."""

from collections.abc import Mapping
from typing import Any

from trunkline.router.requests import (
    CALL_SID,
    CALLS_MAX,
    INTERVAL_MAX_S,
    PAGE_MAX,
    POD_NAME,
    SEQUENCE_MAX,
    TEXT_MAX,
)
from trunkline.telephony.callbacks import TURN_MAX

Schema = dict[str, Any]


def _object(required: str, /, **properties: Schema) -> Schema:
    """`required` names the fields that are always present, separated by spaces; `*` for all."""
    names = list(properties) if required == "*" else required.split()
    return {"type": "object", "properties": properties, **({"required": names} if names else {})}


def _text(description: str, example: str = "", **more: Any) -> Schema:
    schema: Schema = {"type": "string", "description": description, **more}
    return schema | {"examples": [example]} if example else schema


def _short(description: str, example: str = "") -> Schema:
    return _text(description, example, maxLength=TEXT_MAX, pattern=r"^[^\x00-\x1f\x7f]*$")


def _whole(description: str, least: int = 0, most: int | None = None) -> Schema:
    bounds = {"minimum": least} | ({} if most is None else {"maximum": most})
    return {"type": "integer", "description": description, **bounds}


def _number(description: str) -> Schema:
    return {"type": "number", "minimum": 0, "description": description}


def _list(items: Schema, description: str = "", **more: Any) -> Schema:
    return {"type": "array", "items": items, "description": description, **more}


_FLAG: Schema = {"type": "boolean"}
_SUCCESS: Schema = {"type": "boolean", "const": True}


def _flag(description: str) -> Schema:
    return _FLAG | {"description": description}


_CALL_SID = _text("The carrier's id of the call.", "CA123", pattern=f"^{CALL_SID}$")
_POD_NAME = _text("As Kubernetes names pods.", "voice-agent-0", pattern=f"^{POD_NAME}$")
# Responses do not guarantee their form: a key that was written by hand is shown as it is.
_SOME_CALL = _text("The carrier's id of the call.", "CA123")
_SOME_POD = _text("The pod's name.", "voice-agent-0")
_SOME_TIER = _text(
    "A tier: gold, standard, overflow, basic, `merchant:<id>` or one of the config.", "standard"
)

_ALLOCATE = _object(
    "call_sid",
    call_sid=_CALL_SID,
    merchant_id={
        "type": ["string", "null"],
        "maxLength": TEXT_MAX,
        "pattern": r"^[^\x00-\x1f\x7f]*$",
        "description": "The merchant of the call; the router tries its tier first. Left out: standard.",
    },
    wait=_flag(
        "Queue for a pod where ROUTER_HOLD_MAX allows it. The client repeats the request within "
        "`retry_after_s`."
    ),
)
_RELEASE = _object(
    "call_sid",
    call_sid=_CALL_SID,
    pod_name={
        "type": ["string", "null"],
        "pattern": f"^({POD_NAME})?$",
        "description": "Only if the pod itself releases the call.",
    },
    turn={
        "type": ["integer", "null"],
        "minimum": 0,
        "maximum": TURN_MAX,
        "description": "Which of the call's streams the pod had. The release is ignored if another agent has the "
        "call now.",
    },
)
_DRAIN = _object("pod_name", pod_name=_POD_NAME)
_HEARTBEAT = _object(
    "",
    ip=_short("The address for a proxy.", "10.0.0.7"),
    port=_whole("The port at that address.", 0, 65_535),
    version=_short("The agent's version: in a rollout pods of the newest come first.", "1.4.0"),
    base_url=_text(
        "Where carriers reach the pod; empty: VOICE_AGENT_BASE_URL of the platform.",
        "wss://voice.example.com",
        maxLength=TEXT_MAX,
        pattern=r"^(wss?://[^\x00-\x1f\x7f]*)?$",
    ),
    calls=_list(_CALL_SID, "The calls that the pod has now.", maxItems=CALLS_MAX),
    ended=_list(_CALL_SID, "Recent calls of the pod that have ended.", maxItems=CALLS_MAX),
    hanging=_list(
        _CALL_SID,
        "Calls that have ended and whose handlers have not: each takes up one slot of the pod.",
        maxItems=CALLS_MAX,
    ),
    handing_over=_list(
        _CALL_SID,
        "Those of `calls` that the pod hands over to other pods, because it is leaving.",
        maxItems=CALLS_MAX,
    ),
    boot_id=_short("A new id at each start of the process; calls of the process before it have ended."),
    sequence=_whole(
        "Counts the heartbeats of this boot, from 1. The router ignores one that a later one overtook.", 0
    )
    | {"exclusiveMaximum": SEQUENCE_MAX},
    draining=_flag("The pod is leaving: it takes no new calls until it is gone."),
    interval_s=_number(
        "The heartbeat interval. After three of them without a heartbeat, and at least 15 s, the router reserves "
        "the pod for no dial."
    )
    | {"exclusiveMinimum": 0, "maximum": INTERVAL_MAX_S, "default": 30},
)

_ALLOCATION = _object(
    "*",
    pod_name=_SOME_POD,
    ws_url=_text("The URL of the stream.", "wss://voice.example.com/ws/pod/voice-agent-0/CA123"),
    source_pool=_text("The pool of the pod.", "pool:standard"),
    allocated_at=_text("The time of the allocation, in UTC.", "2030-05-01T09:30:00Z", format="date-time"),
    was_existing=_flag("The pod was allocated to this call before."),
    token=_text("The stream's parameter `token`. The pod refuses a stream without it."),
)
_ALLOCATED = _object("*", success=_SUCCESS, allocation=_ALLOCATION)
_RELEASED = _object(
    "*",
    success=_SUCCESS,
    pod_name=_SOME_POD,
    released_to_pool=_text("The pool that the pod returned to.", "pool:standard"),
    was_draining=_flag("The pod is draining, and still gets no new calls."),
)
_DRAINED = _object(
    "*",
    success=_SUCCESS,
    pod_name=_SOME_POD,
    has_active_call=_flag("The pod has a call, which goes on."),
    message=_text("What was done.", "Pod drained successfully"),
    is_draining=_flag("The pod gets no new calls now."),
)
_HEARD = _object(
    "*",
    success=_SUCCESS,
    pod_name=_SOME_POD,
    tier=_SOME_TIER,
    draining=_flag("The pod gets no new calls, by its own request or by an operator's."),
    call_sid=_text("The first of `calls`, or empty."),
    calls=_list(_SOME_CALL, "The calls allocated to this pod, connected or not."),
    max_concurrent=_whole("The number of concurrent calls of a pod of its tier."),
    again_in_s=_number("When the router expects the next heartbeat; 0: as usual."),
    call_time_limit_s=_number("The platform's longest call: a leaving pod waits that long."),
    stream_secrets=_list(_text("In hex."), "The secrets that sign the tokens of this pod's streams."),
)
_RESET = _object(
    "*",
    success=_SUCCESS,
    pod_name=_SOME_POD,
    ended_calls=_list(_SOME_CALL, "Calls whose allocation was ended."),
    still_named=_list(_SOME_CALL, "Calls that the pod's last heartbeat named: a person may be talking."),
    hanging=_list(
        _SOME_CALL, "Calls that have ended and whose handlers have not: only a restart of the pod ends them."
    ),
    status=_text("The present state.", "available"),
    message=_text("What was done, and what to check."),
)
_NUMBERS: Schema = {"type": "object", "additionalProperties": {"type": "integer"}}
_STATUS = _object(
    "pools active_calls is_leader status",
    pools=_NUMBERS | {"description": "`<tier>:available` and `<tier>:assigned`, in pods."},
    active_calls=_whole("Calls with an allocated pod."),
    is_leader=_flag("Whether the responding process runs the pool manager."),
    status=_text("`up`.", "up"),
    waiting=_whole("Calls that wait for a pod."),
    free=_NUMBERS | {"description": "Free slots, by tier."},
    kept=_whole("Slots reserved for dials that are not answered yet."),
    kept_by_tier=_NUMBERS | {"description": "Reserved slots, by tier."},
)
_POD = _object(
    "*",
    pod_name=_SOME_POD,
    tier=_SOME_TIER,
    is_draining=_flag("The pod gets no new calls."),
    has_active_lease=_flag("A call is allocated to the pod."),
    lease_call_sid=_text("The call; empty for none."),
    status=_text(
        "`available`, `kept`, `allocated`, `ending`, `draining`, `unready` or `unknown`.", "available"
    ),
    calls=_list(_SOME_CALL),
    ip=_text("The address for a proxy."),
    port=_whole("The port at that address."),
    version=_text("The agent's version."),
    hanging=_list(
        _SOME_CALL, "Calls that have ended and whose handlers have not: each takes up one slot of the pod."
    ),
    handing_over=_list(_SOME_CALL, "Calls that the pod hands over to other pods, because it is leaving."),
)
_CALL = _object(
    "*",
    call_sid=_SOME_CALL,
    pod_name=_SOME_POD,
    source_pool=_text("The pool of the pod.", "pool:standard"),
    merchant_id=_text("The merchant of the call."),
    allocated_at=_whole("In seconds since 1970."),
)


def _page(items: Schema) -> Schema:
    cursor = {"type": ["string", "null"], "description": "Null at the end of the list."}
    return _object("*", items=_list(items), next_cursor=cursor)


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


_ERROR: Schema = {"$ref": "#/components/schemas/ErrorOut"}
_HELD = _object(
    "",
    waiting_before=_whole("With `hold`: how many calls are ahead in the queue."),
    retry_after_s=_whole("With `hold`: repeat the request within this time, or lose the place in the queue."),
)


def _said(description: str, schema: Schema = _ERROR, **more: Any) -> Schema:
    return {"description": description, "content": _json(schema), **more}


_BAD = {"400": _said("`invalid_request`: not JSON, too large, or a field is wrong; see `fields`.")}
_UNAVAILABLE = {
    "503": _said("`unavailable`: the router cannot reach its store. Send the same request again.")
}
_NO_POD = {"404": _said("`pod_not_found`: no pod of that name has registered.")}
_SLOW = {"408": _said("The body arrived too slowly."), "413": _said("The body is too large.")}
_RETRY_AFTER = {"schema": {"type": "integer"}, "description": "With `hold`: the same as `retry_after_s`."}

_NAME = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "The pod's name.",
    "schema": _POD_NAME,
}
_PAGE = [
    {
        "name": "limit",
        "in": "query",
        "schema": _whole("The maximum number of entries.", 1, PAGE_MAX) | {"default": 50},
    },
    {
        "name": "cursor",
        "in": "query",
        "description": "`next_cursor` of the previous page.",
        "schema": {"type": "string", "pattern": "^[0-9]{1,7}$"},
    },
]


def _operation(
    summary: str,
    description: str,
    responses: Mapping[str, Schema],
    *,
    body: Schema | None = None,
    parameters: list[Schema] | None = None,
) -> Schema:
    operation: Schema = {
        "tags": ["router"],
        "summary": summary,
        "description": description,
        "responses": {**_UNAVAILABLE, **responses, **(_SLOW if body else {})},
    }
    if body:
        operation["requestBody"] = {"required": True, "content": _json(body)}
    if parameters:
        operation["parameters"] = parameters
    return operation


OPERATIONS: Mapping[str, Schema] = {
    "POST /api/v1/allocate": _operation(
        "Allocate a pod to a call",
        "Idempotent: every request for the same call, at any process, gets the same pod.",
        {
            "200": _said("The pod of the call.", _ALLOCATED),
            **_BAD,
            "410": _said("`call_ended`: the call was released before; hang it up."),
            "503": _said(
                "`no_pods_available`: none is free. `hold`: the call is queued. `unavailable`: the router cannot "
                "reach its store.",
                {"allOf": [_ERROR, _HELD]},
                headers={"Retry-After": _RETRY_AFTER},
            ),
        },
        body=_ALLOCATE,
    ),
    "POST /api/v1/release": _operation(
        "Release the pod of a call",
        "Idempotent: the response is 404 if the call has no pod any more, which counts as released.",
        {
            "200": _said("Released.", _RELEASED),
            **_BAD,
            "404": _said("`call_not_found`: it has no pod."),
        },
        body=_RELEASE,
    ),
    "POST /api/v1/drain": _operation(
        "Drain a pod",
        "The pod gets no new calls for DRAINING_TTL, 6 minutes by default; live calls go on.",
        {"200": _said("Drained.", _DRAINED), **_BAD, **_NO_POD},
        body=_DRAIN,
    ),
    "DELETE /api/v1/drain/{name}": _operation(
        "End the drain of a pod",
        "A pod that is leaving by itself stays `is_draining`.",
        {"200": _said("The present state.", _DRAINED), **_BAD, **_NO_POD},
        parameters=[_NAME],
    ),
    "POST /api/v1/pods/{name}/reset": _operation(
        "Free a pod whose agent hangs",
        "The router ends its allocations, and ignores the calls in its heartbeats until the pod no longer names "
        "them.",
        {"200": _said("Freed.", _RESET), **_BAD, **_NO_POD},
        parameters=[_NAME],
    ),
    "GET /api/v1/status": _operation(
        "Pools and calls in numbers", "Of the whole router.", {"200": _said("The numbers.", _STATUS)}
    ),
    "GET /api/v1/pod/{name}": _operation(
        "One pod", "Its tier, its calls and its address.", {"200": _said("The pod.", _POD), **_BAD, **_NO_POD},
        parameters=[_NAME],
    ),
    "GET /api/v1/pod/{name}/address": _operation(
        "Where a proxy reaches a pod, in the header X-Pod-Address",
        "For nginx, which understands no 404 of a subrequest.",
        {
            "204": {
                "description": "The header has its address.",
                "headers": {"X-Pod-Address": {"schema": _text("Host and port.", "10.0.0.7:8081")}},
            },
            **_BAD,
            "403": {"description": "No pod of that name has registered; or the key lacks the scope."},
        },
        parameters=[_NAME],
    ),
    "GET /api/v1/pods": _operation(
        "The pods",
        "Pods that come and go meanwhile may be missed.",
        {"200": _said("A page.", _page(_POD)), **_BAD},
        parameters=_PAGE,
    ),
    "GET /api/v1/allocations": _operation(
        "List the calls that have a pod",
        "Oldest first. Calls that come and go meanwhile may be missed.",
        {"200": _said("A page.", _page(_CALL)), **_BAD},
        parameters=_PAGE,
    ),
    "POST /api/v1/pods/{name}/heartbeat": _operation(
        "Heartbeat of a pod, with its calls",
        "Registers an unknown pod. Every field may be left out; docs/reference/api.md says what each is for.",
        {
            "200": _said("The router's record of the pod.", _HEARD),
            **_BAD,
            "409": _said("`pod_superseded`: a later process has registered under this pod's name."),
        },
        body=_HEARTBEAT,
        parameters=[_NAME],
    ),
}  # fmt: skip
