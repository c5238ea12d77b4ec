"""Reminders and their occurrences."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from trunkline.schema.fields import CREATED_AT, ITS_ID, UPDATED_AT, about

WALL = r"^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d)?$"


class WallTimeRule:
    """A date and time on a clock on the wall, without an offset from UTC."""

    def __get_pydantic_json_schema__(
        self, schema: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        return {"type": "string", "pattern": WALL, "examples": ["2030-05-01T09:00:00"]}


WallTime = Annotated[datetime, WallTimeRule()]
ReminderStatus = Literal["ACTIVE", "PAUSED", "ENDED"]
OccurrenceState = Literal["SCHEDULED", "PROCESSING", "COMPLETED", "PENDING_RETRY", "FAILED", "SKIPPED"]


@dataclass(frozen=True, slots=True)
class Reminder:
    """A call at a local time, once or by a rule."""

    id: UUID = field(metadata=ITS_ID)
    merchant_id: str = field(metadata=about("Its merchant."))
    phone: str = field(repr=False, metadata=about("As E.164."))
    timezone: str = field(metadata=about("The time zone of its wall times."))
    starts_at: WallTime = field(metadata=about("Wall time in `timezone`."))
    rrule: str | None = field(metadata=about("How it recurs, as in RFC 5545. null: once."))
    message: str | None = field(repr=False, metadata=about("What the agent says."))
    status: ReminderStatus = field(
        metadata=about("A paused reminder calls nobody; an ended one never again.")
    )
    next_wall: WallTime | None = field(
        metadata=about("The next occurrence, as wall time, whether or not it is a lead already.")
    )
    next_at: datetime | None = field(
        metadata=about(
            "When the next call is due, as an instant: a retry or a calling window may be later than the wall time. "
            "null: paused or ended, or its last call is live."
        )
    )
    max_attempts: int = field(metadata=about("Of each occurrence."))
    created_at: datetime = field(metadata=CREATED_AT)
    request_id: str | None = field(
        metadata=about("The id of the request that created it, if it had one.", absent=None)
    )
    reseller_id: str = field(metadata=about("The reseller of its merchant.", absent=""))
    assistant_id: str | None = field(metadata=about("The assistant that talks.", absent=None))
    payload: dict[str, Any] = field(
        repr=False, metadata=about("What else the agent should know.", absent=None)
    )
    carrier: str | None = field(metadata=about("The carrier whose numbers call.", absent=None))
    pool: str = field(metadata=about("The number pool that it is called from.", absent=""))
    priority: int = field(metadata=about("1 is called first.", absent=50))
    late_s: int = field(metadata=about("The maximum lateness of a call after an outage.", absent=0))
    reporting_webhook_url: str | None = field(
        metadata=about("Where the results of its calls are reported.", absent=None)
    )
    ended_reason: Literal["finished", "cancelled"] | None = field(
        metadata=about("Why it has ended.", absent=None)
    )
    updated_at: datetime | None = field(metadata=UPDATED_AT | {"absent": None})


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One call of a reminder."""

    id: UUID = field(metadata=ITS_ID)
    reminder_id: UUID = field(metadata=about("Its reminder."))
    wall_at: WallTime = field(metadata=about("Wall time in the reminder's zone."))
    scheduled_at: datetime = field(metadata=about("The wall time as an instant."))
    state: OccurrenceState = field(metadata=about("The state of its lead, at most a second or two late."))
    skip_reason: Literal["asked", "missed", "paused", "cancelled", "restored"] | None = field(
        metadata=about("Why it was skipped.")
    )
    lead_id: UUID | None = field(metadata=about("Its lead. null: it is not created yet."))
    attempt_count: int = field(metadata=about("How often it was called."))
    max_attempts: int = field(metadata=about("How often it is called at most."))
    next_retry_at: datetime | None = field(metadata=about("When it is called again."))
    last_error: str | None = field(metadata=about("What went wrong last."))
    idempotency_key: str | None = field(metadata=about("`{id}-{attempt}-{8 hex}` of the newest attempt."))
    external_call_id: str | None = field(metadata=about("The carrier's id of the newest call."))
    created_at: datetime | None = field(metadata=CREATED_AT | {"absent": None})
    updated_at: datetime | None = field(metadata=UPDATED_AT | {"absent": None})
