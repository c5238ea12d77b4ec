"""Routes for which FastAPI is too slow: plain Starlette endpoints beside it, in the same OpenAPI page."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trunkline.api.auth import API_ROOT, require_scope
from trunkline.api.principal import Scope

Endpoint = Callable[[Request], Awaitable[Response]]


def json_response(status: int, content: object) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


@dataclass(frozen=True, slots=True)
class RawRoute:
    method: str
    path: str
    endpoint: Endpoint
    # Which scopes are enough; None for an endpoint that checks a signature or a token itself.
    scopes: tuple[Scope, ...] | None
    # An OpenAPI operation object: summary, description, requestBody, responses.
    operation: Mapping[str, Any]

    @property
    def is_self_authenticated(self) -> bool:
        return self.scopes is None and self.path.startswith(API_ROOT)

    @property
    def fixed_part(self) -> str:
        """The path up to its first parameter."""
        return self.path.partition("{")[0]

    def route(self) -> Route:
        return Route(self.path, self.serve, methods=[self.method])

    async def serve(self, request: Request) -> Response:
        request.scope["route"] = self  # where FastAPI leaves its own, for the metrics
        if self.scopes is not None:
            require_scope(request.state.principal, self.scopes)
        return await self.endpoint(request)
