"""Ingest: from a request to a `NewLead`, or to every reason why not.

Nothing here reads or writes: the caller looks up the merchant's `Admission` first and inserts afterwards.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any
from urllib.parse import urlsplit
from uuid import UUID

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)
from pydantic.config import JsonDict

from trunkline.leads import payloads, phones
from trunkline.leads.calling_policy import EMPTY, CallingPolicy, Effective, resolve
from trunkline.leads.immutable import ZoneName
from trunkline.leads.windows import next_opening
from trunkline.model import new_id
from trunkline.moments import has_utc
from trunkline.store.leads import Admission, NewLead

PAYLOAD_BYTES_MAX = 64 * 1024
PAYLOAD_PHONE = "customer_mobile_number"
URL_MAX = 2048
YEAR_MAX = 9990

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


def _only_text(value: object) -> object:
    """A bare number would pass as seconds since 1970, and a client's milliseconds as the year 50,000."""
    if value is None or isinstance(value, str | datetime):
        return value
    raise ValueError("write a date and time as text, for example 2030-05-01T09:30:00+02:00")


def _in_utc(value: datetime) -> datetime:
    if not has_utc(value):
        raise ValueError("this date lies beyond the end of the calendar")
    return value


# Printable text that Postgres can store: no control characters, so no NUL.
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$")]
OBJECT_ID = r"^[a-z0-9][a-z0-9_-]{0,62}$"
ObjectId = Annotated[str, StringConstraints(pattern=OBJECT_ID)]
Moment = Annotated[AwareDatetime, BeforeValidator(_only_text), AfterValidator(_in_utc)]


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
    phone = _phone(request, admission)
    problems = tuple(_problems(request, admission, payload_bytes_max))
    if isinstance(phone, FieldProblem):
        return LeadRefused((phone, *problems))
    if problems or admission.pool_id is None:
        return LeadRefused(problems)
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
        payload=request.payload,
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
    return hashlib.sha256(payloads.encode(content)).digest()


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


def _problems(request: LeadRequest, admission: Admission, payload_bytes_max: int) -> Iterator[FieldProblem]:
    if admission.pool_id is None:
        missing = "Name a number pool, or set the merchant's default_pool."
        yield FieldProblem(
            "pool", f"This merchant has no pool {request.pool!r}." if request.pool else missing
        )
    for problem in (
        payload_problem(request.payload, payload_bytes_max),
        moment_problem(request.scheduled_at),
        expiry_problem(request.expires_at, request.scheduled_at),
        webhook_problem(request.reporting_webhook_url),
    ):
        if problem is not None:
            yield problem


def payload_problem(payload: dict[str, Any], bytes_max: int) -> FieldProblem | None:
    reason = payloads.problem(payload, bytes_max=bytes_max)
    return FieldProblem("payload", reason) if reason else None


def moment_problem(moment: datetime | None, field: str = "scheduled_at") -> FieldProblem | None:
    """A moment leaves room for a year of calling windows after it."""
    try:
        fits = moment is None or moment.astimezone(UTC).year < YEAR_MAX
    except OverflowError:
        fits = False
    return None if fits else FieldProblem(field, "This moment is outside the calendar.")


def expiry_problem(expires_at: datetime | None, scheduled_at: datetime | None) -> FieldProblem | None:
    """A time that has passed is no problem: the same request, repeated later, still has the same answer."""
    problem = moment_problem(expires_at, "expires_at")
    if problem is None and expires_at and scheduled_at and expires_at <= scheduled_at:
        return FieldProblem("expires_at", "It would expire before it may be called.")
    return problem


def webhook_problem(url: str | None) -> FieldProblem | None:
    if url is None or _is_web_url(url):
        return None
    return FieldProblem(
        "reporting_webhook_url", "Give an http or https URL with a host and without a user name."
    )


def _is_web_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and parts.username is None
        and " " not in url
    )
