"""Routes for which FastAPI is too slow: plain Starlette endpoints beside it, in the same OpenAPI page."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trunkline.api.auth import API_ROOT, require_scope
from trunkline.api.principal import Scope

Endpoint = Callable[[Request], Awaitable[Response]]
# A part of the OpenAPI document. Where it has a schema, it may have a type: `openapi.build` refers to its shape.
Part = dict[str, Any]

ERROR: Part = {"$ref": "#/components/schemas/ErrorOut"}


def said(description: str, shape: type | Part | None = None, **more: Any) -> Part:
    """An answer of an operation in JSON; without a shape an error."""
    return {
        "description": description,
        "content": {"application/json": {"schema": ERROR if shape is None else shape}},
        **more,
    }


def operation(
    name: str,
    tag: str,
    summary: str,
    description: str,
    answers: Mapping[str, Part],
    *,
    body: type | Part | None = None,
    parameters: Sequence[Part] = (),
) -> Part:
    """`body`: the shape of a JSON body, or a body's content by its type."""
    content = {"application/json": {"schema": body}} if isinstance(body, type) else body
    return {
        "operationId": name,
        "tags": [tag],
        "summary": summary,
        "description": description,
        **({"requestBody": {"required": True, "content": content}} if content else {}),
        "parameters": [*parameters],
        "responses": dict(sorted(answers.items())),
    }


def json_response(status: int, content: object) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


@dataclass(frozen=True, slots=True)
class RawRoute:
    method: str
    path: str
    endpoint: Endpoint
    # Which scopes are enough; None for an endpoint that checks a signature or a token itself.
    scopes: tuple[Scope, ...] | None
    operation: Part

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
