"""A lane of their own for the hottest requests: carriers' webhooks, and the router's allocate and release.

Measured, the layers and the routing of the whole application cost such a request more than its own work. Here it
meets what it needs of them: its key, a limit on the time of its body, its id, its line in the metrics, the shape of
every error, by the functions that all others meet (docs/decisions/0052-fast-paths.md). Whatever is not plainly all
right (no key, a key without the scope, another path) goes the ordinary way and is answered there.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from trunkline.api import errors
from trunkline.api.auth import bearer_token
from trunkline.api.body_guard import BodyRule, TimedBody
from trunkline.api.key_verifier import KeyVerifier
from trunkline.api.principal import Principal
from trunkline.api.raw_routes import Endpoint, RawRoute
from trunkline.api.request_context import measure, own_headers, report, request_id_of
from trunkline.errors import StoreUnavailable
from trunkline.telemetry import bind_task, get_logger

log = get_logger(__name__)


class FastPath:
    def __init__(self, app: ASGIApp, verifier: KeyVerifier, routes: Sequence[RawRoute], *, body: BodyRule):
        self.app = app
        self._verifier = verifier
        self._fast_router = FastRouter(routes)
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Deadlines count from here: a key that is new to this process may take a second and a half of them.
        asked_at_s = monotonic()
        route = self._fast_router.find(scope) if scope["type"] == "http" else None
        who: Principal | None = None
        if route is not None and route.scopes is not None:
            token = bearer_token(scope)
            try:
                who = self._verifier.at_hand(token) or await self._verifier.verify(token.decode("latin-1"))
            except StoreUnavailable as error:
                # Answered here: a second query, by the full stack, would take twice as long.
                await self._serve(replace(route, endpoint=_failing(error)), None, scope, receive, send)
                return
            if who is None or not who.may(route.scopes):
                route = None
        if route is None:
            await self.app(scope, receive, send)
        else:
            scope.setdefault("state", {}).update(asked_at_s=asked_at_s)
            await self._serve(route, who, scope, receive, send)

    async def _serve(
        self, route: RawRoute, who: Principal | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        started_s = time.perf_counter()
        request_id = request_id_of(scope)
        bind_task(request_id=request_id, **({"key_id": str(who.key_id)} if who else {}))
        scope.setdefault("state", {}).update(request_id=request_id, principal=who)
        scope["route"] = route
        status: int | None = None
        try:
            try:
                response = await route.endpoint(Request(scope, TimedBody(receive, self._body)))
            except ClientDisconnect:
                raise
            except Exception as error:
                report(scope, error)
                response = errors.respond(error, request_id)
            status = response.status_code
            headers = [*response.raw_headers, *own_headers(request_id)]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": response.body})
        except ClientDisconnect:
            log.debug("request.abandoned", path=scope["path"])
        finally:
            measure(scope, status, time.perf_counter() - started_s)


def _failing(error: Exception) -> Endpoint:
    async def fail(_request: Request) -> Response:
        raise error

    return fail


class FastRouter:
    """Which requests may take the short way: those of a fixed path, and those of the shape `/first/{name}/last`. Two
    look-ups by key instead of a walk along a hundred routes. Whatever is not found here is found by the application."""

    def __init__(self, routes: Sequence[RawRoute]):
        self._fixed: dict[tuple[str, str], RawRoute] = {}
        self._named: dict[tuple[str, str, str], tuple[str, RawRoute]] = {}
        for hot in routes:
            parts = hot.path.split("/")
            if "{" not in hot.path:
                self._fixed[hot.method, hot.path] = hot
            elif len(parts) == 4 and parts[2][:1] == "{" and "{" not in parts[3]:
                self._named[hot.method, parts[1], parts[3]] = parts[2].strip("{}"), hot

    def find(self, scope: Scope) -> RawRoute | None:
        """The route of this request, with the name in its path noted where endpoints look for it."""
        fixed = self._fixed.get((scope["method"], scope["path"]))
        if fixed is not None:
            return fixed
        parts = scope["path"].split("/")
        found = self._named.get((scope["method"], parts[1], parts[3])) if len(parts) == 4 else None
        if found is None or not parts[2]:
            return None
        scope["path_params"] = {found[0]: parts[2]}
        return found[1]
