"""The router's endpoints in the OpenAPI document: their requests, responses and errors."""

from collections.abc import Mapping

from trunkline.api.raw_routes import Part, operation, said
from trunkline.api.router_bodies import PAGE_MAX
from trunkline.schema.router import (
    POD_NAME,
    AgentHeartbeat,
    AllocateCall,
    AllocatedCall,
    DrainedPod,
    DrainPod,
    HeartbeatReply,
    MerchantTier,
    MerchantTiers,
    NewMerchantTier,
    NoPod,
    PodReset,
    ReleaseCall,
    ReleasedCall,
    RouterCallPage,
    RouterPod,
    RouterPodPage,
    RouterStatus,
    RouterUrls,
)

_BAD = {"400": said("`invalid_request`: not JSON, too large, or a field is wrong; see `fields`.")}
_AWAY = {"503": said("`unavailable`: the router cannot reach its store. Send the same request again.")}
_NO_POD = {"404": said("`pod_not_found`: no pod of that name has registered.")}
_SLOW = {"408": said("The body arrived too slowly."), "413": said("The body is too large.")}
_RETRY_AFTER = {"schema": {"type": "integer"}, "description": "With `hold`: the same as `retry_after_s`."}
_ADDRESS = {
    "schema": {"type": "string", "examples": ["10.0.0.7:8081"]},
    "description": "Host and port.",
}

_NAME: Part = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "The pod's name.",
    "schema": {"type": "string", "pattern": f"^{POD_NAME}$", "examples": ["voice-agent-0"]},
}
_PAGE: list[Part] = [
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
_FOR_URLS: list[Part] = [
    {"name": name, "in": "query", "description": description, "schema": {"type": "string"}}
    for name, description in {
        "merchant_id": "The merchant whose calls come to these URLs.",
        "account": "The account at the carriers. Left out: `default`.",
    }.items()
]

OPERATIONS: Mapping[str, Part] = {
    "POST /api/v1/allocate": operation(
        "allocate_pod",
        "router",
        "Allocate a pod to a call",
        "Idempotent: every request for the same call, at any process, gets the same pod.",
        {
            "200": said("The pod of the call.", AllocatedCall),
            **_BAD,
            **_SLOW,
            "410": said("`call_ended`: the call was released before; hang it up."),
            "503": said(
                "`no_pods_available`: none is free. `hold`: the call is queued. `unavailable`: the router cannot "
                "reach its store.",
                NoPod,
                headers={"Retry-After": _RETRY_AFTER},
            ),
        },
        body=AllocateCall,
    ),
    "POST /api/v1/release": operation(
        "release_pod",
        "router",
        "Release the pod of a call",
        "Idempotent: the response is 404 if the call has no pod any more, which counts as released.",
        {
            "200": said("Released.", ReleasedCall),
            **_BAD,
            "404": said("`call_not_found`: it has no pod."),
            **_SLOW,
            **_AWAY,
        },
        body=ReleaseCall,
    ),
    "POST /api/v1/drain": operation(
        "drain_pod",
        "router",
        "Drain a pod",
        "The pod gets no new calls for DRAINING_TTL, 6 minutes by default; live calls go on.",
        {"200": said("Drained.", DrainedPod), **_BAD, **_NO_POD, **_SLOW, **_AWAY},
        body=DrainPod,
    ),
    "DELETE /api/v1/drain/{name}": operation(
        "undrain_pod",
        "router",
        "End the drain of a pod",
        "A pod that is leaving by itself stays `is_draining`.",
        {"200": said("The present state.", DrainedPod), **_BAD, **_NO_POD, **_AWAY},
        parameters=[_NAME],
    ),
    "POST /api/v1/pods/{name}/reset": operation(
        "reset_pod",
        "router",
        "Free a pod whose agent hangs",
        "The router ends its allocations, and ignores the calls in its heartbeats until the pod no longer names them.",
        {"200": said("Freed.", PodReset), **_BAD, **_NO_POD, **_AWAY},
        parameters=[_NAME],
    ),
    "GET /api/v1/status": operation(
        "get_router_status",
        "router",
        "Pools and calls in numbers",
        "Of the whole router.",
        {"200": said("The numbers.", RouterStatus), **_AWAY},
    ),
    "GET /api/v1/pod/{name}": operation(
        "get_pod",
        "router",
        "One pod",
        "Its tier, its calls and its address.",
        {"200": said("The pod.", RouterPod), **_BAD, **_NO_POD, **_AWAY},
        parameters=[_NAME],
    ),
    "GET /api/v1/pod/{name}/address": operation(
        "get_pod_address",
        "router",
        "Where a proxy reaches a pod, in the header X-Pod-Address",
        "For nginx, which understands no 404 of a subrequest.",
        {
            "204": {"description": "The header has its address.", "headers": {"X-Pod-Address": _ADDRESS}},
            **_BAD,
            "403": {"description": "No pod of that name has registered; or the key lacks the scope."},
            **_AWAY,
        },
        parameters=[_NAME],
    ),
    "GET /api/v1/pods": operation(
        "list_pods",
        "router",
        "The pods",
        "Pods that come and go meanwhile may be missed.",
        {"200": said("A page.", RouterPodPage), **_BAD, **_AWAY},
        parameters=_PAGE,
    ),
    "GET /api/v1/allocations": operation(
        "list_allocations",
        "router",
        "List the calls that have a pod",
        "Oldest first. Calls that come and go meanwhile may be missed.",
        {"200": said("A page.", RouterCallPage), **_BAD, **_AWAY},
        parameters=_PAGE,
    ),
    "POST /api/v1/pods/{name}/heartbeat": operation(
        "send_heartbeat",
        "router",
        "Heartbeat of a pod, with its calls",
        "Registers an unknown pod. Every field may be left out; docs/reference/api.md says what each is for.",
        {
            "200": said("The router's record of the pod.", HeartbeatReply),
            **_BAD,
            "409": said("`pod_superseded`: a later process has registered under this pod's name."),
            **_SLOW,
            **_AWAY,
        },
        body=AgentHeartbeat,
        parameters=[_NAME],
    ),
    "GET /api/v1/router/merchants": operation(
        "list_merchant_tiers",
        "router",
        "Merchants with a tier of their own",
        "All others have the tier standard.",
        {"200": said("The merchants.", MerchantTiers), **_AWAY},
    ),
    "PUT /api/v1/router/merchants/{merchant_id}": operation(
        "set_merchant_tier",
        "router",
        "Give a merchant a tier",
        "It takes effect with the merchant's next call.",
        {"200": said("The tier that is set now.", MerchantTier), **_BAD, **_SLOW, **_AWAY},
        body=NewMerchantTier,
    ),
    "DELETE /api/v1/router/merchants/{merchant_id}": operation(
        "remove_merchant_tier",
        "router",
        "Move a merchant back to the standard tier",
        "Also where it has no tier of its own.",
        {"204": {"description": "It has no tier of its own."}, **_AWAY},
    ),
    "GET /api/v1/router/urls": operation(
        "get_router_urls",
        "router",
        "The router's URLs for carriers",
        "To enter at the carriers, where answered calls shall get their pods without the dialer.",
        {"200": said("The URLs.", RouterUrls), **_AWAY},
        parameters=_FOR_URLS,
    ),
}
