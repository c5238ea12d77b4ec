"""Ingest: from a request to a `NewLead`, or to every reason why not.

Nothing here reads or writes: the caller looks up the merchant's `Admission` first and inserts afterwards.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from trunkline.leads import phones
from trunkline.leads.calling_policy import EMPTY, CallingPolicy, Effective, resolve
from trunkline.leads.immutable import ZoneName
from trunkline.leads.windows import next_opening
from trunkline.model import new_id
from trunkline.schema.fields import Moment
from trunkline.schema.fields import ObjectId as ObjectId
from trunkline.schema.fields import Text as Text
from trunkline.store.leads import Admission, NewLead

PAYLOAD_BYTES_MAX = 64 * 1024
PAYLOAD_PHONE = "customer_mobile_number"
URL_MAX = 2048
YEAR_MAX = 9990
DEPTH_MAX = 32
_INT_MAX = 2**63 - 1

# Sorted keys: two spellings of one object have one encoding, as a fingerprint needs.
encode = msgspec.json.Encoder(order="deterministic").encode

EXAMPLE: JsonDict = {
    "request_id": "order-4711-reminder",
    "merchant_id": "acme-store",
    "phone": "+14155550123",
    "payload": {"customer_name": "Ada", "order": "4711"},
    "scheduled_at": "2030-05-01T09:30:00+02:00",
    "priority": 50,
    "pool": "acme-main",
    "max_attempts": 3,
    "reporting_webhook_url": "https://acme.example/hooks/trunkline",
}


class LeadRequest(BaseModel):
    """One person to call for one purpose."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [EXAMPLE]})

    request_id: Text = Field(
        min_length=1,
        max_length=200,
        description="Your own id of this request, unique per merchant. A repeated request with the same content "
        "returns the same lead; with other content it is refused.",
    )
    merchant_id: ObjectId | None = Field(
        None, description="The merchant of the lead. A key that is bound to a merchant may leave it out."
    )
    phone: Text | None = Field(
        None,
        min_length=1,
        max_length=phones.TEXT_MAX,
        description="The phone to call, best as E.164. Without a country code the merchant's "
        f"`default_region` counts. If it is left out, `payload.{PAYLOAD_PHONE}` is taken.",
    )
    timezone: ZoneName | None = Field(
        None,
        description="The time zone of the callee, for calling windows. Left out: that of the policy, or of the "
        "number.",
        examples=["America/New_York"],
    )
    payload: dict[str, Any] = Field(
        default_factory=dict, description="What the agent should know. Any JSON object, up to 64 KiB."
    )
    scheduled_at: Moment | None = Field(
        None, description="When to call, with an offset from UTC. Left out, or in the past: now."
    )
    expires_at: Moment | None = Field(
        None,
        description="The time from which the lead is not called any more, with an offset from UTC: a lead that "
        "still waits ends as EXPIRED. Left out: the lead does not expire.",
    )
    priority: int = Field(
        50, ge=1, le=99, strict=True, description="1 is called first, 99 last, within a merchant."
    )
    campaign_id: UUID | None = Field(None, description="The campaign it belongs to.")
    pool: ObjectId | None = Field(
        None, description="The number pool to dial from. Left out: the merchant's default pool."
    )
    max_attempts: int = Field(1, ge=1, le=20, strict=True, description="The maximum number of attempts.")
    reporting_webhook_url: Text | None = Field(
        None,
        min_length=1,
        max_length=URL_MAX,
        description="The URL for the report of the result, http or https.",
    )


@dataclass(frozen=True, slots=True)
class FieldProblem:
    field: str
    error: str


@dataclass(frozen=True, slots=True)
class LeadRefused:
    problems: tuple[FieldProblem, ...]


