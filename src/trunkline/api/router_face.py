"""The router's endpoints as hot routes of the application: its keys, its scopes, its documentation."""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request

from trunkline.api.hot_routes import HotRoute
from trunkline.api.principal import Principal
from trunkline.router import routes as router_routes
from trunkline.router.allocator import Allocator
from trunkline.router.pods import Pods
from trunkline.router.routes import RouterDeps
from trunkline.store.tenants import PLATFORM, Tenant

_SUMMARIES = {
    "POST /api/v1/allocate": "Give a call its pod",
    "POST /api/v1/release": "Take a call's pod back",
    "POST /api/v1/drain": "Keep new calls away from a pod",
    "DELETE /api/v1/drain/{name}": "Let a pod take calls again",
    "GET /api/v1/status": "Pools and calls in numbers",
    "GET /api/v1/pod/{name}": "One pod",
    "GET /api/v1/pod/{name}/address": "Where a proxy reaches a pod, in the header X-Pod-Address",
    "GET /api/v1/pods": "The pods",
    "GET /api/v1/allocations": "The calls that have a pod",
    "POST /api/v1/pods/{name}/heartbeat": "A pod says that it is there, and which calls it holds",
}


def hot_routes(
    allocator: Allocator,
    pods: Pods,
    *,
    is_leader: Callable[[], bool] = lambda: False,
    is_open: bool = False,
    call_time_limit_s: float = 3600.0,
) -> list[HotRoute]:
    """`is_open`: whoever reaches these endpoints may use them, as behind a wall of one's own."""
    deps = RouterDeps(allocator, pods, _anybody if is_open else _tenant, is_leader, call_time_limit_s)
    return [_hot(route, is_open) for route in router_routes.routes(deps)]


def _hot(route: Any, is_open: bool) -> HotRoute:
    method = next(iter(route.methods - {"HEAD"}))
    return HotRoute(
        method=method,
        path=route.path,
        endpoint=route.endpoint,
        scopes=None if is_open else ("router",),
        operation=_operation(method, route.path),
    )


def _operation(method: str, path: str) -> dict[str, Any]:
    return {
        "tags": ["router"],
        "summary": _SUMMARIES[f"{method} {path}"],
        "responses": {
            "200": {"description": "Done.", "content": {"application/json": {"schema": {"type": "object"}}}}
        },
    }


async def _tenant(request: Request, _scope: str) -> Tenant:
    """The application has checked key and scope already; the router asks whose key it is."""
    principal: Principal = request.scope["state"]["principal"]
    return principal.tenant


async def _anybody(_request: Request, _scope: str) -> Tenant:
    return PLATFORM
