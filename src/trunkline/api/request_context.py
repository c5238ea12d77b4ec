"""The outermost layer: it gives every request an id, every error its shape, and counts every response in the
metrics."""

import logging
import re
import time
from functools import cache

from prometheus_client import Counter, Histogram
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trunkline.api import errors
from trunkline.errors import StoreUnavailable
from trunkline.model import new_text_id
from trunkline.telemetry import bind, get_logger, metrics

log = get_logger(__name__)
_levels = logging.getLogger(__name__)

# A client's id appears in logs and headers, so it must be harmless in both.
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestContext:
    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = request_id_of(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        answer = _TracedResponse(send, request_id)
        started_s = time.perf_counter()
        with bind(request_id=request_id):
            try:
                await self._answer(scope, receive, answer)
            finally:
                measure(scope, answer.status, time.perf_counter() - started_s)

    async def _answer(self, scope: Scope, receive: Receive, answer: "_TracedResponse") -> None:
        try:
            await self.app(scope, receive, answer)
        except ClientDisconnect:
            log.debug("request.abandoned", path=scope["path"])
        except Exception as error:
            report(scope, error)
            if answer.status is not None:
                # A part of the response is sent. Only closing the connection can still show that it is incomplete.
                raise
            await errors.respond(error, answer.request_id)(scope, receive, answer)


class _TracedResponse:
    """Sends the application's response with the request's id in its headers."""

    def __init__(self, send: Send, request_id: str):
        self._send = send
        self.request_id = request_id
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *own_headers(self.request_id)]
        await self._send(message)


def own_headers(request_id: str) -> tuple[tuple[bytes, bytes], ...]:
    """Those that every answer has."""
    return (b"x-request-id", request_id.encode()), (b"x-content-type-options", b"nosniff")


def request_id_of(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            given: str = value.decode("latin-1")
            return given if _SANE_ID.fullmatch(given) else new_text_id()
    return new_text_id()


def report(scope: Scope, error: Exception) -> None:
    match error:
        case errors.ApiError():
            pass
        case StoreUnavailable():
            log.warning("store.unavailable", path=scope["path"], reason=str(error))
        case _:
            log.error("request.failed", path=scope["path"], exc_info=error)


def measure(scope: Scope, status: int | None, duration_s: float) -> None:
    method = scope["method"] if scope["method"] in _METHODS else "OTHER"
    # The template, never the path: a path contains ids, and clients can invent any number of them.
    route = getattr(scope.get("route"), "path", "unmatched")
    if _levels.isEnabledFor(logging.DEBUG):
        duration_ms = round(duration_s * 1000, 1)
        log.debug("request.answered", method=method, route=route, status=status, duration_ms=duration_ms)
    count, seconds = _counters(method, route, str(status or "abandoned"))
    count.inc()
    seconds.observe(duration_s)


# Finding a counter by its labels costs as much as verifying a signature. Labels are few: methods, templates, statuses.
@cache
def _counters(method: str, route: str, status: str) -> "tuple[Counter, Histogram]":
    return metrics.HTTP_REQUESTS.labels(method, route, status), metrics.HTTP_SECONDS.labels(method, route)
