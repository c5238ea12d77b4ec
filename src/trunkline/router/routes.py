"""The router's HTTP face. Plain Starlette routes: allocate and release are among the hottest of the platform.

A pod is the platform's, and so is every call that it may be given: only a key that is bound to no tenant may ask.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trunkline.bus.router import PodView
from trunkline.errors import BusUnavailable
from trunkline.router import requests
from trunkline.router.allocator import Allocated, Allocator, Ended, NoneFree, NotAllocated, Released
from trunkline.router.pods import Heard, Heartbeat, Pods
from trunkline.router.requests import AllocateBody, BadRequest, HeartbeatBody, ReleaseBody
from trunkline.telemetry import get_logger

log = get_logger(__name__)

SCOPE = "router"
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


def routes(deps: RouterDeps) -> list[Route]:
    face = _Face(deps)
    return [
        Route("/api/v1/allocate", face.guarded(face.allocate), methods=["POST"]),
        Route("/api/v1/release", face.guarded(face.release), methods=["POST"]),
        Route("/api/v1/pods/{name}/heartbeat", face.guarded(face.heartbeat), methods=["POST"]),
        Route("/api/v1/status", face.guarded(face.status), methods=["GET"]),
        Route("/api/v1/pod/{name}", face.guarded(face.pod), methods=["GET"]),
    ]


class _Face:
    def __init__(self, deps: RouterDeps):
        self._deps = deps

    def guarded(self, handler: Handler) -> Handler:
        """Check the key first, and turn what can go wrong into the one error shape."""

        async def answer(request: Request) -> Response:
            principal = await self._deps.authorize(request, SCOPE)
            if isinstance(principal, Response):
                return principal
            if principal.reseller_id is not None:
                return _error(request, 403, "forbidden", "the router needs a key of the platform")
            try:
                return await handler(request)
            except BadRequest as error:
                return _error(request, 400, "invalid_request", error.message, error.field)
            except BusUnavailable as error:
                log.error("router.unavailable", error=str(error))
                return _error(request, 503, "unavailable", "the router cannot reach its store")

        return answer

    async def allocate(self, request: Request) -> Response:
        body = requests.decode(await _body(request), AllocateBody)
        call_sid, merchant_id = requests.call_sid(body.call_sid), requests.merchant_id(body.merchant_id)
        match await self._deps.allocator.allocate(call_sid, merchant_id):
            case Allocated() as allocated:
                return _json(200, {"success": True, "allocation": _allocation(allocated)})
            case NoneFree():
                log.warning("router.no_pods", call_id=call_sid)
                return _error(request, 503, "no_pods_available", "no pods available")
            case Ended():
                return _error(request, 410, "call_ended", "call has ended")

    async def release(self, request: Request) -> Response:
        body = requests.decode(await _body(request), ReleaseBody)
        by_pod = requests.pod_name(body.pod_name) if body.pod_name else ""
        match await self._deps.allocator.release(requests.call_sid(body.call_sid), by_pod):
            case Released() as released:
                return _json(200, _released(released))
            case NotAllocated():
                return _error(request, 404, "call_not_found", "call not found")

    async def heartbeat(self, request: Request) -> Response:
        body = requests.decode(await _body(request), HeartbeatBody)
        beat = requests.heartbeat(request.path_params["name"], body)
        return _json(200, _heard(beat, await self._deps.pods.heartbeat(beat)))

    async def status(self, request: Request) -> Response:
        calls, pools = await self._deps.pods.status()
        counts: dict[str, int] = {}
        for pool in pools:
            counts[f"{pool.tier}:available"] = pool.available
            counts[f"{pool.tier}:assigned"] = pool.assigned
        leads = self._deps.is_leader()
        return _json(200, {"pools": counts, "active_calls": calls, "is_leader": leads, "status": "up"})

    async def pod(self, request: Request) -> Response:
        name = requests.pod_name(request.path_params["name"])
        view = await self._deps.pods.find(name)
        if view is None:
            return _error(request, 404, "pod_not_found", "pod not found")
        return _json(200, _pod(name, view))


def _allocation(allocated: Allocated) -> dict[str, Any]:
    return {
        "pod_name": allocated.pod,
        "ws_url": allocated.ws_url,
        "source_pool": allocated.source_pool,
        "allocated_at": f"{allocated.allocated_at:%Y-%m-%dT%H:%M:%SZ}",
        "was_existing": allocated.was_existing,
        # The stream's parameter `token`: the pod accepts the stream with it and not without.
        "token": allocated.token,
    }


def _released(released: Released) -> dict[str, Any]:
    return {
        "success": True,
        "pod_name": released.pod,
        "released_to_pool": released.source_pool,
        "was_draining": released.was_draining,
    }


def _heard(beat: Heartbeat, heard: Heard) -> dict[str, Any]:
    return {
        "success": True,
        "pod_name": beat.pod,
        "tier": heard.tier,
        "draining": heard.draining,
        "call_sid": heard.call_sid,
        "stream_secrets": [secret.hex() for secret in heard.secrets],
    }


def _pod(name: str, view: PodView) -> dict[str, Any]:
    return {
        "pod_name": name,
        "tier": view.tier,
        "is_draining": view.draining,
        "has_active_lease": view.call_sid != "",
        "lease_call_sid": view.call_sid,
        "status": view.status,
    }


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_MAX_BYTES:
            raise BadRequest(f"the body must be at most {BODY_MAX_BYTES} bytes")
    return bytes(body)


def _json(status: int, content: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def _error(request: Request, status: int, code: str, message: str, field: str = "") -> Response:
    """The documented fields are `success` and `error`; the platform's error shape adds the others."""
    content: dict[str, Any] = {"success": False, "error": message, "code": code}
    content["request_id"] = getattr(request.state, "request_id", "")
    if field:
        content["fields"] = [{"field": field, "error": message}]
    return _json(status, content)
