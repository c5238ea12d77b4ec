"""The client's errors.

ApiError      the API refused the request, with a reason
Unreachable   there is no response: the request may or may not have taken effect
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FieldError:
    field: str
    error: str


class ApiError(Exception):
    """`code` is for programs, `message` for people; `request_id` is for support.

    `report` is set when an upload was cut short: how many rows were accepted, and which were not.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        fields: tuple[FieldError, ...],
        request_id: str,
        report: Any = None,
    ):
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.fields = fields
        self.request_id = request_id
        self.report = report

    def __str__(self) -> str:
        fields = "".join(f"; {each.field}: {each.error}" for each in self.fields)
        return f"{self.message}{fields} ({self.status} {self.code}, request {self.request_id or 'unknown'})"


class Unreachable(Exception):
    """The API cannot be reached, did not respond in time, or something else responded in its place."""


def api_error(status: int, body: Any, request_id: str) -> ApiError:
    """From the API's error shape; a proxy in between has none."""
    if not isinstance(body, dict) or "code" not in body:
        return ApiError(status, f"http_{status}", f"answered with status {status}", (), request_id)
    fields = tuple(FieldError(each["field"], each["error"]) for each in body.get("fields") or ())
    known_as = body.get("request_id") or request_id
    return ApiError(status, body["code"], body["error"], fields, known_as, body.get("report"))
