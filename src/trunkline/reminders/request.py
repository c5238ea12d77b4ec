"""From a request for a reminder to a series, or to every reason why not. Pure."""

import hashlib
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NaiveDatetime, WithJsonSchema
from pydantic.config import JsonDict

from trunkline.leads import ingest, phones
from trunkline.leads.immutable import ZoneName
from trunkline.leads.ingest import FieldProblem, LeadRefused
from trunkline.leads.windows import Window
from trunkline.model import new_id
from trunkline.reminders import recurrence
from trunkline.reminders.recurrence import BadRule, Series
from trunkline.schema.fields import ObjectId, Text
from trunkline.schema.reminders import WALL
from trunkline.store.leads import Admission
from trunkline.store.reminders import NewReminder, StoredReminder

CARRIER = "vapi"
ATTEMPTS = 3
LATE_MINUTES = 15
LATE_MINUTES_MAX = 24 * 60
# Occurrences before today count toward COUNT, and have to be computed.
PAST_MAX = timedelta(days=366)
YEAR_MAX = 2099

EXAMPLE: JsonDict = {
    "request_id": "dose-ada-morning",
    "merchant_id": "acme-store",
    "phone": "+14155550123",
    "starts_at": "2030-05-01T09:00",
    "timezone": "America/Los_Angeles",
    "rrule": "FREQ=WEEKLY;BYDAY=MO,TH;COUNT=20",
    "message": "Time for your medicine, Ada.",
    "carrier": "vapi",
}


def _wall_text(value: object) -> object:
    """A number of seconds since 1970 would be an instant, and so would a time with an offset."""
    if isinstance(value, str) and re.fullmatch(WALL, value, re.ASCII):
        return value
    raise ValueError("write a local date and time without an offset, for example 2030-05-01T09:00")


_WALL_SCHEMA = WithJsonSchema({"type": "string", "pattern": WALL, "examples": ["2030-05-01T09:00:00"]})
WallMoment = Annotated[NaiveDatetime, BeforeValidator(_wall_text), _WALL_SCHEMA]


