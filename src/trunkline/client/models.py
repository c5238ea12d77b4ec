"""The API's responses as values. Fields that a newer server adds are ignored."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from trunkline.client.errors import FieldError


@dataclass(frozen=True, slots=True)
class Lead:
    """One person to call. `status` is BACKLOG, PROCESSING or FINISHED; `outcome` is set with the last."""

    id: UUID
    request_id: str
    reseller_id: str
    merchant_id: str
    phone: str = field(repr=False)
    timezone: str | None
    payload: dict[str, Any] = field(repr=False)
    campaign_id: UUID | None
    pool: str
    priority: int
    status: str
    outcome: str | None
    outcome_reason: str | None
    scheduled_at: datetime
    due_at: datetime
    attempt_count: int
    max_attempts: int
    # How often it was answered without an agent, and called again for that.
    no_agent_count: int
    reporting_webhook_url: str | None
    version: int
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    # It was aborted while it was being called: it ends with this call.
    cancel_requested_at: datetime | None
    cancel_reason: str | None
    # How often it was reopened after it had finished.
    reopen_count: int = field(default=0, kw_only=True)
    # From then on it is not called.
    expires_at: datetime | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class Campaign:
    """Many leads under one policy. `status` is DRAFT, RUNNING, PAUSED, COMPLETED, STOPPING or STOPPED."""

    id: UUID
    merchant_id: str
    name: str
    status: str
    pool: str
    priority: int
    max_attempts: int
    starts_at: datetime | None
    ends_at: datetime | None
    stop_reason: str | None
    started_at: datetime | None
    stopped_at: datetime | None
    created_at: datetime
    updated_at: datetime
    # Since when none of its leads is left to call.
    completed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class CampaignProgress:
    status: str
    leads: int
    waiting: int
    to_be_retried: int
    calling: int
    finished: int
    outcomes: dict[str, Any]
    attempts: int
    share: float
    finished_per_minute: float
    next_due_at: datetime | None
    estimated_end_at: datetime | None
    as_of: datetime


@dataclass(frozen=True, slots=True)
class Reminder:
    """A call at a local time. `status` is ACTIVE, PAUSED or ENDED; `starts_at` and `next_wall` are wall times."""

    id: UUID
    merchant_id: str
    phone: str = field(repr=False)
    timezone: str
    starts_at: datetime
    rrule: str | None
    message: str | None = field(repr=False)
    status: str
    next_wall: datetime | None
    next_at: datetime | None
    max_attempts: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One call of a reminder. `state` is SCHEDULED, PROCESSING, COMPLETED, PENDING_RETRY, FAILED or SKIPPED."""

    id: UUID
    reminder_id: UUID
    wall_at: datetime
    scheduled_at: datetime
    state: str
    skip_reason: str | None
    lead_id: UUID | None
    attempt_count: int
    max_attempts: int
    next_retry_at: datetime | None
    last_error: str | None
    idempotency_key: str | None
    external_call_id: str | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One dial of a lead."""

    id: UUID
    attempt_no: int
    state: str
    carrier: str
    carrier_call_id: str | None
    from_phone: str = field(repr=False)
    intent_at: datetime
    accepted_at: datetime | None
    ringing_at: datetime | None
    answered_at: datetime | None
    ended_at: datetime | None
    end_reason: str | None
    duration_s: int | None
    # When its lead was due, since when everything for the call was available, when it was sent, how long it waited, and
    # how late it was. None: an older platform, or it was never sent.
    due_at: datetime | None = None
    ready_at: datetime | None = None
    sent_at: datetime | None = None
    waited_s: float | None = None
    late_s: float | None = None
    # Its agent, once it has ended: `joined`, `external`, `none` or `unknown`. None: not answered, or live.
    agent: str | None = None
    # Its cost by the merchant's price and by the carrier's own figure, in millionths. None: unknown.
    cost_micros: int | None = None
    carrier_cost_micros: int | None = None
    carrier_cost_currency: str | None = None
    # What its agent reported: disposition, opt_out, callback_at, transcript_ref, recording_ref, data, reported_at.
    report: dict[str, Any] | None = field(default=None, repr=False)
    # URLs of its recordings at the carrier.
    recordings: list[str] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Decision:
    """A reason for which a lead was not called."""

    reason: str
    subject: str | None
    times: int
    first_at: datetime
    last_at: datetime
    until: datetime | None


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """A timeline event of a lead. `source`: lead, attempt, carrier, agent, audit, decision, job or webhook. `at` is by
    the platform's clock, unless `clock` is `carrier`; `carrier_at` is by the carrier's."""

    at: datetime
    source: str
    what: str
    attempt_id: UUID | None
    actor: str | None
    reason: str | None
    details: dict[str, Any]
    clock: str = "ours"
    carrier_at: str | None = None


@dataclass(frozen=True, slots=True)
class LeadWithAttempts(Lead):
    """A lead with its attempts, decisions and timeline."""

    attempts: list[Attempt]
    decisions: list[Decision]
    timeline: list[TimelineEvent]
    # Enrichments of its calls: item_id, attempt_id, status, recording_ref, recording_url, transcript, data, …
    enrichments: list[dict[str, Any]] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class RowProblem:
    """A row of an upload that created no lead."""

    row: int
    result: str
    request_id: str | None = None
    code: str | None = None
    error: str | None = None
    fields: tuple[FieldError, ...] = ()


@dataclass(frozen=True, slots=True)
class UploadReport:
    """The results of the rows of an upload. `existing` were sent before; `problems` are conflicts and refusals."""

    rows: int
    created: int
    existing: int
    conflict: int
    refused: int
    problems: tuple[RowProblem, ...]


@dataclass(frozen=True, slots=True)
class Aborted:
    """How many leads have ended, and how many are being called and end with this call."""

    aborted: int
    cancel_requested: int


@dataclass(frozen=True, slots=True)
class Reopened:
    """How many finished leads wait to be called again, and how many may not be, by the reason."""

    reopened: int
    refused: dict[str, int]


@dataclass(frozen=True, slots=True)
class Health:
    status: str
    version: str
