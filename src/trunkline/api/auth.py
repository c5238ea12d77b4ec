"""Authentication of everything under /api/v1, before a body is read; and the scopes that routes require."""

import re
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from trunkline.api import event_signature, principal
from trunkline.api.errors import ApiError, forbidden
from trunkline.api.key_verifier import KeyVerifier
from trunkline.api.principal import Principal
from trunkline.telemetry import bind

API_ROOT = "/api/v1"
_BEARER = b"bearer "
# These accept a signature instead of a key. The route verifies it, since it covers the body.
_MAY_BE_SIGNED = re.compile(rf"{API_ROOT}/mailboxes/[^/]+/.+/events")


class Authentication:
    """`self_authenticated` are prefixes of paths that check a signature or a token of their own."""

    def __init__(self, app: ASGIApp, verifier: KeyVerifier, self_authenticated: tuple[str, ...] = ()):
        self.app = app
        self._verifier = verifier
        self._self_authenticated = self_authenticated

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._guards(scope["path"]):
            await self.app(scope, receive, send)
            return
        if _is_signed(scope):
            scope["state"]["principal"] = None
            await self.app(scope, receive, send)
            return
        # Set by the console for a verified session. No client can write into the state of a scope.
        who = scope["state"].get("principal") or await self._verifier.verify(_token(scope))
        if who is None:
            raise unauthorized("The API key is unknown, revoked or expired. Use another one.")
        scope["state"]["principal"] = who
        with bind(key_id=who.key_id):
            await self.app(scope, receive, send)

    def _guards(self, path: str) -> bool:
        is_ours = path == API_ROOT or path.startswith(f"{API_ROOT}/")
        return is_ours and not path.startswith(self._self_authenticated)


def _is_signed(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return (
        scope["method"] == "POST"
        and event_signature.HEADER in headers
        and "authorization" not in headers
        and _MAY_BE_SIGNED.fullmatch(scope["path"]) is not None
    )


def _token(scope: Scope) -> str:
    token = bearer_token(scope)
    if not token:
        raise unauthorized("Send an API key in the header: Authorization: Bearer tl_…")
    return token.decode("latin-1")


def bearer_token(scope: Scope) -> bytes:
    """What the request names as its key; empty if it names none."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            header: bytes = value
            return header[len(_BEARER) :].strip() if header[: len(_BEARER)].lower() == _BEARER else b""
    return b""


def unauthorized(message: str) -> ApiError:
    return ApiError(401, "unauthorized", message, headers={"WWW-Authenticate": 'Bearer realm="trunkline"'})


def require_scope(who: Principal, scopes: tuple[principal.Scope, ...]) -> None:
    if not who.may(scopes):
        raise forbidden("scope_missing", f"This key lacks the scope {' or '.join(scopes)}.")


def needs(*scopes: principal.Scope) -> Callable[[Request], Awaitable[Principal]]:
    """A dependency: the principal, if it has one of these scopes. Without scopes any key is accepted."""

    async def check(request: Request) -> Principal:
        who: Principal = request.state.principal
        if scopes:
            require_scope(who, scopes)
        return who

    return check


def require_platform(who: Principal, what: str) -> None:
    if not who.tenant.is_platform:
        raise forbidden("platform_only", f"Only a key of the platform may {what}.")


AnyKey = Annotated[Principal, Depends(needs())]
AdminKey = Annotated[Principal, Depends(needs("admin"))]
ReadKey = Annotated[Principal, Depends(needs("read", "leads"))]
JobsKey = Annotated[Principal, Depends(needs("jobs"))]
LeadsKey = Annotated[Principal, Depends(needs("leads"))]
