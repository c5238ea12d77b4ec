"""The router's endpoints as hot routes of the application: its keys, its scopes, its documentation."""

from typing import Any

from starlette.requests import Request

from trunkline.api.hot_routes import HotRoute
from trunkline.router import routes as router_routes
from trunkline.router.allocator import Allocator
from trunkline.router.pods import Pods
from trunkline.router.routes import RouterDeps
from trunkline.store.tenants import Tenant

_SUMMARIES = {
    "/api/v1/allocate": "Give a call its pod",
    "/api/v1/release": "Take a call's pod back",
    "/api/v1/pods/{name}/heartbeat": "A pod says that it is there, and which calls it holds",
    "/api/v1/status": "Pools and calls in numbers",
    "/api/v1/pod/{name}": "One pod",
}


def hot_routes(allocator: Allocator, pods: Pods) -> list[HotRoute]:
    deps = RouterDeps(allocator=allocator, pods=pods, authorize=_tenant)
    return [
        HotRoute(
            method="POST" if "POST" in (route.methods or ()) else "GET",
            path=route.path,
            endpoint=route.endpoint,
            scopes=("router",),
            operation=_operation(route.path),
        )
        for route in router_routes.routes(deps)
    ]


def _operation(path: str) -> dict[str, Any]:
    return {
        "tags": ["router"],
        "summary": _SUMMARIES[path],
        "responses": {
            "200": {"description": "Done.", "content": {"application/json": {"schema": {"type": "object"}}}}
        },
    }


async def _tenant(request: Request, _scope: str) -> Tenant:
    """The application has checked key and scope already; the router asks whose key it is."""
    tenant: Tenant = request.state.principal.tenant
    return tenant