def prepare(
    request: LeadRequest, admission: Admission, *, payload_bytes_max: int = PAYLOAD_BYTES_MAX
) -> NewLead | LeadRefused:
    """Check what the schema cannot, normalise, and find the first allowed time to call."""
    problems: list[FieldProblem] = []
    phone = _phone(request, admission)
    if isinstance(phone, FieldProblem):
        problems.append(phone)
    if admission.pool_id is None:
        problems.append(no_pool(request.pool, "Name a number pool, or set the merchant's default_pool."))
    problems += content_problems(
        request.payload,
        request.scheduled_at,
        request.expires_at,
        request.reporting_webhook_url,
        payload_bytes_max=payload_bytes_max,
    )
    if problems or isinstance(phone, FieldProblem) or admission.pool_id is None:
        return LeadRefused(tuple(problems))
    scheduled_at = request.scheduled_at and request.scheduled_at.astimezone(UTC)
    when = timing(phone, request.timezone, scheduled_at, admission)
    if isinstance(when, FieldProblem):
        return LeadRefused((when,))
    return NewLead(
        id=new_id(),
        reseller_id=admission.reseller_id,
        merchant_id=admission.merchant_id,
        request_id=request.request_id,
        request_hash=fingerprint(request, phone, scheduled_at),
        phone=phone,
        timezone=request.timezone,
        payload=encode(request.payload).decode(),
        campaign_id=request.campaign_id,
        pool_id=admission.pool_id,
        priority=request.priority,
        max_attempts=request.max_attempts,
        reporting_webhook_url=request.reporting_webhook_url,
        scheduled_at=scheduled_at,
        due_at=when.due_at,
        closes_at=when.closes_at,
        is_deferred=when.is_deferred,
        expires_at=request.expires_at and request.expires_at.astimezone(UTC),
    )


@dataclass(frozen=True, slots=True)
class Timing:
    """When a lead is to be called. No due time: when it is requested. Deferred: requested now, and its window is
    closed."""

    due_at: datetime | None = None
    closes_at: datetime | None = None
    is_deferred: bool = False


AS_WANTED = Timing()


def timing(
    phone: str, zone: str | None, wanted_at: datetime | None, admission: Admission
) -> Timing | FieldProblem:
    """The first time at which the calling policy allows this call. The dial checks again: checking here saves it
    refused grants, and reports to the client at once what will never be called."""
    policy = effective(*admission.policy)
    if not policy.permits(phone):
        return FieldProblem("phone", "This merchant may not call numbers that begin like this one.")
    rules = policy.rules_of(phone, zone)
    if not rules:
        return AS_WANTED
    at = max(wanted_at or admission.now, admission.now)
    opening = next_opening(rules, at)
    if opening is None:
        return FieldProblem("phone", "The calling windows that apply to this number never open.")
    return Timing(opening.opens_at, opening.closes_at, opening.opens_at > at == admission.now)


@lru_cache(maxsize=4096)
def effective(*layers: str | None) -> Effective:
    """All layers of a calling policy together, from their documents."""
    return resolve(*(CallingPolicy.model_validate_json(text) if text else EMPTY for text in layers))


def fingerprint(request: LeadRequest, phone: str, scheduled_at: datetime | None) -> bytes:
    """Of the normalised request: another spelling of the phone or the time is the same request.

    The pool counts as the request names it, not as it was resolved: a repeated request stays the same after the
    merchant's default has changed.
    """
    content: tuple[Any, ...] = (
        phone,
        request.timezone,
        request.payload,
        scheduled_at,
        request.priority,
        request.campaign_id,
        request.pool,
        request.max_attempts,
        request.reporting_webhook_url,
    )
    if request.expires_at is not None:  # requests without it have the hash that they always had
        content = (*content, request.expires_at.astimezone(UTC))
    return hashlib.sha256(encode(content)).digest()


def _phone(request: LeadRequest, admission: Admission) -> str | FieldProblem:
    field = "phone"
    text: Any = request.phone
    if text is None:
        field = f"payload.{PAYLOAD_PHONE}"
        text = request.payload.get(PAYLOAD_PHONE)
    if text is None:
        return FieldProblem("phone", f"Give the phone to call, here or as payload.{PAYLOAD_PHONE}.")
    if not isinstance(text, str):
        return FieldProblem(field, 'Write the phone as text, for example "+14155550123".')
    parsed = phones.to_e164(text, admission.default_region)
    return FieldProblem(field, parsed.error) if isinstance(parsed, phones.BadPhone) else parsed


