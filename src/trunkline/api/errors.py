"""One shape for every error: a sentence that says what to do, a code for programs, the id of the request."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from fastapi import HTTPException
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import Request
from starlette.responses import Response

from trunkline.errors import StoreUnavailable
from trunkline.leads.ingest import FieldProblem
from trunkline.schema.fields import OBJECT_ID

STORE_RETRY_AFTER_S = 2
FIELD_NAME_MAX = 100
# The server does not wait for the rest of a refused body: the connection ends with the response.
CLOSE = {"Connection": "close"}

# Messages for errors that the framework raises by itself.
_BY_STATUS: Mapping[int, tuple[str, str]] = {
    400: ("bad_body", "The body cannot be read as JSON in UTF-8. Check its encoding and its nesting."),
    404: ("not_found", "There is nothing at this address. GET /docs lists the endpoints."),
    405: (
        "method_not_allowed",
        "This address does not support this method. The Allow header lists those it does.",
    ),
}


class ApiError(HTTPException):
    """A response that is not 2xx. Derived from FastAPI's class, because its body parsing lets only that pass."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        fields: Iterable[FieldProblem] = (),
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ):
        super().__init__(status, message, dict(headers or {}))
        self.code = code
        self.message = message
        self.fields = tuple(fields)
        # Further fields of the body, as the route documents them.
        self.more = dict(more or {})


def too_slow(timeout_s: float) -> ApiError:
    message = f"The body did not arrive within {timeout_s:g} s. Send it again."
    return ApiError(408, "body_too_slow", message, headers=CLOSE)


def not_found(thing: str) -> ApiError:
    """Also for objects of other tenants: the response does not reveal whether they exist."""
    return ApiError(404, "not_found", f"There is no such {thing}.")


def unknown(field: str, thing: str) -> ApiError:
    """The body names a tenant that this key cannot see."""
    error = f"There is no such {thing}."
    return ApiError(404, f"unknown_{thing}", error, fields=[FieldProblem(field, error)])


def forbidden(code: str, message: str) -> ApiError:
    return ApiError(403, code, message)


def conflict(code: str, message: str) -> ApiError:
    return ApiError(409, code, message)


def invalid(*problems: FieldProblem) -> ApiError:
    return ApiError(422, "invalid_request", "The request is not valid. See fields.", fields=problems)


def store_unavailable() -> ApiError:
    return ApiError(
        503,
        "store_unavailable",
        "The database cannot be reached right now. Send the same request again in a moment.",
        headers={"Retry-After": str(STORE_RETRY_AFTER_S)},
    )


def respond(error: Exception, request_id: str) -> Response:
    """The response to any exception. Internal errors become a 500 without details."""
    match error:
        case ApiError():
            problem = error
        case RequestValidationError():
            problem = _from_validation(error)
        case StarletteHTTPException():
            problem = _from_framework(error)
        case StoreUnavailable():
            problem = store_unavailable()
        case _:
            problem = _OUR_FAULT
    return _render(problem, request_id)


async def handle(request: Request, error: Exception) -> Response:
    """For the framework's table of handlers."""
    if isinstance(error, RequestValidationError) and _is_not_json(request, error):
        error = _NOT_JSON
    elif isinstance(error, StarletteHTTPException) and error.status_code == 405:
        error.headers = {"Allow": ", ".join(_allowed_methods(request))}
    return respond(error, request.state.request_id)


def body_of(problem: ApiError, request_id: str, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "success": False,
        "error": problem.message,
        "code": problem.code,
        "request_id": request_id,
    }
    if problem.fields:
        body["fields"] = [{"field": each.field, "error": each.error} for each in problem.fields]
    return body | more


def _render(problem: ApiError, request_id: str) -> Response:
    return Response(
        msgspec.json.encode(body_of(problem, request_id, **problem.more)),
        problem.status_code,
        headers=problem.headers,
        media_type="application/json",
    )


def _from_framework(error: StarletteHTTPException) -> ApiError:
    code, message = _BY_STATUS.get(error.status_code, ("refused", str(error.detail)))
    return ApiError(error.status_code, code, message, headers=error.headers)


def _from_validation(error: RequestValidationError) -> ApiError:
    details = error.errors()
    if any(detail["type"] == "json_invalid" for detail in details):
        position = details[0]["loc"][-1]
        return ApiError(400, "bad_json", f"The body is not valid JSON: see character {position}.")
    if all(detail["loc"][0] == "path" for detail in details):
        # A malformed id identifies nothing.
        return not_found("object")
    return invalid(*(FieldProblem(_name(detail["loc"]), sentence(detail)) for detail in details))


def sentence(detail: Mapping[str, Any]) -> str:
    """A clearer message where that of the validation is not meant for people."""
    if detail["type"] == "string_pattern_mismatch" and detail["ctx"]["pattern"] == OBJECT_ID:
        return "An id has small letters, digits, - and _ only, and begins with a letter or digit: acme-store."
    if detail["type"] == "unexpected_keyword_argument":
        return "Extra inputs are not permitted"
    if detail["type"] == "dataclass_type":
        return f"Input should be a valid dictionary or instance of {detail['ctx']['class_name']}"
    return str(detail["msg"])


def _name(loc: Sequence[str | int]) -> str:
    """`("body", "payload", "a")` is `payload.a`. A name may be the client's own text, so it is truncated and
    cleaned."""
    name = ".".join(str(part) for part in loc[1:]) or str(loc[0])
    return name[:FIELD_NAME_MAX].encode("utf-8", "replace").decode()


def _is_not_json(request: Request, error: RequestValidationError) -> bool:
    """The body was not parsed, because its content type is not JSON."""
    return isinstance(error.body, bytes) and "json" not in request.headers.get("content-type", "")


def _allowed_methods(request: Request) -> list[str]:
    """Of all routes at this path. The framework lists only those of the first one."""
    routes = (route for route in iter_route_contexts(request.app.routes) if route.path is not None)
    matching = (route.methods or () for route in routes if route.path_regex.match(request.scope["path"]))
    return sorted(set().union(*matching))


_NOT_JSON = ApiError(
    415, "unsupported_media_type", "Send the body as JSON, with the header Content-Type: application/json."
)
_OUR_FAULT = ApiError(
    500,
    "internal_error",
    "Internal error. If it happens again, report the request_id.",
)
