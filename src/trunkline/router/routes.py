"""The router's HTTP face. Plain Starlette routes: allocate and release are among the hottest of the platform.

A pod is the platform's, and so is every call that it may be given: only a key that is bound to no tenant may ask.
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
# Whoever asks for a pod is answered within 2 s of asking, whatever hangs, however long the key or the account took.
ANSWER_S = 1.9
# Of that, for the pod: the engines answer within 0.6 s or count as silent.
ALLOCATE_S = 1.4
# Valkey's answer takes a millisecond.
ADDRESS_S = 0.15
# A heartbeat with a thousand calls is 40 KB.
BODY_MAX_BYTES = 256 * 1024


class Principal(Protocol):
    """Who asks. Bound to a reseller, it is a tenant's key."""

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
    # The platform's longest call, told to pods.
    call_time_limit_s: float = 3600.0
    addresses: PodAddresses | None = None


def asked_at_s(request: Request) -> float:
    """When the request came, by the monotonic clock: as who took it in has noted, or now, when first asked."""
    noted: float = request.scope.setdefault("state", {}).setdefault("asked_at_s", monotonic())
    return noted


def time_left_s(since_s: float) -> float:
    """So long a pod may be looked for, for who has asked then. A moment is left in any case: most find one at once."""
    return max(min(ALLOCATE_S, since_s + ANSWER_S - monotonic()), 0.05)


def routes(deps: RouterDeps) -> list[Route]:
    face = _Face(deps)

    def route(method: str, path: str, handler: Handler) -> Route:
        return Route(f"/api/v1{path}", face.guarded(handler), methods=[method])

    return [
        route("POST", "/allocate", face.allocate),
        route("POST", "/release", face.release),
        route("POST", "/drain", face.drain),
        route("DELETE", "/drain/{name}", face.undrain),
        route("POST", "/pods/{name}/reset", face.reset),
        route("GET", "/status", face.status),
        route("GET", "/pod/{name}", face.pod),
        route("GET", "/pod/{name}/address", face.address),
        route("GET", "/pods", face.pods),
        route("GET", "/allocations", face.allocations),
        route("POST", "/pods/{name}/heartbeat", face.heartbeat),
    ]


class _Face:
    def __init__(self, deps: RouterDeps):
        self._deps = deps

    def guarded(self, handler: Handler) -> Handler:
        """Check the key first, and turn what can go wrong into the one error shape. Each request has an outage of its
        own: some work on while others cannot."""
        outage = Outage("router.unavailable", what=handler.__name__)

        async def answer(request: Request) -> Response:
            asked_at_s(request)  # noted before anything is waited for
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
        asking = self._deps.allocator.allocate(call_sid, merchant_id, may_wait=body.wait)
        try:
            answer = await in_time(time_left_s(asked_at_s(request)), asking)
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
        said = "Pod is leaving by itself" if drained.is_draining else "Pod takes calls again"
        return _json(200, bodies.drained(name, drained, said))

    async def heartbeat(self, request: Request) -> Response:
        body = requests.decode(await _body(request), HeartbeatBody)
        beat = requests.heartbeat(request.path_params["name"], body)
        heard = await self._deps.pods.heartbeat(beat)
        if isinstance(heard, PodSuperseded):
            said = "a later process has registered under this pod's name"
            return _error(request, 409, "pod_superseded", said)
        return _json(200, bodies.heard(beat, heard, self._deps.call_time_limit_s))

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
        """Where a proxy reaches a pod: 204 and the header, or 403 (of a subrequest, nginx understands no 404). Valkey
        is asked first: a pod that comes back under its name is elsewhere, and what this process knows may be a second
        old. A stream waits for the answer, so where Valkey is silent that is enough."""
        name = requests.pod_name(request.path_params["name"])
        known = self._deps.addresses.of_pod(name) if self._deps.addresses else None
        found: Address | PodView | None = await self._seen(name, is_known=known is not None)
        if known is not None and (found is None or found.incarnation < known.incarnation):
            found = known
        if found is None or not found.ip or not found.port:
            return Response(status_code=403)
        host = f"[{found.ip}]" if ":" in found.ip else found.ip
        return Response(status_code=204, headers={"X-Pod-Address": f"{host}:{found.port}"})

    async def _seen(self, name: str, *, is_known: bool) -> PodView | None:
        try:
            return await in_time(ADDRESS_S, self._deps.pods.find(name))
        except (BusUnavailable, TimeoutError) as error:
            if is_known:
                return None
            raise BusUnavailable(str(error)) from error

    async def pods(self, request: Request) -> Response:
        page = requests.page(request.query_params)
        found = await self._deps.pods.pods(page.first, page.count)
        return _json(200, bodies.page([bodies.pod(view) for view in found], page))

    async def allocations(self, request: Request) -> Response:
        page = requests.page(request.query_params)
        found = await self._deps.pods.calls(page.first, page.count)
        return _json(200, bodies.page([bodies.call(view) for view in found], page))


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
