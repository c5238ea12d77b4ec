"""Parts that the bodies of several routes share."""

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from trunkline.api.errors import conflict, not_found
from trunkline.store.tables import InUse

T = TypeVar("T")


class Body(BaseModel):
    """A request body. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Out(BaseModel):
    """A response body, read from a value of the store. It lists its fields, so that none is exposed by accident."""

    model_config = ConfigDict(from_attributes=True)


class FieldErrorOut(BaseModel):
    """A field that is wrong."""

    field: str = Field(description="Its name; `a.b` is field b of a.")
    error: str = Field(description="What is wrong with it.")


class ErrorOut(BaseModel):
    """Every error of this API."""

    success: bool = Field(examples=[False])
    error: str = Field(description="A sentence for people, with what to do.")
    code: str = Field(description="A word for programs.")
    request_id: str = Field(description="Also in the header X-Request-ID, and in our logs.")
    fields: list[FieldErrorOut] | None = None


_DESCRIPTIONS = {
    400: "The body is not JSON, or the cursor is of another list.",
    401: "No API key, or one that is unknown, revoked or expired.",
    403: "The key lacks the scope, or may read the object but not change it.",
    404: "There is no such object, or it is another tenant's.",
    408: "The body arrived too slowly.",
    409: "The name is taken, the object is in use, or the request was sent before with other content.",
    413: "The body is too large.",
    415: "The Content-Type is not JSON.",
    422: "A field is wrong: see `fields`.",
    503: "The database cannot be reached. Send the same request again.",
}
_READ = (400, 401, 403, 404, 422, 503)

Responses = dict[int | str, dict[str, Any]]


def documented(*statuses: int) -> Responses:
    return {status: {"model": ErrorOut, "description": _DESCRIPTIONS[status]} for status in statuses}


READ_ERRORS = documented(*_READ)
DELETE_ERRORS = documented(*_READ, 409)
WRITE_ERRORS = documented(*_READ, 408, 409, 413, 415)


def require_found(value: T | None, thing: str) -> T:
    if value is None:
        raise not_found(thing)
    return value


def created(value: T | None, thing: str, key: str) -> T:
    """The inserted value; 409 if it exists already."""
    if value is None:
        raise conflict("already_exists", f"{thing} {key!r} exists already. Choose another one.")
    return value


def refuse_in_use(use: InUse | None, thing: str) -> None:
    if use is not None:
        used_by = use.table.replace("_", " ")
        raise conflict("in_use", f"This {thing} cannot be removed while {used_by} name it.")
