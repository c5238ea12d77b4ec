"""The router's HTTP endpoints. Plain Starlette routes: allocate and release are among the hottest of the platform.

Pods belong to the platform, and may get calls of every tenant: only a key that is bound to no tenant has access.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trunkline.bus.router import PodSuperseded
from trunkline.bus.router_views import PodView
from trunkline.errors import BusUnavailable
from trunkline.http.body import bounded_body
from trunkline.in_time import in_time
from trunkline.router import bodies, requests
from trunkline.router.addresses import PodAddresses
from trunkline.router.allocator import Allocated, Allocator, NoneFree, NotAllocated, PodWait, Released
from trunkline.router.pods import Pods
from trunkline.router.requests import AllocateBody, BadRequest, DrainBody, HeartbeatBody, ReleaseBody
from trunkline.store.allocations import Address
from trunkline.telemetry import get_logger
from trunkline.telemetry.outages import Outage
from trunkline.telephony.callbacks import TURN_MAX

log = get_logger(__name__)

SCOPE = "router"
# A request for a pod gets its response within 2 s, whatever hangs, however long the key or the account took.
ANSWER_S = 1.9
# The share of it for the allocation: the engines answer within 0.6 s or count as silent.
ALLOCATE_S = 1.4
# Valkey answers within a millisecond.
ADDRESS_S = 0.15
# A heartbeat with a thousand calls is 40 KB.
BODY_MAX_BYTES = 256 * 1024


class Principal(Protocol):
    """The caller. Bound to a reseller, it is a tenant's key."""

    @property
    def reseller_id(self) -> str | None: ...


Authorize = Callable[[Request, str], Awaitable[Principal | Response]]
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class RouterDeps:
    allocator: Allocator
    pods: Pods
    authorize: Authorize
    is_leader: Callable[[], bool] = lambda: False
    # The platform's longest call; replies to heartbeats carry it.
    call_time_limit_s: float = 3600.0
    addresses: PodAddresses | None = None


def asked_at_s(request: Request) -> float:
    """When the request came in, by the monotonic clock: as the fast path noted it, or the time of the first call."""
    at_s: float = request.scope.setdefault("state", {}).setdefault("asked_at_s", monotonic())
    return at_s


def time_left_s(since_s: float) -> float:
    """The time that an allocation may still take, for a request of `since_s`. At least 50 ms: most find a pod at
    once."""
    return max(min(ALLOCATE_S, since_s + ANSWER_S - monotonic()), 0.05)


def routes(deps: RouterDeps) -> list[Route]:
    endpoints = _Endpoints(deps)

    def route(method: str, path: str, handler: Handler) -> Route:
        return Route(f"/api/v1{path}", endpoints.guarded(handler), methods=[method])

    return [
        route("POST", "/allocate", endpoints.allocate),
        route("POST", "/release", endpoints.release),
        route("POST", "/drain", endpoints.drain),
        route("DELETE", "/drain/{name}", endpoints.undrain),
        route("POST", "/pods/{name}/reset", endpoints.reset),
        route("GET", "/status", endpoints.status),
        route("GET", "/pod/{name}", endpoints.pod),
        route("GET", "/pod/{name}/address", endpoints.address),
        route("GET", "/pods", endpoints.pods),
        route("GET", "/allocations", endpoints.allocations),
        route("POST", "/pods/{name}/heartbeat", endpoints.heartbeat),
    ]


