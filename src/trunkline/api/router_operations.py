"""The router's endpoints in the OpenAPI document: their requests, responses and errors."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from trunkline.api.router_bodies import (
    PAGE_MAX,
    AllocateBody,
    AllocatedBody,
    CallsPage,
    DrainBody,
    DrainedBody,
    HeardBody,
    HeartbeatBody,
    PodBody,
    PodName,
    PodsPage,
    ReleaseBody,
    ReleasedBody,
    ResetBody,
    StatusBody,
    doc,
)

Schema = dict[str, Any]
_ERROR: Schema = {"$ref": "#/components/schemas/ErrorOut"}


HostAndPort = Annotated[str, doc("Host and port.", "10.0.0.7:8081")]


class HoldBody(Struct):
    waiting_before: Annotated[int, doc("With `hold`: how many calls are ahead in the queue.", minimum=0)] = 0
    retry_after_s: Annotated[
        int,
        doc("With `hold`: repeat the request within this time, or lose the place in the queue.", minimum=0),
    ] = 0


def schema_of(kind: Any) -> Schema:
    """In one piece: a body that another one contains stands where it is contained."""
    (schema,), parts = msgspec.json.schema_components([kind], ref_template="{name}")

    def whole(part: Any) -> Any:
        match part:
            case {"$ref": str(name)}:
                return whole(parts[name])
            case dict():
                return {key: whole(value) for key, value in part.items()}
            case list():
                return [whole(each) for each in part]
        return part

    found: Schema = whole(schema)
    return found


def _body(kind: type[Struct], *required: str) -> Schema:
    """A request; its `required` fields have a default, so that the refusal of an empty one names the field."""
    schema = schema_of(kind)
    properties = {
        name: {key: value for key, value in field.items() if name not in required or key != "default"}
        for name, field in schema["properties"].items()
    }
    return schema | {"properties": properties, "required": [*required]}


_HELD: Schema = {"allOf": [_ERROR, schema_of(HoldBody)]}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _said(description: str, body: type[Struct] | Schema = _ERROR, **more: Any) -> Schema:
    schema = body if isinstance(body, dict) else schema_of(body)
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
    "schema": schema_of(PodName),
}
_PAGE = [
    {
        "name": "limit",
        "in": "query",
        "description": "The maximum number of entries.",
        "schema": {"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": 50},
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
            "200": _said("The pod of the call.", AllocatedBody),
            **_BAD,
            "410": _said("`call_ended`: the call was released before; hang it up."),
            "503": _said(
                "`no_pods_available`: none is free. `hold`: the call is queued. `unavailable`: the router cannot "
                "reach its store.",
                _HELD,
                headers={"Retry-After": _RETRY_AFTER},
            ),
        },
        body=_body(AllocateBody, "call_sid"),
    ),
    "POST /api/v1/release": _operation(
        "Release the pod of a call",
        "Idempotent: the response is 404 if the call has no pod any more, which counts as released.",
        {
            "200": _said("Released.", ReleasedBody),
            **_BAD,
            "404": _said("`call_not_found`: it has no pod."),
        },
        body=_body(ReleaseBody, "call_sid"),
    ),
    "POST /api/v1/drain": _operation(
        "Drain a pod",
        "The pod gets no new calls for DRAINING_TTL, 6 minutes by default; live calls go on.",
        {"200": _said("Drained.", DrainedBody), **_BAD, **_NO_POD},
        body=_body(DrainBody, "pod_name"),
    ),
    "DELETE /api/v1/drain/{name}": _operation(
        "End the drain of a pod",
        "A pod that is leaving by itself stays `is_draining`.",
        {"200": _said("The present state.", DrainedBody), **_BAD, **_NO_POD},
        parameters=[_NAME],
    ),
    "POST /api/v1/pods/{name}/reset": _operation(
        "Free a pod whose agent hangs",
        "The router ends its allocations, and ignores the calls in its heartbeats until the pod no longer names them.",
        {"200": _said("Freed.", ResetBody), **_BAD, **_NO_POD},
        parameters=[_NAME],
    ),
    "GET /api/v1/status": _operation(
        "Pools and calls in numbers", "Of the whole router.", {"200": _said("The numbers.", StatusBody)}
    ),
    "GET /api/v1/pod/{name}": _operation(
        "One pod", "Its tier, its calls and its address.", {"200": _said("The pod.", PodBody), **_BAD, **_NO_POD},
        parameters=[_NAME],
    ),
    "GET /api/v1/pod/{name}/address": _operation(
        "Where a proxy reaches a pod, in the header X-Pod-Address",
        "For nginx, which understands no 404 of a subrequest.",
        {
            "204": {
                "description": "The header has its address.",
                "headers": {"X-Pod-Address": {"schema": schema_of(HostAndPort)}},
            },
            **_BAD,
            "403": {"description": "No pod of that name has registered; or the key lacks the scope."},
        },
        parameters=[_NAME],
    ),
    "GET /api/v1/pods": _operation(
        "The pods",
        "Pods that come and go meanwhile may be missed.",
        {"200": _said("A page.", PodsPage), **_BAD},
        parameters=_PAGE,
    ),
    "GET /api/v1/allocations": _operation(
        "List the calls that have a pod",
        "Oldest first. Calls that come and go meanwhile may be missed.",
        {"200": _said("A page.", CallsPage), **_BAD},
        parameters=_PAGE,
    ),
    "POST /api/v1/pods/{name}/heartbeat": _operation(
        "Heartbeat of a pod, with its calls",
        "Registers an unknown pod. Every field may be left out; docs/reference/api.md says what each is for.",
        {
            "200": _said("The router's record of the pod.", HeardBody),
            **_BAD,
            "409": _said("`pod_superseded`: a later process has registered under this pod's name."),
        },
        body=_body(HeartbeatBody),
        parameters=[_NAME],
    ),
}  # fmt: skip