class ReminderRequest(BaseModel):
    """A call at a local time, once or by a rule."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [EXAMPLE]})

    request_id: Text | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="Your own id of this request, unique per merchant: sent again, it answers with the same reminder.",
    )
    merchant_id: ObjectId | None = Field(
        None, description="Whose reminder. A key that is bound to a merchant may leave it out."
    )
    phone: Text = Field(min_length=1, max_length=phones.TEXT_MAX, description="Whom to call, best as E.164.")
    starts_at: WallMoment = Field(
        description="When, by the clock on the wall of `timezone`, without an offset. With a rule: from when on."
    )
    timezone: ZoneName = Field(description="Where that clock hangs.", examples=["Asia/Kolkata"])
    rrule: Text | None = Field(
        None,
        min_length=1,
        max_length=recurrence.TEXT_MAX,
        description="How it recurs, as RFC 5545 writes it. Left out: once.",
    )
    message: Text | None = Field(
        None, min_length=1, max_length=2000, description="What the agent is to say: `payload.message`."
    )
    assistant_id: Text | None = Field(
        None, min_length=1, max_length=200, description="Who is to say it: `payload.assistant_id`."
    )
    payload: dict[str, Any] = Field(
        default_factory=dict, description="What else the agent should know. Any JSON object, up to 64 KiB."
    )
    carrier: ObjectId | None = Field(
        None, description="Whose numbers to ring from. Left out: those of `pool`, or else Vapi's."
    )
    pool: ObjectId | None = Field(
        None, description="The number pool. Left out: the nearest one whose numbers are all the carrier's."
    )
    windows: tuple[Window, ...] = Field(
        (),
        max_length=20,
        description="When it may ring, beside the calling policy. Closed: at the next opening.",
    )
    priority: int = Field(50, ge=1, le=99, strict=True, description="1 is called first.")
    max_attempts: int | None = Field(
        None, ge=1, le=20, strict=True, description="Of each occurrence. Left out: RETRY_MAX_ATTEMPTS."
    )
    late_minutes: int = Field(
        LATE_MINUTES,
        ge=0,
        le=LATE_MINUTES_MAX,
        strict=True,
        description="After an outage: ring so late at most; what is older is skipped.",
    )
    reporting_webhook_url: Text | None = Field(None, min_length=1, max_length=ingest.URL_MAX)


def prepare(
    request: ReminderRequest, admission: Admission, *, attempts: int, payload_bytes_max: int
) -> NewReminder | LeadRefused:
    """`admission` has the pool that was found for it."""
    assert admission.pool_id is not None, "the caller has looked"
    phone = phones.to_e164(request.phone, admission.default_region)
    series = series_of(request.starts_at, request.timezone, request.rrule, admission.now)
    problems = tuple(_problems(request, phone, series, payload_bytes_max))
    if problems or isinstance(phone, phones.BadPhone) or isinstance(series, FieldProblem):
        return LeadRefused(problems)
    place = series.first_from(admission.now)
    if place is None:
        return LeadRefused((FieldProblem("starts_at", "This moment has passed, and none comes after it."),))
    return NewReminder(
        id=new_id(),
        reseller_id=admission.reseller_id,
        merchant_id=admission.merchant_id,
        request_id=request.request_id,
        request_hash=fingerprint(request, phone),
        phone=phone,
        timezone=request.timezone,
        starts_at=request.starts_at,
        rrule=request.rrule,
        message=request.message,
        assistant_id=request.assistant_id,
        payload=request.payload,
        carrier=request.carrier,
        pool_id=admission.pool_id,
        has_windows=bool(request.windows),
        priority=request.priority,
        max_attempts=request.max_attempts or attempts,
        late_s=request.late_minutes * 60,
        reporting_webhook_url=request.reporting_webhook_url,
        next_wall=place.wall,
        next_at=place.at,
        next_no=place.no,
    )


def series_of(starts_at: datetime, zone: str, rrule: str | None, now: datetime) -> Series | FieldProblem:
    """The requested series, if it is valid."""
    if starts_at.year > YEAR_MAX or starts_at < now.replace(tzinfo=None) - PAST_MAX:
        return FieldProblem("starts_at", "Give a moment between a year ago and 2099.")
    if rrule is None:
        return Series(starts_at, zone, None)
    rule = recurrence.parse(rrule, starts_at, zone)
    return FieldProblem("rrule", rule.error) if isinstance(rule, BadRule) else Series(starts_at, zone, rule)


def stored_series(reminder: StoredReminder) -> Series:
    """Of a stored reminder, whose rule is valid."""
    if reminder.rrule is None:
        return Series(reminder.starts_at, reminder.timezone, None)
    rule = recurrence.parse(reminder.rrule, reminder.starts_at, reminder.timezone)
    assert not isinstance(rule, BadRule), rule
    return Series(reminder.starts_at, reminder.timezone, rule)


def fingerprint(request: ReminderRequest, phone: str) -> bytes:
    """Of the request: another spelling of the phone is the same request."""
    content = request.model_dump(mode="json", exclude={"request_id", "merchant_id", "phone"}) | {
        "phone": phone
    }
    return hashlib.sha256(ingest.encode(content)).digest()


def _problems(
    request: ReminderRequest,
    phone: str | phones.BadPhone,
    series: Series | FieldProblem,
    payload_bytes_max: int,
) -> Iterator[FieldProblem]:
    if isinstance(phone, phones.BadPhone):
        yield FieldProblem("phone", phone.error)
    if isinstance(series, FieldProblem):
        yield series
    yield from ingest.content_problems(
        request.payload, None, None, request.reporting_webhook_url, payload_bytes_max=payload_bytes_max
    )