def no_pool(named: str | None, otherwise: str = "") -> FieldProblem:
    """`otherwise` is what to do where none was named."""
    return FieldProblem("pool", f"This merchant has no pool {named!r}." if named else otherwise)


def content_problems(
    payload: dict[str, Any] | None,
    scheduled_at: datetime | None,
    expires_at: datetime | None,
    reporting_webhook_url: str | None,
    *,
    payload_bytes_max: int,
) -> Iterator[FieldProblem]:
    """Of a request, or of a change: what is left out has no problem."""
    if payload and (problem := payload_problem(payload, payload_bytes_max)):
        yield problem
    if scheduled_at and (problem := moment_problem(scheduled_at)):
        yield problem
    # An expiry that has passed is no problem: the same request, repeated later, still has the same answer.
    if expires_at and (problem := moment_problem(expires_at, "expires_at")):
        yield problem
    elif expires_at and scheduled_at and expires_at <= scheduled_at:
        yield FieldProblem("expires_at", "It would expire before it may be called.")
    if reporting_webhook_url and (problem := webhook_problem(reporting_webhook_url)):
        yield problem


def moment_problem(moment: datetime | None, field: str = "scheduled_at") -> FieldProblem | None:
    """A moment leaves room for a year of calling windows after it."""
    try:
        fits = moment is None or moment.astimezone(UTC).year < YEAR_MAX
    except OverflowError:
        fits = False
    return None if fits else FieldProblem(field, "This moment is outside the calendar.")


def webhook_problem(url: str) -> FieldProblem | None:
    try:
        parts = urlsplit(url)
        _ = parts.port
        is_web_url = (
            parts.scheme in ("http", "https") and parts.hostname and parts.username is None and " " not in url
        )
    except ValueError:
        is_web_url = False
    problem = "Give an http or https URL with a host and without a user name."
    return None if is_web_url else FieldProblem("reporting_webhook_url", problem)


def payload_problem(payload: dict[str, Any], bytes_max: int, field: str = "payload") -> FieldProblem | None:
    """The first reason why a payload cannot be stored as jsonb and come back unchanged."""
    reason = None if _is_plain(payload) else _value_problem(payload, DEPTH_MAX)
    if reason is None and (size := len(encode(payload))) > bytes_max:
        reason = f"The payload has {size} bytes. At most {bytes_max} are allowed."
    return FieldProblem(field, reason) if reason else None


def _is_plain(payload: dict[str, Any]) -> bool:
    """Names with ASCII texts and numbers, as in most payloads: these need no further check."""
    for name, value in payload.items():
        is_text = type(value) is str and value.isascii() and "\x00" not in value
        if not (is_text or (type(value) is int and abs(value) <= _INT_MAX)):
            return False
        if not name.isascii() or "\x00" in name:
            return False
    return True


def _value_problem(value: Any, depth_left: int) -> str | None:
    match value:
        case str() if "\x00" in value:
            return "A text contains the NUL character, which cannot be stored."
        case str() if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            return "A text contains half a character (a lone surrogate), which cannot be stored."
        case str() | bool() | None:
            return None
        case int():
            return None if abs(value) <= _INT_MAX else "A number is too large. Send it as a string."
        case float():
            return None if math.isfinite(value) else "NaN and Infinity are not JSON. Send null or a string."
        case _ if depth_left == 0:
            return f"The payload is nested more than {DEPTH_MAX} levels deep."
        case list():
            return next(filter(None, (_value_problem(item, depth_left - 1) for item in value)), None)
        case dict():
            parts = (part for pair in value.items() for part in pair)
            return next(filter(None, (_value_problem(part, depth_left - 1) for part in parts)), None)
        case _:
            return "Only JSON values can be stored."
