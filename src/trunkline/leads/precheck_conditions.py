"""Pre-checks: the request to a tenant's own system before a lead is called, and the conditions on its reply. Pure."""

import operator
from datetime import timedelta
from hashlib import sha256
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from trunkline.leads.immutable import Frozen

Operator = Literal[
    "equals", "not_equals", "contains", "not_contains", "in", "gt", "gte", "lt", "lte", "exists", "missing"
]
Scalar = str | int | float | bool | None


def _web_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError("this is not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ValueError("give an http or https URL with a host and without a user name")
    return url


WebUrl = Annotated[str, Field(max_length=2000), AfterValidator(_web_url)]
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")]
HeaderValue = Annotated[str, Field(pattern=r"^[\x20-\x7e]{0,500}$")]


class Condition(Frozen):
    """`path` leads into the JSON of the answer: `customer.flags.0`. The status code is `status`."""

    path: str = Field(
        min_length=1,
        max_length=200,
        pattern=r"^[^\x00-\x1f\x7f]*$",
        examples=["body.allowed"],
        description="Where the value is in the response, as `a.b`.",
    )
    operator: Operator = Field("equals", description="How it is compared.")
    value: Scalar | tuple[Scalar, ...] = Field(None, description="With what it is compared.")


class HttpCheck(Frozen):
    """A request with the lead as JSON. It passes if the reply is 2xx and every condition holds."""

    url: WebUrl = Field(description="The address that is requested.")
    method: Literal["GET", "POST"] = Field("POST", description="How it is requested.")
    headers: dict[HeaderName, HeaderValue] = Field(
        default_factory=dict, max_length=20, description="Headers of the request."
    )
    conditions: tuple[Condition, ...] = Field((), max_length=20, description="What the response decides.")
    timeout_s: float = Field(10.0, ge=1, le=30, description="How long the platform waits for the response.")
    retries: int = Field(2, ge=0, le=5, description="How often a request without a response is repeated.")
    on_failure: Literal["proceed", "skip"] = Field(
        "skip",
        description="If the tenant's system does not respond: call all the same, or treat the pre-check "
        "as not passed.",
    )
    otherwise: Literal["abort", "defer"] = Field(
        "abort",
        description="If it does not pass: the lead ends as PRECHECK_FAILED, or the pre-check is "
        "repeated later.",
    )
    defer_s: float = Field(3600.0, ge=60, le=604_800, description="By how long a deferred call is put off.")
    defer_max: int = Field(10, ge=1, le=10, description="How often a call is put off at most.")

    @property
    def defer_for(self) -> timedelta:
        return timedelta(seconds=self.defer_s)


def fingerprint(checks: tuple[HttpCheck, ...]) -> bytes:
    return sha256(b"\n".join(check.model_dump_json().encode() for check in checks)).digest()


_MISSING = object()


def holds(condition: Condition, answer: Any) -> bool:
    """A comparison of values that cannot be compared is false, never an error: the reply is the tenant's."""
    value = _at(answer, condition.path.split("."))
    match condition.operator:
        case "exists":
            return value is not _MISSING
        case "missing":
            return value is _MISSING
        case _ if value is _MISSING:
            return False
        case "equals":
            return _same(value, condition.value)
        case "not_equals":
            return not _same(value, condition.value)
        case "contains":
            return _contains(value, condition.value)
        case "not_contains":
            return not _contains(value, condition.value)
        case "in":
            return isinstance(condition.value, tuple) and any(_same(value, each) for each in condition.value)
        case _:
            return _ordered(condition.operator, value, condition.value)


def _at(value: Any, path: list[str]) -> Any:
    for part in path:
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return _MISSING
    return value


def _same(value: Any, expected: Any) -> bool:
    """1 is 1.0, and neither is true."""
    return bool(isinstance(value, bool) == isinstance(expected, bool) and value == expected)


def _contains(value: Any, expected: Any) -> bool:
    if isinstance(value, str):
        return isinstance(expected, str) and expected in value
    if isinstance(value, list):
        return any(_same(each, expected) for each in value)
    return isinstance(value, dict) and expected in value


_COMPARISONS = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}


def _ordered(name: str, value: Any, expected: Any) -> bool:
    if not (_is_number(value) and _is_number(expected)):
        return False
    return bool(_COMPARISONS[name](value, expected))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