class _Endpoints:
    def __init__(self, deps: RouterDeps):
        self._deps = deps

    def guarded(self, handler: Handler) -> Handler:
        """Check the key first, and turn errors into the one error shape. Each endpoint has an outage of its own: some
        work while others cannot."""
        outage = Outage("router.unavailable", what=handler.__name__)

        async def answer(request: Request) -> Response:
            asked_at_s(request)  # set before the first await
            principal = await self._deps.authorize(request, SCOPE)
            if isinstance(principal, Response):
                return principal
            if principal.reseller_id is not None:
                return _error(request, 403, "forbidden", "the router needs a key of the platform")
            begun_at = outage.now()
            try:
                response = await handler(request)
                outage.worked(begun_at)
                return response
            except BadRequest as error:
                return _error(request, 400, "invalid_request", error.message, error.field)
            except BusUnavailable as error:
                outage.failed(error)
                return _error(request, 503, "unavailable", "the router cannot reach its store")

        return answer

    async def allocate(self, request: Request) -> Response:
        body = requests.decode(await _body(request), AllocateBody)
        call_sid, merchant_id = requests.call_sid(body.call_sid), requests.merchant_id(body.merchant_id)
        allocating = self._deps.allocator.allocate(call_sid, merchant_id, may_wait=body.wait)
        try:
            answer = await in_time(time_left_s(asked_at_s(request)), allocating)
        except TimeoutError as error:
            raise BusUnavailable("no answer in time") from error
        match answer:
            case Allocated() as allocated:
                return _json(200, {"success": True, "allocation": bodies.allocation(allocated)})
            case NoneFree(is_known=False):
                return _error(request, 503, "unavailable", "the router cannot reach its stores")
            case NoneFree():
                log.warning("router.no_pods", call_id=call_sid)
                return _error(request, 503, "no_pods_available", "no pods available")
            case PodWait(before=before, retry_s=retry_s):
                more = {"waiting_before": before, "retry_after_s": retry_s}
                held = _error(request, 503, "hold", "no pods available", more=more)
                held.headers["Retry-After"] = str(retry_s)
                return held
            case _:
                return _error(request, 410, "call_ended", "call has ended")

    async def release(self, request: Request) -> Response:
        body = requests.decode(await _body(request), ReleaseBody)
        by_pod = requests.pod_name(body.pod_name) if body.pod_name else ""
        if body.turn is not None and not 0 <= body.turn <= TURN_MAX:
            raise BadRequest(f"turn must be 0 to {TURN_MAX}", "turn")
        call_sid = requests.call_sid(body.call_sid)
        match await self._deps.allocator.release(call_sid, by_pod, body.turn):
            case Released() as released:
                if by_pod:
                    self._deps.pods.released(by_pod, call_sid)
                return _json(200, bodies.released(released))
            case NotAllocated():
                return _error(request, 404, "call_not_found", "call not found")

    async def drain(self, request: Request) -> Response:
        body = requests.decode(await _body(request), DrainBody)
        name = requests.pod_name(body.pod_name)
        drained = await self._deps.pods.drain(name)
        if drained is None:
            return _no_pod(request)
        log.info("router.drained", pod=name, has_active_call=drained.has_active_call)
        return _json(200, bodies.drained(name, drained, "Pod drained successfully"))

    async def undrain(self, request: Request) -> Response:
        name = requests.pod_name(request.path_params["name"])
        drained = await self._deps.pods.undrain(name)
        if drained is None:
            return _no_pod(request)
        message = "Pod is leaving by itself" if drained.is_draining else "Pod takes calls again"
        return _json(200, bodies.drained(name, drained, message))

    async def heartbeat(self, request: Request) -> Response:
        body = requests.decode(await _body(request), HeartbeatBody)
        beat = requests.heartbeat(request.path_params["name"], body)
        result = await self._deps.pods.heartbeat(beat)
        if isinstance(result, PodSuperseded):
            message = "a later process has registered under this pod's name"
            return _error(request, 409, "pod_superseded", message)
        return _json(200, bodies.heartbeat(beat, result, self._deps.call_time_limit_s))

    async def reset(self, request: Request) -> Response:
        name = requests.pod_name(request.path_params["name"])
        done = await self._deps.pods.reset(name)
        if done is None:
            return _no_pod(request)
        log.warning("router.pod_reset", pod=name, calls=done.calls, still_named=done.still_named)
        return _json(200, bodies.reset(name, done))

    async def status(self, request: Request) -> Response:
        return _json(200, bodies.status(await self._deps.pods.counts(), self._deps.is_leader()))

    async def pod(self, request: Request) -> Response:
        view = await self._deps.pods.find(requests.pod_name(request.path_params["name"]))
        return _json(200, bodies.pod(view)) if view else _no_pod(request)

    async def address(self, request: Request) -> Response:
        """Where a proxy reaches a pod: 204 and the header, or 403 (nginx accepts no 404 from a subrequest). Valkey is
        read first: a restarted pod has another address, and this process' cache may be one second old. A stream waits
        for the response, so while Valkey does not answer the cache is good enough."""
        name = requests.pod_name(request.path_params["name"])
        cached = self._deps.addresses.find_pod(name) if self._deps.addresses else None
        pod: Address | PodView | None = await self._from_valkey(name, is_cached=cached is not None)
        if cached is not None and (pod is None or pod.incarnation < cached.incarnation):
            pod = cached
        if pod is None or not pod.ip or not pod.port:
            return Response(status_code=403)
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        return Response(status_code=204, headers={"X-Pod-Address": f"{host}:{pod.port}"})

    async def _from_valkey(self, name: str, *, is_cached: bool) -> PodView | None:
        try:
            return await in_time(ADDRESS_S, self._deps.pods.find(name))
        except (BusUnavailable, TimeoutError) as error:
            if is_cached:
                return None
            raise BusUnavailable(str(error)) from error

    async def pods(self, request: Request) -> Response:
        page = requests.page(request.query_params)
        views = await self._deps.pods.pods(page.first, page.count)
        return _json(200, bodies.page([bodies.pod(view) for view in views], page))

    async def allocations(self, request: Request) -> Response:
        page = requests.page(request.query_params)
        views = await self._deps.pods.calls(page.first, page.count)
        return _json(200, bodies.page([bodies.call(view) for view in views], page))


async def _body(request: Request) -> bytes:
    body = await bounded_body(request, BODY_MAX_BYTES)
    if body is None:
        raise BadRequest(f"the body must be at most {BODY_MAX_BYTES} bytes")
    return body


def _json(status: int, content: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def _no_pod(request: Request) -> Response:
    return _error(request, 404, "pod_not_found", "pod not found")


def _error(
    request: Request,
    status: int,
    code: str,
    message: str,
    field: str = "",
    more: dict[str, Any] | None = None,
) -> Response:
    """The documented fields are `success` and `error`; the platform's error shape adds the others."""
    content: dict[str, Any] = {"success": False, "error": message, "code": code, **(more or {})}
    content["request_id"] = getattr(request.state, "request_id", "")
    if field:
        content["fields"] = [{"field": field, "error": message}]
    return _json(status, content)
