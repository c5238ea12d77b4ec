"""The router's endpoints as hot routes of the application: its keys, its scopes, its documentation."""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request

from trunkline.api.principal import Principal
from trunkline.api.raw_routes import RawRoute
from trunkline.api.router_operations import OPERATIONS
from trunkline.router import routes as router_routes
from trunkline.router.addresses import PodAddresses
from trunkline.router.allocator import Allocator
from trunkline.router.pods import Pods
from trunkline.router.routes import RouterDeps
from trunkline.store.tenants import PLATFORM, Tenant


def raw_routes(
    allocator: Allocator,
    pods: Pods,
    *,
    is_leader: Callable[[], bool] = lambda: False,
    is_open: bool = False,
    call_time_limit_s: float = 3600.0,
    addresses: PodAddresses | None = None,
) -> list[RawRoute]:
    """`is_open`: no key is required, for a router in a network of its own."""
    who = _anybody if is_open else _tenant
    deps = RouterDeps(allocator, pods, who, is_leader, call_time_limit_s, addresses)
    return [_hot(route, is_open) for route in router_routes.routes(deps)]


def _hot(route: Any, is_open: bool) -> RawRoute:
    method = next(iter(route.methods - {"HEAD"}))
    return RawRoute(
        method=method,
        path=route.path,
        endpoint=route.endpoint,
        scopes=None if is_open else ("router",),
        operation=OPERATIONS[f"{method} {route.path}"],
    )


async def _tenant(request: Request, _scope: str) -> Tenant:
    """The application has checked key and scope already; the router needs the tenant of the key."""
    principal: Principal = request.scope["state"]["principal"]
    return principal.tenant


async def _anybody(_request: Request, _scope: str) -> Tenant:
    return PLATFORM
