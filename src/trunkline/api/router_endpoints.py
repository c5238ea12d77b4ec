"""The router's HTTP endpoints. Raw routes: allocate and release are among the hottest of the platform.

Pods belong to the platform, and may get calls of every tenant: only a key that is bound to no tenant has access.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import gmtime, monotonic, strftime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from trunkline.api import router_bodies as bodies
from trunkline.api.principal import Scope
from trunkline.api.raw_routes import Endpoint, RawRoute, json_response
from trunkline.api.router_bodies import BadRequest
from trunkline.api.router_operations import OPERATIONS
from trunkline.bus import router as bus_router
from trunkline.bus.router import Drained
from trunkline.errors import BusUnavailable
from trunkline.http.body import bounded_body
from trunkline.in_time import in_time
from trunkline.router.addresses import PodAddresses
from trunkline.router.allocator import Allocator
from trunkline.router.config import HOLD_S
from trunkline.router.pods import Pods
from trunkline.router.tokens import StreamKeys
from trunkline.routing import Allocation, PodSuperseded, Unallocated
from trunkline.schema.router import (
    TURN_MAX,
    AgentHeartbeat,
    AllocateCall,
    AllocatedCall,
    DrainedPod,
    DrainPod,
    HeartbeatReply,
    PodAllocation,
    PodReset,
    ReleaseCall,
    ReleasedCall,
    RouterCallPage,
    RouterPodPage,
    RouterStatus,
)
from trunkline.store.allocations import Address
from trunkline.store.pods import Reset
from trunkline.telemetry import get_logger
from trunkline.telemetry.outages import Outage

log = get_logger(__name__)

# A request for a pod gets its response within 2 s, whatever hangs, however long the key or the account took.
ANSWER_S = 1.9
# The share of it for the allocation: the engines answer within 0.6 s or count as silent.
ALLOCATE_S = 1.4
# Valkey answers within a millisecond.
ADDRESS_S = 0.15
# A heartbeat with a thousand calls is 40 KB.
BODY_MAX_BYTES = 256 * 1024


def asked_at_s(request: Request) -> float:
    """When the request came in, by the monotonic clock: as the fast path noted it, or the time of the first call."""
    at_s: float = request.scope.setdefault("state", {}).setdefault("asked_at_s", monotonic())
    return at_s


def time_left_s(since_s: float) -> float:
    """The time that an allocation may still take, for a request of `since_s`. At least 50 ms: most find a pod at
    once."""
    return max(min(ALLOCATE_S, since_s + ANSWER_S - monotonic()), 0.05)


@dataclass(frozen=True, slots=True)
class RouterEndpoints:
    """`is_open`: no key is required, for a router in a network of its own."""

    allocator: Allocator
    pods: Pods
    stream_keys: StreamKeys
    addresses: PodAddresses | None = None
    is_leader: Callable[[], bool] = lambda: False
    is_open: bool = False
    # The platform's longest call; replies to heartbeats carry it.
    call_time_limit_s: float = 3600.0

    def raw_routes(self) -> list[RawRoute]:
        endpoints: dict[str, Endpoint] = {
            "POST /api/v1/allocate": self.allocate,
            "POST /api/v1/release": self.release,
            "POST /api/v1/drain": self.drain,
            "DELETE /api/v1/drain/{name}": self.undrain,
            "POST /api/v1/pods/{name}/reset": self.reset,
            "GET /api/v1/status": self.status,
            "GET /api/v1/pod/{name}": self.pod,
            "GET /api/v1/pod/{name}/address": self.address,
            "GET /api/v1/pods": self.list_pods,
            "GET /api/v1/allocations": self.list_allocations,
            "POST /api/v1/pods/{name}/heartbeat": self.heartbeat,
        }
        return [self._route(*label.split(), endpoint=endpoint) for label, endpoint in endpoints.items()]

    def _route(self, method: str, path: str, *, endpoint: Endpoint) -> RawRoute:
        scopes: tuple[Scope, ...] | None = None if self.is_open else ("router",)
        return RawRoute(method, path, self._guarded(endpoint), scopes, OPERATIONS[f"{method} {path}"])

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        """Check the key first, and turn errors into the one error shape. Each endpoint has an outage of its own: some
        work while others cannot."""
        outage = Outage("router.unavailable", what=endpoint.__name__.removeprefix("list_"))

        async def answer(request: Request) -> Response:
            asked_at_s(request)  # set before the first await
            if not self.is_open and request.scope["state"]["principal"].tenant.reseller_id is not None:
                return _error(request, 403, "forbidden", "the router needs a key of the platform")
            begun_at = outage.now()
            try:
                response = await endpoint(request)
                outage.worked(begun_at)
                return response
            except BadRequest as error:
                return _error(request, 400, "invalid_request", error.message, error.field)
            except BusUnavailable as error:
                outage.failed(error)
                return _error(request, 503, "unavailable", "the router cannot reach its store")

        return answer

    async def allocate(self, request: Request) -> Response:
        body = bodies.decode(await _body(request), AllocateCall)
        call_sid, merchant_id = (
            bodies.call_sid(body.call_sid),
            bodies.short(body.merchant_id, "merchant_id"),
        )
        allocating = self.allocator.allocate(call_sid, merchant_id, may_wait=body.wait)
        try:
            answer = await in_time(time_left_s(asked_at_s(request)), allocating)
        except TimeoutError as error:
            raise BusUnavailable("no answer in time") from error
        match answer:
            case Allocation():
                url, token = self.stream_keys.url(answer), self.stream_keys.sign(answer)
                at, slot = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(answer.at_s or None)), answer.slot
                pod = PodAllocation(slot.pod, url, slot.source_pool, at, answer.is_existing, token)
                return json_response(200, AllocatedCall(True, pod))
            case Unallocated(why="unknown"):
                return _error(request, 503, "unavailable", "the router cannot reach its stores")
            case Unallocated(why="busy"):
                log.warning("router.no_pods", call_id=call_sid)
                return _error(request, 503, "no_pods_available", "no pods available")
            case Unallocated(why="hold", before=before):
                more = {"waiting_before": before, "retry_after_s": HOLD_S}
                held = _error(request, 503, "hold", "no pods available", more=more)
                held.headers["Retry-After"] = str(HOLD_S)
                return held
            case _:
                return _error(request, 410, "call_ended", "call has ended")

    async def release(self, request: Request) -> Response:
        body = bodies.decode(await _body(request), ReleaseCall)
        by_pod = bodies.pod_name(body.pod_name) if body.pod_name else ""
        if body.turn is not None and not 0 <= body.turn <= TURN_MAX:
            raise BadRequest(f"turn must be 0 to {TURN_MAX}", "turn")
        call_sid = bodies.call_sid(body.call_sid)
        ended = await self.allocator.release(call_sid, by_pod, body.turn)
        if ended is None:
            return _error(request, 404, "call_not_found", "call not found")
        if by_pod:
            self.pods.registry.released(by_pod, call_sid)
        released = ReleasedCall(True, ended.pod or "", ended.source_pool, ended.was_draining)
        return json_response(200, released)

    async def drain(self, request: Request) -> Response:
        name = bodies.pod_name(bodies.decode(await _body(request), DrainPod).pod_name)
        drained = await self.pods.drain(name)
        if drained is None:
            return _no_pod(request)
        log.info("router.drained", pod=name, has_active_call=drained.has_active_call)
        return _drained(name, drained, "Pod drained successfully")

    async def undrain(self, request: Request) -> Response:
        name = bodies.pod_name(request.path_params["name"])
        drained = await self.pods.drain(name, ends=True)
        if drained is None:
            return _no_pod(request)
        message = "Pod is leaving by itself" if drained.is_draining else "Pod takes calls again"
        return _drained(name, drained, message)

    async def heartbeat(self, request: Request) -> Response:
        body = bodies.decode(await _body(request), AgentHeartbeat)
        beat = bodies.heartbeat(request.path_params["name"], body)
        reply = await self.pods.heartbeat(beat)
        if isinstance(reply, PodSuperseded):
            message = "a later process has registered under this pod's name"
            return _error(request, 409, "pod_superseded", message)
        heard = HeartbeatReply(
            True,
            beat.pod,
            reply.tier,
            reply.draining,
            reply.calls[0] if reply.calls else "",
            [*reply.calls],
            reply.max_concurrent,
            reply.again_in_s,
            self.call_time_limit_s,
            [secret.hex() for secret in self.stream_keys.pod_secrets(beat.pod)],
        )
        return json_response(200, heard)

    async def reset(self, request: Request) -> Response:
        name = bodies.pod_name(request.path_params["name"])
        done = await self.pods.reset(name)
        if done is None:
            return _no_pod(request)
        log.warning("router.pod_reset", pod=name, calls=done.calls, still_named=done.still_named)
        calls = ([*done.calls], [*done.still_named], [*done.hanging])
        return json_response(200, PodReset(True, name, *calls, done.status, _what_to_check(done)))

    async def status(self, request: Request) -> Response:
        counts = await bus_router.counts(self.pods.bus)
        pods: dict[str, int] = {}
        for pool in counts.pools:
            pods |= {f"{pool.tier}:available": pool.available, f"{pool.tier}:assigned": pool.assigned}
        free = {pool.tier: pool.room for pool in counts.pools}
        kept = {pool.tier: pool.kept for pool in counts.pools}
        status = RouterStatus(
            pods, counts.calls, self.is_leader(), "up", counts.waiting, free, counts.kept, kept
        )
        return json_response(200, status)

    async def pod(self, request: Request) -> Response:
        name = bodies.pod_name(request.path_params["name"])
        view = await bus_router.pod_view(self.pods.bus, name)
        return json_response(200, view.pod) if view else _no_pod(request)

    async def address(self, request: Request) -> Response:
        """Where a proxy reaches a pod: 204 and the header, or 403 (nginx accepts no 404 from a subrequest). Valkey is
        read first: a restarted pod has another address, and this process' cache may be one second old. A stream waits
        for the response, so while Valkey does not answer the cache is good enough."""
        name = bodies.pod_name(request.path_params["name"])
        cached = self.addresses.by_pod.get(name) if self.addresses else None
        found = cached
        try:
            view = await in_time(ADDRESS_S, bus_router.pod_view(self.pods.bus, name))
            if view is not None and (cached is None or view.incarnation >= cached.incarnation):
                found = Address(view.incarnation, name, "", view.pod.ip, view.pod.port)
        except (BusUnavailable, TimeoutError) as error:
            if cached is None:
                raise BusUnavailable(str(error)) from error
        if found is None or not found.ip or not found.port:
            return Response(status_code=403)
        host = f"[{found.ip}]" if ":" in found.ip else found.ip
        return Response(status_code=204, headers={"X-Pod-Address": f"{host}:{found.port}"})

    async def list_pods(self, request: Request) -> Response:
        page = bodies.page(request.query_params)
        items = await bus_router.pods(self.pods.bus, page.first, page.count)
        return json_response(200, RouterPodPage(items, page.following(len(items))))

    async def list_allocations(self, request: Request) -> Response:
        page = bodies.page(request.query_params)
        items = await bus_router.calls(self.pods.bus, page.first, page.count)
        return json_response(200, RouterCallPage(items, page.following(len(items))))


async def _body(request: Request) -> bytes:
    body = await bounded_body(request, BODY_MAX_BYTES)
    if body is None:
        raise BadRequest(f"the body must be at most {BODY_MAX_BYTES} bytes")
    return body


def _drained(pod: str, drained: Drained, message: str) -> Response:
    return json_response(200, DrainedPod(True, pod, drained.has_active_call, message, drained.is_draining))


def _what_to_check(done: Reset) -> str:
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
    return " ".join(messages) or "Pod is free"


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
    return json_response(status, content)
