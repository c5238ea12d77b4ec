"""The application: its layers from the outside in, its routes, its documentation."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from trunkline import __version__
from trunkline.api import errors, openapi
from trunkline.api.auth import Authentication
from trunkline.api.body_guard import BodyGuard
from trunkline.api.deps import Api, ApiDeps
from trunkline.api.key_verifier import KeyVerifier
from trunkline.api.raw_routes import RawRoute
from trunkline.api.request_context import RequestContext
from trunkline.api.routes import ROUTERS
from trunkline.api.store import Store
from trunkline.schema.keys import ApiKey
from trunkline.store import keys


def create_api(deps: ApiDeps, raw_routes: Sequence[RawRoute] = ()) -> FastAPI:
    api = _assemble(deps)
    own_auth = tuple(hot.fixed_part for hot in raw_routes if hot.is_self_authenticated)
    app = FastAPI(
        title="Trunkline",
        version=__version__,
        middleware=[
            Middleware(RequestContext),
            Middleware(BodyGuard, rule=deps.limits.body, exceptions=deps.limits.body_exceptions),
            Middleware(Authentication, verifier=api.verifier, self_authenticated=own_auth),
        ],
        exception_handlers={HTTPException: errors.handle, RequestValidationError: errors.handle},
        redirect_slashes=False,
        # The name of its function is the id of an operation, and the name of the client's method.
        generate_unique_id_function=lambda route: route.name,
        docs_url=None,
        redoc_url=None,
    )
    app.state.api = api
    for hot in raw_routes:
        app.router.routes.append(hot.route())
    for router in ROUTERS:
        app.include_router(router)
    app.add_route("/docs", openapi.get_docs, include_in_schema=False)
    _document(app, raw_routes)
    return app


def _assemble(deps: ApiDeps) -> Api:
    store = Store(deps.database, timeout_s=deps.limits.store_timeout_s)

    async def look_up(key_hash: bytes) -> ApiKey | None:
        async with store.reading() as connection:
            return await keys.by_hash(connection, key_hash)

    verifier = KeyVerifier(
        look_up, deps.clock, fresh_s=deps.limits.key_fresh_s, stale_s=deps.limits.key_stale_s
    )
    return Api(deps, store, verifier)


def _document(app: FastAPI, raw_routes: Sequence[RawRoute]) -> None:
    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = openapi.build(app, raw_routes)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
